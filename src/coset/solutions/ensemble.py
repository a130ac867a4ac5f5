"""Several networks that count alike: what a deep ensemble or a Markov chain gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coset.core.errors import StateError
from coset.core.json_reader import JsonObject
from coset.core.state import State, StateLike, check, distinct, is_coordinate, mean, owners, size, stack, tie, unstack
from coset.solutions.coordinates import rows
from coset.solutions.dirac import Dirac
from coset.solutions.solution import Solution, as_noise, require_count
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry


class Ensemble(Solution):
    """Several networks that count alike, q = (1/n) sum_k delta(w_k): what a deep ensemble or a Markov chain gives.

    Its log_prob is the log of the share of members that equal a state. `q.population` holds the members w_k, each
    tensor (n, *shape).

    Args:
        states: a sequence of states, modules or Diracs; or a population, a mapping of tensors (n, *shape). Names that
            hold one tensor object, in the first state, are tied.
        noise: standard deviation of the observations of a regression network; None for a classifier.

    Raises:
        StateError: there is no member, or they differ in names or shapes.

    Example:
        >>> coset.Ensemble([a, b]).is_random
        True
    """

    kind: ClassVar[str] = "ensemble"

    def __init__(self, states: Sequence[StateLike] | State, noise: float | None = None) -> None:
        if isinstance(states, nn.Module | Solution):
            raise StateError(
                f"An ensemble is of several networks, and this is one {type(states).__name__}: give a list."
            )
        if isinstance(states, Mapping):
            population = check(states, where="the population")
            tied = owners(population)
        else:
            members = [check(x, like=states[0], where=f"member {k} of the ensemble") for k, x in enumerate(states, 1)]
            population = stack(members)
            tied = owners(members[0])
        self.population = tie({name: x.detach() for name, x in population.items()}, tied)
        if len(self) == 0:
            raise StateError("An ensemble needs at least one member, and this population is empty.")
        self.mean = tie(mean(self.population), tied)
        self.noise = as_noise(noise)

    def __len__(self) -> int:
        return size(self.population)

    @property
    def members(self) -> list[dict[str, Tensor]]:
        """The states, as views of the population."""
        return [tie(member, owners(self.mean)) for member in unstack(self.population)]

    @property
    def is_random(self) -> bool:
        """Also for members at one place, which need not be compared."""
        return len(self) > 1

    def components(self) -> list[tuple[float, Solution]]:
        """The members as Diracs."""
        return [(1 / len(self), Dirac(member, self.noise)) for member in self.members]

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Members at random, with replacement.

        Args:
            n: how many.
            generator: what they come from; None is torch's own.
        """
        require_count(n)
        device = None if generator is None else generator.device
        indices = torch.randint(len(self), (n,), generator=generator, device=device)
        samples = {name: x.index_select(0, indices.to(x.device)) for name, x in self.population.items()}
        return tie(samples, owners(self.mean))

    def log_prob(self, state: StateLike) -> Tensor:
        point = check(state, like=self.mean)
        equal = torch.ones(len(self), dtype=torch.bool)
        for name in distinct(self.mean):
            if is_coordinate(self.mean[name]):
                x = self.population[name]
                same = (x == point[name].to(x.device)).unsqueeze(-1)
                equal = equal.to(x.device) & same.flatten(1).all(1)
        return equal.double().mean().log()

    def entropy(self) -> Tensor:
        """-sum_j p_j log p_j over the distinct members, p_j being the share of members that equal the j-th."""
        label = torch.zeros(len(self), dtype=torch.int64)
        for name in distinct(self.mean):
            x = self.population[name]
            if is_coordinate(x) and x.numel():
                own = torch.unique(rows(x), dim=0, return_inverse=True)[1]
                label = torch.unique(torch.stack([label.to(own.device), own], 1), dim=0, return_inverse=True)[1]
        share = label.bincount().double() / len(self)
        return -(share * share.log()).sum()

    def _image(self, sym: Symmetry, g: Element) -> Ensemble:
        return Ensemble(tie(sym.act(g, self.population), owners(self.mean)), self.noise)

    def to(self, device: str | torch.device) -> Ensemble:
        population = {name: x.to(device) for name, x in self.population.items()}
        return Ensemble(tie(population, owners(self.mean)), self.noise)

    def _facts(self) -> list[tuple[object, ...]]:
        return [("members", len(self))]

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"kind": self.kind, "noise": self.noise}, self.population

    @classmethod
    def unpack(cls, description: JsonObject, tensors: dict[str, Tensor]) -> Ensemble:
        return cls(tensors, description.optional_number("noise"))
