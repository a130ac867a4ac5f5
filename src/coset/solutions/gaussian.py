"""A Gaussian with independent coordinates: what mean-field variational inference gives."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset.core.errors import StateError
from coset.core.json_reader import JsonObject
from coset.core.state import State, StateLike, check, distinct, is_coordinate, owners, tie
from coset.solutions.coordinates import linear
from coset.solutions.solution import Solution, as_noise, require_count, state_image
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

MEAN, STD = "mean.", "std."  # before the names in a file


class Gaussian(Solution):
    """Independent coordinates, q(w) = prod_i N(w_i; m_i, s_i^2): what mean-field variational inference gives.

    Coordinates with s_i = 0 are fixed at m_i.

    Args:
        mean: a mapping of tensors by name, or a module. Integer, bool and complex tensors are fixed. Names that hold
            one tensor object are tied: they are drawn together and counted once.
        std: standard deviations under names of `mean`. A floating tensor that it does not name is fixed, as a norm's
            statistics are.
        noise: standard deviation of the observations of a regression network; None for a classifier.

    Raises:
        StateError: a value is NaN or infinite, a deviation negative, or names or shapes differ.

    Example:
        >>> q = coset.Gaussian(model, {"layers.1.bias": torch.full((10,), 0.1)})
        >>> round(float(q.entropy()), 2)
        -8.84
    """

    kind: ClassVar[str] = "gaussian"

    def __init__(self, mean: StateLike, std: State, noise: float | None = None) -> None:
        checked = check(mean, where="the mean")
        self.mean = tie({name: x.detach() for name, x in checked.items()}, owners(checked))
        floating = {name: x for name, x in self.mean.items() if x.is_floating_point()}
        own = {id(floating[name]) for name in std if name in floating}
        deviations = check(std, {name: x for name, x in floating.items() if id(x) in own}, "the standard deviations")
        for name, x in [*floating.items(), *deviations.items()]:
            if x.element_size() == 1:
                raise StateError(f"Tensor '{name}' has numbers of 8 bits, with which no Gaussian computes: convert it.")
        for name, x in deviations.items():
            if negative := int((x < 0).sum()):
                raise StateError(
                    f"Tensor '{name}' in the standard deviations has {negative} negative of {x.numel()} values."
                )
        full = {
            name: deviations[name].detach().to(x.device) if name in deviations else torch.zeros_like(x)
            for name, x in floating.items()
        }
        self.std = tie(full, owners(floating))
        self.noise = as_noise(noise)

    @property
    def is_random(self) -> bool:
        return any(bool((s > 0).any()) for s in self.std.values())

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """m + s e with e ~ N(0, 1), drawn on the generator's device.

        Args:
            n: how many.
            generator: what they come from; None is torch's own.
        """
        require_count(n)

        def draw(m: Tensor, s: Tensor | None) -> Tensor:
            if s is None:
                return m.expand(n, *m.shape).clone()
            dtype = torch.promote_types(m.dtype, torch.float32)
            device = m.device if generator is None else generator.device
            noise = torch.randn((n, *m.shape), generator=generator, device=device, dtype=dtype)
            return (m.to(dtype) + s.to(dtype) * noise.to(m.device)).to(m.dtype)

        samples = {name: draw(self.mean[name], self.std.get(name)) for name in distinct(self.mean)}
        return {name: samples[owner] for name, owner in owners(self.mean).items()}

    def log_prob(self, state: StateLike) -> Tensor:
        """-sum_i ((w_i - m_i)^2 / s_i^2 + log(2 pi s_i^2)) / 2 over the random coordinates.

        Args:
            state: a mapping of tensors by name, or a module.
        """
        point = check(state, like=self.mean)
        total = torch.zeros((), dtype=torch.float64)
        for name in distinct(self.mean):
            m = self.mean[name]
            if not is_coordinate(m):
                continue
            x = point[name].to(m.device)
            s = self.std.get(name, torch.zeros(m.shape, device=m.device)).double()
            if not bool((x == m)[s == 0].all()):
                return torch.tensor(-math.inf, dtype=torch.float64)
            random = s > 0
            z = (x[random].double() - m[random].double()) / s[random]
            total = total.to(m.device) - (z.square() + math.log(2 * math.pi)).sum() / 2 - s[random].log().sum()
        return total

    def entropy(self) -> Tensor:
        """sum_i log(2 pi e s_i^2) / 2 over the random coordinates."""
        total = torch.zeros((), dtype=torch.float64)
        for name in distinct(self.std):
            s = self.std[name][self.std[name] > 0].double()
            total = total.to(s.device) + s.log().sum() + s.numel() * (1 + math.log(2 * math.pi)) / 2
        return total

    def _image(self, sym: Symmetry, g: Element) -> Gaussian:
        """Exact, as an element moves each coordinate to one place by w -> c w + b: the std becomes |c| s."""
        mean = state_image(sym, g, self.mean)
        return Gaussian(mean, {name: x.abs() for name, x in linear(sym).act(g, self.std).items()}, self.noise)

    def to(self, device: str | torch.device) -> Gaussian:
        mean = tie({name: x.to(device) for name, x in self.mean.items()}, owners(self.mean))
        return Gaussian(mean, {name: x.to(device) for name, x in self.std.items()}, self.noise)

    def _facts(self) -> list[tuple[object, ...]]:
        positive = [s[s > 0] for s in (self.std[name] for name in distinct(self.std))]
        deviations = torch.cat([s.detach().cpu().double() for s in positive]) if positive else torch.zeros(0)
        facts: list[tuple[object, ...]] = [("random coordinates", len(deviations))]
        return [*facts, ("median std", float(deviations.median()))] if len(deviations) else facts

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        mean = {MEAN + name: x for name, x in self.mean.items()}
        return {"kind": self.kind, "noise": self.noise}, mean | {STD + name: x for name, x in self.std.items()}

    @classmethod
    def unpack(cls, description: JsonObject, tensors: dict[str, Tensor]) -> Gaussian:
        mean, std = (
            {name.removeprefix(part): x for name, x in tensors.items() if name.startswith(part)} for part in (MEAN, STD)
        )
        return cls(mean, std, description.optional_number("noise"))
