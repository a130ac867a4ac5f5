"""Two networks trained apart: why their average fails, and how to merge them."""

import coset
from coset import data, zoo

digits = data.load("digits")
model = zoo.build("mlp:64-64-64-10")
a, b = coset.fit(model, digits.train, coset.MAP(epochs=30), replicas=2)

sym = coset.symmetry(model, (digits.test.inputs[:8],))
match = coset.align(a, b, sym)
aligned = sym.act(match.element, b)
merged = coset.merge([a, b], sym, model=model, data=digits.train)


def accuracy(solution: coset.Solution) -> str:
    """On the test split, in percent."""
    return f"{coset.evaluate(solution, model, digits.test).accuracy:.1%}"


print("network a                ", accuracy(a))
print("network b                ", accuracy(b))
print("b aligned to a           ", accuracy(aligned))
print("average of a and b       ", accuracy(coset.geodesic(a, b)(0.5)))
print("average of a and b merged", accuracy(merged))
