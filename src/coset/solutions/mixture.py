"""A weighted sum of solutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset.core import state as states
from coset.core.errors import StateError
from coset.core.json_reader import JsonObject
from coset.core.state import StateLike, check, owners, tie
from coset.solutions.as_solution import as_solution
from coset.solutions.solution import Solution, require_count
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry


class Mixture(Solution):
    """A weighted sum of solutions, q = sum_k w_k q_k.

    The parts' densities can be added where they fix the same coordinates, as Diracs and ensembles do, and Gaussians
    with the same tensors random; `log_prob` and `entropy` mean nothing for a Dirac mixed with a Gaussian.

    Each component has its own noise; that of the mixture is their common one, None if they differ.

    Args:
        parts: solutions, states or modules of one layout.
        weights: one for each part, positive or zero, made to sum to one; equal by default.

    Raises:
        StateError: there is no part, the parts differ in names or shapes, or the weights are not as many or negative.

    Example:
        >>> coset.Mixture([a, b], [3, 1]).weights
        (0.75, 0.25)
    """

    kind: ClassVar[str] = "mixture"

    def __init__(self, parts: Sequence[StateLike], weights: Sequence[float] | None = None) -> None:
        if not parts:
            raise StateError("A mixture needs at least one part.")
        shares = [1.0] * len(parts) if weights is None else [float(w) for w in weights]
        if len(shares) != len(parts):
            raise StateError(f"A mixture of {len(parts)} needs {len(parts)} weights, not {len(shares)}.")
        total = sum(shares)
        if not all(w >= 0 for w in shares) or not 0 < total < math.inf:
            raise StateError(f"The weights of a mixture must be positive or zero with a finite sum, not {shares}.")
        self.parts = tuple(as_solution(part, f"part {k} of the mixture") for k, part in enumerate(parts, 1))
        first = self.parts[0].mean
        for k, part in enumerate(self.parts[1:], 2):
            check(part.mean, like=first, where=f"part {k} of the mixture")
        self.weights = tuple(w / total for w in shares)
        mean = states.mean(states.stack(part.mean for part in self.parts), self.weights)
        self.mean = tie(mean, owners(first))
        noises = {component.noise for _, component in self.components()}
        self.noise = noises.pop() if len(noises) == 1 else None

    @property
    def is_random(self) -> bool:
        """Also for parts at one place, which need not be compared."""
        return len(self.components()) > 1 or any(part.is_random for _, part in self.components())

    def components(self) -> list[tuple[float, Solution]]:
        """The parts with positive weight, those that are mixtures taken apart."""
        return [
            (w * inner, component)
            for w, part in zip(self.weights, self.parts, strict=True)
            if w > 0
            for inner, component in part.components()
        ]

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Each state from a part that is picked by its weight.

        Args:
            n: how many.
            generator: what they come from; None is torch's own.
        """
        require_count(n)
        device = None if generator is None else generator.device
        uniform = torch.rand(n, generator=generator, device=device, dtype=torch.float64)
        ends = torch.tensor(self.weights, dtype=torch.float64, device=uniform.device).cumsum(0)
        choices = torch.searchsorted(ends[:-1], uniform, right=True).tolist()
        # Groups of one part are drawn at once, then put in the order of the choices.
        pools = {k: iter(states.unstack(self.parts[k].sample(choices.count(k), generator))) for k in sorted({*choices})}
        return tie(states.stack(next(pools[k]) for k in choices), owners(self.mean))

    def log_prob(self, state: StateLike) -> Tensor:
        """log sum_k w_k q_k(state).

        Args:
            state: a mapping of tensors by name, or a module.
        """
        terms = [math.log(w) + part.log_prob(state) for w, part in self.components()]
        return torch.logsumexp(torch.stack(terms), 0)

    def entropy(self, samples: int = 1000, generator: torch.Generator | None = None) -> Tensor:
        """-sum_k w_k E_k[log q]; exact for Diracs.

        Args:
            samples: draws from each random part.
            generator: what they come from; None is torch's own.
        """
        total = torch.zeros((), dtype=torch.float64)
        for w, part in self.components():
            population = part.sample(samples if part.is_random else 1, generator)
            logs = torch.stack([self.log_prob(state) for state in states.unstack(population)])
            total = total.to(logs.device) - w * logs.mean()
        return total

    def _image(self, sym: Symmetry, g: Element) -> Mixture:
        return Mixture([sym.act(g, part) for part in self.parts], self.weights)

    def to(self, device: str | torch.device) -> Mixture:
        return Mixture([part.to(device) for part in self.parts], self.weights)

    def _facts(self) -> list[tuple[object, ...]]:
        return [(f"{w:.4g}", part) for w, part in zip(self.weights, self.parts, strict=True)]

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        packed = [part.pack() for part in self.parts]
        tensors = {f"{k}.{name}": x for k, (_, inner) in enumerate(packed) for name, x in inner.items()}
        return {"kind": self.kind, "weights": self.weights, "parts": [part for part, _ in packed]}, tensors

    @classmethod
    def unpack(cls, description: JsonObject, tensors: dict[str, Tensor]) -> Mixture:
        from coset.solutions.load import unpack  # which lists this kind

        parts = []
        for k, part in enumerate(description.objects("parts")):
            own = {name.removeprefix(f"{k}."): x for name, x in tensors.items() if name.startswith(f"{k}.")}
            parts.append(unpack(part, own))
        return cls(parts, description.series("weights"))
