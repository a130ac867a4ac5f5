"""A weighted sum of solutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset.core import state as states
from coset.core.errors import StateError
from coset.core.state import State, check, owners, tie
from coset.solutions.solution import Solution, require_count
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry


class Mixture(Solution):
    """q = sum_k w_k q_k, the weights positive or zero and made to sum to one.

    The parts' densities can be added where they fix the same coordinates, as Diracs and ensembles do, and Gaussians
    with the same tensors random; `log_prob` and `entropy` mean nothing for a Dirac mixed with a Gaussian.

    Each component has its own noise; that of the mixture is their common one, None if they differ.
    """

    kind: ClassVar[str] = "mixture"

    def __init__(self, parts: Sequence[Solution], weights: Sequence[float] | None = None) -> None:
        """Equal weights when none are given."""
        if not parts:
            raise StateError("A mixture needs at least one part.")
        given = [1.0] * len(parts) if weights is None else [float(w) for w in weights]
        if len(given) != len(parts):
            raise StateError(f"A mixture of {len(parts)} needs {len(parts)} weights, not {len(given)}.")
        total = sum(given)
        if not all(w >= 0 for w in given) or not 0 < total < math.inf:
            raise StateError(f"The weights of a mixture must be positive or zero with a finite sum, not {given}.")
        for k, part in enumerate(parts[1:], 2):
            check(part.mean, like=parts[0].mean, where=f"part {k} of the mixture")
        self.parts = tuple(parts)
        self.weights = tuple(w / total for w in given)
        mean = states.mean(states.stack(part.mean for part in parts), self.weights)
        self.mean = tie(mean, owners(parts[0].mean))
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
        """Each state from a part chosen by its weight."""
        require_count(n)
        device = None if generator is None else generator.device
        uniform = torch.rand(n, generator=generator, device=device, dtype=torch.float64)
        ends = torch.tensor(self.weights, dtype=torch.float64, device=uniform.device).cumsum(0)
        chosen = torch.searchsorted(ends[:-1], uniform, right=True).tolist()
        # Groups of one part are drawn at once, then put in the order of the choices.
        drawn = {k: iter(states.unstack(self.parts[k].sample(chosen.count(k), generator))) for k in sorted({*chosen})}
        return tie(states.stack(next(drawn[k]) for k in chosen), owners(self.mean))

    def log_prob(self, state: State) -> Tensor:
        """log sum_k w_k q_k(state)."""
        terms = [math.log(w) + part.log_prob(state) for w, part in self.components()]
        return torch.logsumexp(torch.stack(terms), 0)

    def entropy(self, samples: int = 1000, generator: torch.Generator | None = None) -> Tensor:
        """-sum_k w_k E_k[log q], by `samples` draws from each random part; exact for Diracs."""
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

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        packed = [part.pack() for part in self.parts]
        tensors = {f"{k}.{name}": x for k, (_, inner) in enumerate(packed) for name, x in inner.items()}
        return {"kind": self.kind, "weights": self.weights, "parts": [part for part, _ in packed]}, tensors

    @classmethod
    def unpack(cls, description: dict[str, Any], tensors: dict[str, Tensor]) -> Mixture:
        from coset.solutions.load import KINDS  # which lists this kind

        parts = []
        for k, part in enumerate(description["parts"]):
            own = {name.removeprefix(f"{k}."): x for name, x in tensors.items() if name.startswith(f"{k}.")}
            parts.append(KINDS[part["kind"]].unpack(part, own))
        return cls(parts, description["weights"])
