"""A Bayesian network by variational inference, and whether the symmetry of its weights matters for it."""

import coset
from coset import data, zoo

cancer = data.load("breast-cancer")
model = zoo.build("mlp:30-16-2")
(network,) = coset.fit(model, cancer.train, coset.MAP(epochs=40))
(posterior,) = coset.fit(model, cancer.train, coset.VI(epochs=100))

for name, solution in {"one network": network, "posterior": posterior}.items():
    scores = coset.evaluate(solution, model, cancer.test)
    print(f"{name:>12}: nll {scores.nll:.3f}, accuracy {scores.accuracy:.1%}, calibration error {scores.ece:.3f}")

sym = coset.symmetry(model, (cancer.test.inputs[:2],))
print(coset.overlap(posterior, sym))
