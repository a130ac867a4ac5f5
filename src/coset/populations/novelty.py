"""Whether generated networks are new, or copies of those that the generator was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.device import resolve
from coset.core.errors import CosetError, StateError
from coset.core.state import State, check, members
from coset.data import Data, as_split
from coset.populations.diversity import overlaps
from coset.populations.nearest import Nearest, nearest, trained
from coset.populations.pair_barriers import align_pairs, draw_pairs
from coset.populations.population import PopulationLike, states_of
from coset.populations.scores import Spread, spread
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.canonical import canonicalize

MEMORISED = 0.01  # the quantile of the distances of fresh runs below which a sample is no news
COUNT, NOISE = 256, 0.1
NAMES = {
    "samples": "samples",
    "fresh": "fresh runs",
    "among": "training networks, themselves left out",
    "midpoints": "midpoints of aligned training networks",
    "noisy": "training networks with noise",
}


@dataclass(frozen=True, eq=False)
class Closeness:
    """Of each of n networks to those of the training set.

    distance: [n] to the nearest modulo symmetry, in canonical coordinates (see `coset.populations.nearest`); index:
    [n], which one that is; agreement: [n], the largest overlap of its mistakes with those of any (see
    `coset.populations.diversity`).
    """

    distance: Tensor
    index: Tensor
    agreement: Tensor | None

    @property
    def distances(self) -> Spread:
        return spread(self.distance)

    @property
    def agreements(self) -> Spread | None:
        return None if self.agreement is None else spread(self.agreement)


@dataclass(frozen=True, eq=False)
class Novelty:
    """How close samples are to the training set, beside networks of which that is known (arXiv 2506.07998).

    kinds: "samples"; "noisy", training networks plus noise, copies in effect; "midpoints" of two aligned training
    networks; "among", training networks to the others; "fresh" runs of the training, if given: as new as can be.
    exact: whether distances are, or upper bounds (see `coset.populations.nearest`).
    """

    kinds: Mapping[str, Closeness]
    exact: bool
    noise: float

    @property
    def memorised(self) -> float | None:
        """The share of samples that are closer than the 1 % quantile of fresh runs; None without those."""
        if "fresh" not in self.kinds:
            return None
        limit = torch.quantile(self.kinds["fresh"].distance, MEMORISED)
        return float((self.kinds["samples"].distance < limit).double().mean())

    def summary(self) -> list[str]:
        """What was found, in sentences."""
        bound = "" if self.exact else "at most "
        lines = []
        for kind, closeness in self.kinds.items():
            d, agreements = closeness.distances, closeness.agreements
            line = f"{d.n} {NAMES[kind]}: {bound}{d.mean:.4g} from the nearest training network on average"
            line = f"{line}, {bound}{d.least:.4g} the closest"
            lines.append(f"{line}." if agreements is None else f"{line}; mistakes overlap by {agreements.mean:.1%}.")
        if self.memorised is not None:
            lines.append(f"{self.memorised:.1%} of the samples are closer than the closest 1% of fresh runs.")
        return lines

    def to_json(self) -> str:
        """How distances and agreements of all kinds are spread, as one JSON object."""
        kinds = {
            kind: {
                "distance": one.distances.record(),
                "agreement": None if (found := one.agreements) is None else found.record(),
            }
            for kind, one in self.kinds.items()
        }
        record = {"memorised": self.memorised, "exact": self.exact, "noise": self.noise, "kinds": kinds}
        return json.dumps(record, allow_nan=False)


def novelty(
    samples: PopulationLike,
    training: PopulationLike,
    sym: Symmetry,
    model: nn.Module | None = None,
    data: Data | None = None,
    fresh: PopulationLike | None = None,
    noise: float = NOISE,
    count: int = COUNT,
    seed: int = 0,
    *,
    device: str | torch.device | None = None,
) -> Novelty:
    """Distances of samples to the training set modulo symmetry, beside `count` networks of each baseline.

    samples, training, fresh
        populations; fresh: networks trained like the training set, which the generator has not seen
    model, data
        give both for the agreement of mistakes, of classifiers only
    noise
        of the noisy networks, relative: each tensor of a canonical network gets N(0, (noise * its root mean square)^2)
    """
    if (model is None) != (data is None):
        raise CosetError("The agreement of mistakes needs both model and data.")
    samples, training = states_of(samples), states_of(training)
    fresh = None if fresh is None else states_of(fresh)
    where = resolve(device, training)
    asked = compared(samples, training, sym, fresh, noise, count, seed, where)
    found = nearest(asked.states, training, sym, apart=asked.apart, device=where)
    overlap: Tensor | None = None
    if model is not None and data is not None and not as_split(data).targets.is_floating_point():
        overlap = overlaps(asked.states, training, model, data, asked.apart, device=where)
    return asked.novelty(found, overlap)


@dataclass(frozen=True, eq=False)
class Compared:
    """Networks of all kinds, one after the other, that a training set is searched for at once.

    states: of n networks. sizes: how many are of each kind. apart: [n], the training network that each is. noise: of
    the noisy ones.
    """

    states: State
    sizes: Mapping[str, int]
    apart: Tensor
    noise: float

    def novelty(self, found: Nearest, overlap: Tensor | None) -> Novelty:
        """What the nearest networks say, and the largest overlaps [n] of mistakes."""
        kinds: dict[str, Closeness] = {}
        start = 0
        for kind, n in self.sizes.items():
            rows = slice(start, start + n)
            kinds[kind] = Closeness(found.distance[rows], found.index[rows], None if overlap is None else overlap[rows])
            start += n
        return Novelty(kinds, found.exact, self.noise)


def compared(
    samples: State,
    training: State,
    sym: Symmetry,
    fresh: State | None,
    noise: float,
    count: int,
    seed: int,
    device: torch.device,
) -> Compared:
    """The samples, and networks to compare them with: see `novelty`."""
    total = states.size(training)
    if states.size(samples) == 0:
        raise StateError("Novelty is that of some networks, and there are no samples.")
    if total < 2:
        raise StateError(f"Novelty needs two training networks or more, and there are {total}.")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(total, generator=generator)[:count]
    populations: dict[str, State] = {"samples": samples} if fresh is None else {"samples": samples, "fresh": fresh}
    populations["among"] = members(training, chosen)
    populations["midpoints"] = midpoints(training, sym, draw_pairs(total, count, seed), device)
    populations["noisy"] = noisy(members(training, chosen), sym, noise, generator)
    like = members(training, slice(1))
    for kind in ("samples", *(() if fresh is None else ("fresh",))):
        check(members(populations[kind], slice(1)), like=like, where=f"the {NAMES[kind]}")
    sizes = {kind: states.size(population) for kind, population in populations.items()}
    joined = {
        name: torch.cat([population[name].to(x.device, x.dtype) for population in populations.values()])
        for name, x in training.items()
    }
    apart = torch.cat([chosen if kind == "among" else torch.full((n,), -1) for kind, n in sizes.items()])
    return Compared(joined, sizes, apart, noise)


def midpoints(training: State, sym: Symmetry, pairs: Tensor, device: torch.device) -> dict[str, Tensor]:
    """(c(v) + g c(w)) / 2 for the pairs [p, 2] of networks, canonical and with w aligned to v."""
    a, b = (canonicalize(states.to(members(training, one), device), sym).state for one in pairs.unbind(1))
    return states.lerp(a, sym.act(align_pairs(a, b, sym), b), 0.5)


def noisy(population: State, sym: Symmetry, noise: float, generator: torch.Generator) -> dict[str, Tensor]:
    """c(v) plus Gaussian noise in the floating tensors that are trained, relative to the root mean square of each."""
    result = canonicalize(population, sym).state
    for name in trained(result, sym):
        x = result[name]
        size = x.flatten(1).square().mean(1).sqrt().reshape(-1, *[1] * (x.dim() - 1))
        drawn = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
        result[name] = x + noise * size * drawn.to(x.device)
    return result
