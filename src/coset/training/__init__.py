"""The engine that everything learned goes through: networks as vectors, minibatches, the loop, its folder."""
