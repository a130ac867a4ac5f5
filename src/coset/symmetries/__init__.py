"""The symmetry group of a model: inferred from its graph, verified by running it."""
