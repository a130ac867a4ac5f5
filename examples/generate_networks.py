"""A flow that draws new trained networks, learned from a few hundred of them."""

import coset
from coset import data, zoo

cancer = data.load("breast-cancer")
model = zoo.build("mlp:30-4-2")
networks = coset.collect(model, cancer.train, 256, coset.Collect(epochs=20))

sym = coset.symmetry(model, (cancer.test.inputs[:2],))
small = coset.Architecture(width=32, depth=2, heads=4)
flow = coset.Flow(sym, architecture=small).fit(networks, coset.Matching(epochs=80))
samples = flow.sample(64)

for name, population in {"trained": networks, "generated": samples}.items():
    scores = coset.scores(population, model, cancer.test)
    print(f"{name:>9}: {scores}")
print(coset.novelty(samples, networks, sym))
