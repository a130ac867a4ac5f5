"""Alignment by what units do: how the activations of A's units match those of B's (tatro2020 Algorithm 1)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from coset.alignment.activation_sites import Site, SiteKind, places, same_pass, sites, turning_sites, units_on, watch
from coset.alignment.method import AlignmentTask, Cost
from coset.assignment import solve
from coset.core import state as states
from coset.core.errors import CosetError, DataError
from coset.core.functional import evaluation_mode
from coset.core.progress import Event, Progress
from coset.core.state import State
from coset.data import Data, as_split
from coset.symmetries.group import names
from coset.symmetries.symmetry import Symmetry

# A unit whose variance is less than this much of its mean square is constant: float32 resolves no more.
CONSTANT = 1e-12
# How far, relative to the sum of its entries, a constraint may be missed by rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Activations(Cost):
    """Match units that are active together (tatro2020, Algorithm 1); needs a model and data.

    Where matrices may act on units, as on a residual stream, these are compared as vectors: the rotation is that of the
    largest sum of inner products of a's activations and b's, each place counting as much as any other.

    Args:
        kind: Whether activations are compared after ("post") or before ("pre") the activation function.
        measure: "correlation", or "l2", minus the mean squared difference.
        bounded: Match after the activation function, but move nothing further apart before it (tatro2020 Eq. 31).
        batch_size: Examples that run through the model at once.

    Example:
        >>> match = coset.align(a, b, sym, coset.Activations("pre", "l2"), model, digits.train)
        >>> match.objective > match.identity_objective
        True
    """

    name: ClassVar[str] = "activations"
    turns: ClassVar[bool] = True

    kind: Literal["post", "pre"] = "post"
    measure: Literal["correlation", "l2"] = "correlation"
    bounded: bool = False
    batch_size: int = 500

    def __post_init__(self) -> None:
        for name, choices in (("kind", ("post", "pre")), ("measure", ("correlation", "l2"))):
            if getattr(self, name) not in choices:
                raise CosetError(
                    f"The {name} of Activations is {getattr(self, name)!r}; choose {' or '.join(choices)}."
                )

    def scores(self, task: AlignmentTask) -> Mapping[str, Tensor]:
        """set -> scores of A's units against B's.

        Args:
            task: Two solutions, with a model and data.
        """
        model, data = task.model, task.data
        if model is None or data is None:
            raise CosetError('The method "activations" runs the model on data: give model and data.')
        a, b = task.means_for_model()

        def statistics(kind: Literal["pre", "post"], measure: Literal["correlation", "l2"]) -> dict[str, Tensor]:
            task.tell(f"comparing activations ({kind}, {measure})")
            return cross_statistics(
                a, b, task.sym, model, data, kind=kind, measure=measure, batch_size=self.batch_size, device=task.device
            )

        if not bool(as_split(data).inputs.isfinite().all()):
            raise DataError("The inputs have NaN or infinite values, so activations cannot be compared.")
        matrices = statistics(self.kind, self.measure)
        if not self.bounded:
            return matrices
        before = statistics("pre", "l2")
        turning = {group.name for group in task.sym.matrices}
        for name, scores in matrices.items():
            if scores.dim() == 2 and name in before and name not in turning:
                # The constrained optimum as scores of its own: ones at its pairs.
                p = constrained(scores, before[name])
                matrices[name] = torch.zeros_like(scores).scatter_(1, p.to(scores.device).unsqueeze(1), 1.0)
        return matrices


def cross_statistics(
    a: State,
    b: State,
    sym: Symmetry,
    model: nn.Module,
    data: Data,
    kind: Literal["pre", "post"] = "post",
    measure: Literal["correlation", "l2"] = "correlation",
    batch_size: int = 256,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Scores of A's units against B's, larger for those more alike, over all examples and positions.

    correlation
        cov(a_i, b_j) / (std a_i std b_j), tatro2020 Eq. 3; 0 for a constant unit
    l2
        -mean |a_i - b_j|^2

    kind says whether units are compared before or after activation functions; where none meets them, other ops
    count for both. The scores of units seen in several places, such as a residual stream, are averaged (tatro2020
    Appendix D).

    Units of `sym.matrices` have inner products instead, which are divided by the lengths of both activations.

    Returns set -> [n, n] in float64 on the CPU, rows A's units and columns B's, or [copies, copies, n, n] for a set
    that lies over others, A's copy first; of pairs that turn [..., n, 2, 2]. A set that is nowhere seen apart from
    others is absent: heads mostly are, and get their match from their inner units. One pass over the data; the
    activations of A on one batch are kept until B's are there.
    """
    home = next(iter(a.values())).device if device is None else torch.device(device)
    if device is not None:
        model = copy.deepcopy(model).to(home)
    a, b, split = states.to(a, home), states.to(b, home), as_split(data)
    inputs = split.inputs[:batch_size].to(home)
    every = sites(sym, model, a, (inputs,), copies=bool(sym.matrices))
    vectors = turning_sites(sym, every, model, a, (inputs,)) if sym.matrices else {}
    statistics_at = _statistics_at(sym, every, kind, vectors)

    def see(number: int, _: SiteKind, x: Tensor) -> None:
        for statistics in statistics_at.get(number, ()):
            statistics.see(x)

    with evaluation_mode(model):
        expected: list[str] | None = None
        for k, (inputs, _) in enumerate(split.minibatches(batch_size, shuffle=False)):
            inputs = inputs.to(home)
            for state in (a, b):
                ops = watch(model, state, (inputs,), None, see)
                expected = ops if expected is None else expected
                same_pass(model, expected, ops)
            if progress is not None:
                done = min(len(split), (k + 1) * batch_size)
                progress(Event(done, len(split), "example", f"activations of {done} of {len(split)} examples"))
    turning = {group.name for group in sym.matrices}
    by_name: dict[str, list[Tensor]] = {}
    for statistics in (s for row in statistics_at.values() for s in row):
        if isinstance(statistics, _PairStatistics) or statistics.name in turning:
            scores = statistics.products()
        else:
            scores = statistics.correlation() if measure == "correlation" else statistics.l2()
        by_name.setdefault(statistics.name, []).append(scores if sym.sets[statistics.name].over else scores[0, 0])
    return {name: torch.stack(scores).mean(0).cpu() for name, scores in by_name.items()}


def constrained(post: Tensor, pre: Tensor) -> Tensor:
    """(n,) the p of largest sum_i post[i, p(i)] with sum_i pre[i, p(i)] >= trace(pre), tatro2020 Eq. 31.

    post, pre: [n, n] scores as `cross_statistics` gives them, so that Eq. 31's distances are -pre: the alignment of
    post-activations must not move pre-activations further apart than they are.

    The constraint is priced: p maximises post + c pre, with the least c >= 0 for which it holds. That is optimal
    where c = 0. Otherwise it can miss the optimum by the duality gap: p is the best that some price makes, or the
    identity if that is better; it is always feasible.
    """
    post, pre = post.detach().double().cpu(), pre.detach().double().cpu()
    floor = float(pre.trace()) - ROUNDING * float(pre.abs().sum())
    free = solve(post).permutation
    if _value(pre, free) >= floor:
        return free
    safe = solve(pre).permutation
    while True:
        # The price at which both ends of the search are equally good; a better third one replaces its end.
        price = (_value(post, free) - _value(post, safe)) / (_value(pre, safe) - _value(pre, free))
        best = solve(post + price * pre)
        level = _value(post, safe) + price * _value(pre, safe)
        if best.value - level <= ROUNDING * (post.abs().sum() + price * pre.abs().sum()):
            break
        if _value(pre, best.permutation) >= floor:
            safe = best.permutation
        else:
            free = best.permutation
    same = torch.arange(len(post))
    return same if _value(post, same) > _value(post, safe) else safe


def _value(scores: Tensor, p: Tensor) -> float:
    return float(scores.gather(1, p[:, None]).sum())


def _statistics_at(
    sym: Symmetry, every: list[Site], kind: SiteKind, vectors: Mapping[int, set[str]]
) -> dict[int, list[_Statistics | _PairStatistics]]:
    """What to count at each activation. Other ops count only for units that no activation function meets.

    vectors: the groups of matrices that each activation shows. Copies count for these alone: what heads give is seen
    on one axis once it is copied into the order of the next map.
    """
    turning = {group.name for group in sym.matrices}
    pairs = [group.name for group in sym.matrices if group.kind == "phase"]
    # Heads are compared with their insides turned, not as they stand.
    turned = {base for group in sym.matrices for base in group.over}
    active = {name for site in every if site.kind == kind for name in units_on(sym, site.axis)}
    rows: dict[int, list[_Statistics | _PairStatistics]] = {}
    for site in every:
        here = rows.setdefault(site.number, [])
        shown = vectors.get(site.number, set())
        if site.kind in (kind, "other"):
            sets = units_on(sym, site.axis) - (active if site.kind == "other" else set()) - turned - turning
            here += [_Statistics(sym, site, name) for name in sorted(sets)]
        for name in sorted(shown & names(site.axis)):
            at = places(sym, site.axis, name)
            if at is not None and (name not in pairs or len(at) == 2):
                here.append(_PairStatistics(site, name, at) if name in pairs else _Statistics(sym, site, name))
    return rows


class _Statistics:
    """Sums over samples of A's and B's units of one set at one site, in float64.

    With k places of each unit and n units in all copies: cross [k, n, n], sums and squares of A and B [2, k, n].
    """

    def __init__(self, sym: Symmetry, site: Site, name: str) -> None:
        at = places(sym, site.axis, name)
        assert at is not None
        self.site, self.name, self.places = site, name, at
        k, copies, size = at.shape
        self.count = 0
        self.cross = torch.zeros(k, copies * size, copies * size, dtype=torch.float64)
        self.sums = torch.zeros(2, k, copies * size, dtype=torch.float64)
        self.squares = torch.zeros(2, k, copies * size, dtype=torch.float64)
        self.waiting: Tensor | None = None

    def see(self, x: Tensor) -> None:
        """An activation of A, then that of B on the same batch, in turn."""
        units = x.movedim(self.site.dim, -1).flatten(0, -2)[:, self.places.flatten(1).to(x.device)].transpose(0, 1)
        if self.waiting is None:
            self.waiting = units
            return
        first, second, self.waiting = self.waiting.double(), units.double(), None
        self.count += first.shape[1]
        self.cross, self.sums, self.squares = (s.to(x.device) for s in (self.cross, self.sums, self.squares))
        self.cross.baddbmm_(first.mT, second)
        self.sums += torch.stack([first.sum(1), second.sum(1)])
        self.squares += torch.stack([first.square().sum(1), second.square().sum(1)])

    def correlation(self) -> Tensor:
        mean, square = self.sums / self.count, self.squares / self.count
        variance = square - mean.square()
        alive = variance > CONSTANT * square
        inverse = torch.where(alive, torch.where(alive, variance, 1.0).rsqrt(), 0.0)
        covariance = self.cross / self.count - mean[0].unsqueeze(-1) * mean[1].unsqueeze(-2)
        return self._by_copy(covariance * inverse[0].unsqueeze(-1) * inverse[1].unsqueeze(-2))

    def l2(self) -> Tensor:
        apart = self.squares[0].unsqueeze(-1) + self.squares[1].unsqueeze(-2) - 2 * self.cross
        return self._by_copy(-apart.clamp(min=0) / self.count)

    def products(self) -> Tensor:
        """sum a_i b_j over the lengths of both, of all units of a copy."""
        _, copies, size = self.places.shape
        lengths = self.squares.unflatten(-1, (copies, size)).sum((1, -1)).sqrt()  # type: ignore[no-untyped-call]
        both = (lengths[0][:, None] * lengths[1][None, :]).clamp(min=torch.finfo(torch.float64).tiny)
        scores: Tensor = self._by_copy(self.cross) * len(self.places) / both[..., None, None]
        return scores

    def _by_copy(self, scores: Tensor) -> Tensor:
        """[k, n, n] -> [copies, copies, units, units], the mean over places."""
        _, copies, size = self.places.shape
        return scores.mean(0).reshape(copies, size, copies, size).transpose(1, 2)


class _PairStatistics:
    """Sums over samples of products of pairs that turn, A's copies with B's: cross [copies, copies, n, 2, 2]."""

    def __init__(self, site: Site, name: str, at: Tensor) -> None:
        self.site, self.name, self.places = site, name, at
        _, copies, n = at.shape
        self.cross = torch.zeros(copies, copies, n, 2, 2, dtype=torch.float64)
        self.squares = torch.zeros(2, copies, dtype=torch.float64)
        self.waiting: Tensor | None = None

    def see(self, x: Tensor) -> None:
        """An activation of A, then that of B on the same batch, in turn."""
        pairs = x.movedim(self.site.dim, -1).flatten(0, -2)[:, self.places.to(x.device)].double()
        if self.waiting is None:
            self.waiting = pairs
            return
        first, second, self.waiting = self.waiting, pairs, None
        self.cross = self.cross.to(x.device) + torch.einsum("skxn,slyn->xynkl", first, second)
        squares = [z.square().sum((0, 1, 3)) for z in (first, second)]
        self.squares = self.squares.to(x.device) + torch.stack(squares)

    def products(self) -> Tensor:
        """sum a_k b_l over the lengths of both."""
        lengths = self.squares.sqrt()
        both = (lengths[0][:, None] * lengths[1][None, :]).clamp(min=torch.finfo(torch.float64).tiny)
        return self.cross / both[..., None, None, None]
