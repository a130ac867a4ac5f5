"""Posteriors by transport: flows learned from Markov chains, beside chains that they have not seen."""
