"""The two ends of a curve as vectors, and curves made of vectors again."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset import state as states
from coset.checks import State, check
from coset.curves.buffers import Buffers, between
from coset.errors import CosetError
from coset.inference.network import Network
from coset.paths import CURVES, Curve
from coset.solutions import Dirac, Gaussian
from coset.solutions.convert import as_gaussian
from coset.solutions.ties import owners, tie


@dataclass(frozen=True, eq=False)
class Ends:
    """Two solutions of one model, and their p trainable parameters as vectors.

    mean: (2, p); log_std: (2, p) for Gaussians, None for Diracs; noise: (2,) of a regression, None of a classifier.
    """

    first: Dirac | Gaussian
    last: Dirac | Gaussian
    network: Network

    def __post_init__(self) -> None:
        for q in (self.first, self.last):
            if isinstance(q, Gaussian) and not all(
                bool((q.std[name] > 0).all()) for name in self.network.names if name in q.std
            ):
                raise CosetError(
                    "A curve between Gaussians needs positive standard deviations where they are learned, as it learns "
                    "their logarithms: give Gaussians that have them, or Diracs."
                )

    @property
    def mean(self) -> Tensor:
        return torch.stack([self.network.flatten(q.mean) for q in (self.first, self.last)])

    @property
    def log_std(self) -> Tensor | None:
        found = [self.network.flatten(q.std).log() for q in (self.first, self.last) if isinstance(q, Gaussian)]
        return torch.stack(found) if found else None

    @property
    def buffers(self) -> Buffers:
        """Those that go along the curve."""
        return between(self.network.model, self.first.mean, self.last.mean)

    @property
    def noise(self) -> tuple[float, float] | None:
        a, b = self.first.noise, self.last.noise
        return None if a is None or b is None else (a, b)

    def curve(self, kind: str, mean: Tensor, log_std: Tensor | None) -> Curve:
        """The curve whose inner control points deviate by `mean`, and their log-deviations by `log_std`, (bends, p).

        They deviate from equal distances on the straight line between the ends; whatever is no trainable parameter
        stays on that line.
        """
        inner: list[Dirac | Gaussian] = []
        for k, deviation in enumerate(mean):
            t = (k + 1) / (len(mean) + 1)
            state = self._moved(states.lerp(self.first.mean, self.last.mean, t), deviation)
            noise = None if self.noise is None else (1 - t) * self.noise[0] + t * self.noise[1]
            if log_std is None or self.log_std is None:
                inner.append(Dirac(state, noise))
            else:
                std = torch.exp(torch.lerp(self.log_std[0], self.log_std[1], t) + log_std[k])
                inner.append(Gaussian(state, self.network.unflatten(std), noise))
        return CURVES[kind](self.first, *inner, self.last)

    def _moved(self, state: State, deviation: Tensor) -> dict[str, Tensor]:
        tied = owners(self.first.mean)
        moved = {
            name: (state[name].to(x.dtype) + x).to(state[name].dtype)
            for name, x in self.network.unflatten(deviation).items()
        }
        return tie({name: moved.get(tied[name], x) for name, x in state.items()}, tied)


def ends_of(
    first: Dirac | Gaussian, last: Dirac | Gaussian, model: nn.Module, device: torch.device, thawed: bool = False
) -> Ends:
    """The ends on `device`, with a network that holds what is not trained: buffers and frozen parameters of `first`.

    A frozen parameter stays if the ends agree on it; otherwise, or if all are to be `thawed`, it is trained.
    """
    net = copy.deepcopy(model).to(device)
    like = states.of(net)
    random = isinstance(first, Gaussian) or isinstance(last, Gaussian)
    a, b = (
        _fitted(as_gaussian(q) if random else q, like, where)
        for q, where in ((first, "the first solution"), (last, "the second solution"))
    )
    net.load_state_dict(a.mean, strict=False)
    for name, p in net.named_parameters():
        if p.is_floating_point() and not p.requires_grad:
            p.requires_grad_(thawed or not torch.equal(a.mean[name], b.mean[name]))
    return Ends(a, b, Network(net))


def _fitted(q: Dirac | Gaussian, like: State, where: str) -> Dirac | Gaussian:
    """The solution where a model's own state lies, in its precision and with its ties, which files do not keep."""
    checked = check(q.mean, like=like, where=where)
    mean = tie({name: x.to(like[name]) for name, x in checked.items()}, owners(like))
    if isinstance(q, Dirac):
        return Dirac(mean, q.noise)
    return Gaussian(mean, {name: s.to(mean[name]) for name, s in q.std.items()}, q.noise)
