"""What all Markov chains give: an ensemble of their draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coset.inference.method import Method
from coset.inference.network import Network
from coset.solutions import Ensemble, Solution
from coset.solutions.ties import owners, tie


class Chains(Method):
    """A method whose solution is an `Ensemble` of the draws of `chains` chains: all of the first, then the second's."""

    chains: int

    @property
    def copies(self) -> int:
        return self.chains

    def combine(self, found: Sequence[Solution]) -> Solution:
        parts = [one.population for one in found if isinstance(one, Ensemble)]
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return Ensemble(tie(joined, owners(parts[0])), noise=found[0].noise)


def ensemble(network: Network, draws: Tensor, noise: float | None) -> Ensemble:
    """The draws (n, p) of a chain."""
    return Ensemble(network.state(draws), noise=noise)
