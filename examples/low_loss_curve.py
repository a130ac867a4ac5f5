"""A curve between two networks along which the loss stays low, where the straight line climbs."""

import coset
from coset import data, zoo

digits = data.load("digits")
model = zoo.build("mlp:64-32-10")
a, b = coset.fit(model, digits.train, coset.MAP(epochs=30), replicas=2)

short = coset.Connect(epochs=20)
line = coset.geodesic(a, b)
curve = coset.find_curve(a, b, model, digits.train, align=False, method=short)
aligned = coset.find_curve(a, b, model, digits.train, align=True, method=short)
for name, path in (("straight line", line), ("curve", curve), ("curve to b aligned", aligned)):
    print(f"{name:>18}: the loss rises by {coset.barrier(path, model, digits.test).height:.3f} nats")
