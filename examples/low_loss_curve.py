"""A curve between two networks along which the loss stays low, where the straight line climbs."""

import coset
from coset import data, zoo

digits = data.load("digits")
model = zoo.build("mlp:64-32-10")
a, b = coset.fit(model, digits.train, coset.MAP(epochs=30), replicas=2)

paths = {
    "straight line": coset.geodesic(a, b),
    "curve": coset.find_curve(a, b, model, digits.train, align=False, method=coset.Connect(epochs=20)),
    "curve to b aligned": coset.find_curve(a, b, model, digits.train, method=coset.Connect(epochs=20)),
}
for name, path in paths.items():
    barrier = coset.barrier(path, model, digits.test)
    print(f"{name:>18}: barrier {barrier.height:.3f} nats, least accuracy {min(barrier.accuracy):.1%}")
