"""Whether generated networks are new, or copies of those that the generator was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.core.functional import resolve
from coset.core.progress import Progress
from coset.core.show import Shown, Table
from coset.core.state import State, check, members
from coset.data import Data, as_split
from coset.populations.mistake_overlap import overlaps
from coset.populations.nearest_networks import NearestNetworks, nearest, trained
from coset.populations.pair_barriers import align_pairs, draw_pairs
from coset.populations.population import PopulationLike, states_of
from coset.populations.scores import SPREAD_HEADER, Spread, spread, spread_row
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


@dataclass(frozen=True, eq=False, repr=False)
class Closeness(Shown):
    """How close n networks are to those of a training set: one kind of a `Novelty`.

    Args:
        distance: [n] to the nearest modulo symmetry, in canonical coordinates.
        index: [n], which network of the training set that is.
        agreement: [n], the largest overlap |A and B| / |A or B| of a network's mistakes with those of any; None
            without data.

    Example:
        >>> coset.novelty(population[:4], population[4:], sym).kinds["samples"].index.shape
        torch.Size([4])
    """

    distance: Tensor
    index: Tensor
    agreement: Tensor | None

    @property
    def distances(self) -> Spread:
        """How the distances are spread."""
        return spread(self.distance)

    @property
    def agreements(self) -> Spread | None:
        """How the overlaps of mistakes are spread; None without data."""
        return None if self.agreement is None else spread(self.agreement)

    def _shown(self) -> Table:
        rows = [SPREAD_HEADER, spread_row("distance", self.distances)]
        if (agreements := self.agreements) is not None:
            rows.append(spread_row("overlap of mistakes", agreements))
        return Table(f"Closeness of {len(self.distance):,} networks to a training set", rows)


@dataclass(frozen=True, eq=False, repr=False)
class Novelty(Shown):
    """How close samples are to the training set, beside networks of which that is known (arXiv 2506.07998).

    Args:
        kinds: A `Closeness` for each kind: "samples"; "noisy", training networks plus noise, copies in effect;
            "midpoints" of two aligned training networks; "among", training networks to the others; "fresh" runs of the
            training, if given: as new as can be.
        exact: Whether distances are exact, or upper bounds.
        noise: Of the noisy networks, relative.

    Example:
        >>> list(coset.novelty(population[:4], population[4:], sym).kinds)
        ['samples', 'among', 'midpoints', 'noisy']
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
        """The distances of all kinds, in sentences."""
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
                "agreement": None if (agreements := one.agreements) is None else agreements.record(),
            }
            for kind, one in self.kinds.items()
        }
        record = {"memorised": self.memorised, "exact": self.exact, "noise": self.noise, "kinds": kinds}
        return json.dumps(record, allow_nan=False)

    def _shown(self) -> Table:
        rows = [spread_row(NAMES[kind], one.distances) for kind, one in self.kinds.items()]
        bound = "" if self.exact else ", at most"
        share = "" if self.memorised is None else f"; {self.memorised:.1%} of the samples are closer than fresh runs"
        return Table(f"Distances to the nearest training network{bound}{share}", [SPREAD_HEADER, *rows])


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
    progress: Progress | None = None,
) -> Novelty:
    """Distances of samples to the training set modulo symmetry, beside `count` networks of each baseline.

    Args:
        samples: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
        training: The networks that the generator of the samples was trained on.
        sym: The symmetry of the networks.
        model: With `data`, for the agreement of mistakes.
        data: A classification; of a regression there are distances only.
        fresh: Networks trained like the training set, which the generator has not seen.
        noise: Of the noisy networks, relative: each tensor of a canonical network gets
            N(0, (noise * its root mean square)^2).
        count: How many networks of each baseline are made, at most.
        seed: Of the baselines.
        device: Where to work; by default where the training set is.
        progress: Hears of the networks of the training set that were looked at.

    Returns:
        How close the networks of each kind are to the training set.

    Raises:
        StateError: If there are no samples, or fewer than two training networks.
        CosetError: If only one of model and data is given.

    Example:
        >>> novelty = coset.novelty(population[:4], population[4:], sym)
        >>> novelty.kinds["noisy"].distances.mean < novelty.kinds["samples"].distances.mean
        True
    """
    if (model is None) != (data is None):
        raise CosetError("The agreement of mistakes needs both model and data.")
    samples, training = states_of(samples), states_of(training)
    where = resolve(device, training)
    baselines = Baselines(None if fresh is None else states_of(fresh), noise, count, seed)
    compared = comparison(samples, training, sym, baselines, where)
    neighbours = nearest(compared.states, training, sym, apart=compared.apart, device=where, progress=progress)
    overlap: Tensor | None = None
    if model is not None and data is not None and not as_split(data).targets.is_floating_point():
        overlap = overlaps(compared.states, training, model, data, compared.apart, device=where, progress=progress)
    return compared.novelty(neighbours, overlap)


@dataclass(frozen=True, eq=False)
class Baselines:
    """What samples are compared with: fresh runs, and `count` networks of other kinds. See `novelty`."""

    fresh: State | None = None
    noise: float = NOISE
    count: int = COUNT
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Comparison:
    """Networks of all kinds, one after the other, that a training set is searched for at once.

    states: of n networks. sizes: how many are of each kind. apart: [n], the training network that each is. noise: of
    the noisy ones.
    """

    states: State
    sizes: Mapping[str, int]
    apart: Tensor
    noise: float

    def novelty(self, neighbours: NearestNetworks, overlap: Tensor | None) -> Novelty:
        """What the nearest networks say, and the largest overlaps [n] of mistakes."""
        kinds: dict[str, Closeness] = {}
        start = 0
        for kind, n in self.sizes.items():
            rows = slice(start, start + n)
            agreement = None if overlap is None else overlap[rows]
            kinds[kind] = Closeness(neighbours.distance[rows], neighbours.index[rows], agreement)
            start += n
        return Novelty(kinds, neighbours.exact, self.noise)


def comparison(
    samples: State, training: State, sym: Symmetry, baselines: Baselines, device: torch.device
) -> Comparison:
    """The samples, and networks to compare them with: see `novelty`."""
    total, fresh, count = states.size(training), baselines.fresh, baselines.count
    if states.size(samples) == 0:
        raise StateError("Novelty is that of some networks, and there are no samples.")
    if total < 2:
        raise StateError(f"Novelty needs two training networks or more, and there are {total}.")
    generator = torch.Generator().manual_seed(baselines.seed)
    places = torch.randperm(total, generator=generator)[:count]
    populations: dict[str, State] = {"samples": samples} if fresh is None else {"samples": samples, "fresh": fresh}
    populations["among"] = members(training, places)
    populations["midpoints"] = midpoints(training, sym, draw_pairs(total, count, baselines.seed), device)
    populations["noisy"] = noisy(members(training, places), sym, baselines.noise, generator)
    like = members(training, slice(1))
    for kind in ("samples", *(() if fresh is None else ("fresh",))):
        check(members(populations[kind], slice(1)), like=like, where=f"the {NAMES[kind]}")
    sizes = {kind: states.size(population) for kind, population in populations.items()}
    together = {
        name: torch.cat([population[name].to(x.device, x.dtype) for population in populations.values()])
        for name, x in training.items()
    }
    apart = torch.cat([places if kind == "among" else torch.full((n,), -1) for kind, n in sizes.items()])
    return Comparison(together, sizes, apart, baselines.noise)


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
        gaussian = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
        result[name] = x + noise * size * gaussian.to(x.device)
    return result
