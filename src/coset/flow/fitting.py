"""From populations of networks to a flow that generates more of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from coset.alignment.align import align_many
from coset.alignment.population import PopulationMatch
from coset.core.checks import check_choices, check_positive
from coset.core.device import resolve
from coset.core.errors import CosetError, StateError
from coset.core.progress import Progress
from coset.core.state import State
from coset.data import Data, as_split
from coset.flow.base import Base, measured_base
from coset.flow.conditions import Conditions, columns_of
from coset.flow.field import Architecture, Field, Prediction, Standardize, units
from coset.flow.fitted import Fitted
from coset.flow.function_error import FunctionError
from coset.flow.matching import Coupling, Independent, Learning, Matching, Part, Training
from coset.flow.space import Geometry, Space, holding, space
from coset.flow.transport import Transport, refuse_many_conditions
from coset.populations.population import Population
from coset.symmetries.symmetry import Symmetry
from coset.training.folder import RowFolder, open_folder
from coset.training.loop import check_run, drive
from coset.training.network import check_call
from coset.training.randomness import Randomness, seeded
from coset.weightspace.canonical import canonicalize
from coset.weightspace.graph import Wiring, neural_graph

Pairing = Literal["training", "ot", "independent"]


@dataclass(frozen=True)
class Plan:
    """geometry: see `coset.flow.space.Space`.

    coupling: which start belongs to which network. "training": its own, which the population must know. "ot": the
    closest of new ones in groups of `group`, modulo permutations if no hidden units meet. "independent": any.
    architecture, predict: of the field; whether its network predicts velocities or end points.
    conditions: labels of the population that samples can be asked for.
    align: bring all networks in the order of the first one before; by default where the coupling is not "training".
    """

    geometry: Geometry = "geometric"
    coupling: Pairing = "training"
    architecture: Architecture = field(default_factory=Architecture)
    predict: Prediction = "velocity"
    conditions: tuple[str, ...] = ()
    align: bool | None = None
    group: int = 64

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "group")
        if len(set(self.conditions)) < len(self.conditions):
            raise CosetError(f"The conditions {', '.join(self.conditions)} name one twice.")
        if self.align and self.coupling == "training":
            raise CosetError("Networks that are coupled with their own starts keep their order: leave align out.")

    @property
    def aligns(self) -> bool:
        return self.coupling != "training" if self.align is None else self.align


log = logging.getLogger(__name__)

FEW = 4  # networks for each start, above which there are few
MEASURED = 4096  # networks whose spread is measured
PAIRS = 256  # paths whose outputs are measured


@dataclass(frozen=True, eq=False)
class _Known:
    """Networks of one width and their starts, if those are known, [n, D] each; their conditions [n, k] and runs [n]."""

    space: Space
    ends: Tensor
    starts: Tensor | None
    conditions: Tensor | None
    runs: Tensor | None

    @property
    def begun(self) -> Tensor:
        """What a base is like: untrained networks, or the networks themselves where those are not known."""
        return self.ends if self.starts is None else self.starts

    def divided(self, count: int) -> tuple[_Known, _Known | None]:
        """Networks to learn from, and `count` others: the last, or of many conditions or runs some from everywhere.

        Then none of those is of a run that is learned from, which has others like it.
        """
        n = len(self.ends)
        if count == 0:
            return self, None
        if count >= n:
            raise CosetError(f"Matching: unseen is {count}, which leaves none of {n} networks to learn.")
        place = torch.arange(n) if self.runs is None else _segments(self.runs)
        number = int(place[-1]) + 1
        if number == 1 or (number == n and self.conditions is None):
            return self._only(slice(n - count)), self._only(slice(n - count, None))  # views, where there may be many
        some = math.ceil(count * number / n)
        if some == number:
            raise CosetError(f"Matching: unseen is {count}, which leaves none of {number} runs to learn.")
        chosen = (2 * torch.arange(some) + 1) * number // (2 * some)
        held = torch.isin(place, chosen).to(self.ends.device)
        return self._only(~held), self._only(held.nonzero().squeeze(1)[:count])

    def _only(self, part: slice | Tensor) -> _Known:
        starts, conditions = (None if x is None else x[part] for x in (self.starts, self.conditions))
        return _Known(self.space, self.ends[part], starts, conditions, None)


def learn(
    plan: Plan,
    populations: Sequence[tuple[Symmetry, Population]],
    settings: Matching,
    model: nn.Module | None,
    data: Data | None,
    *,
    seed: int,
    device: str | torch.device | None,
    out: str | Path | None,
    progress: Progress | None,
    checkpoint_seconds: float,
) -> Fitted:
    """See `coset.Flow.fit`."""
    check_run(1, checkpoint_seconds, seed)
    for _, own in populations:
        if not len(own):
            raise StateError("A flow is learned from some networks, and this population is empty.")
    where = resolve(device, populations[0][1].states)
    labels = [own.labels for _, own in populations]
    conditions = Conditions.measured(plan.conditions, labels).to(where) if plan.conditions else None
    known = [_known(plan, sym, own, conditions, where) for sym, own in populations]
    divided = [own.divided(settings.unseen) for own in known]
    if plan.coupling == "ot":
        for learned, _ in divided:
            refuse_many_conditions(learned.conditions)
    first = divided[0][0]
    field = _field(plan, first, 0 if conditions is None else conditions.size, seed).to(where)
    base = measured_base(first.space, first.begun, covers=first.starts is None)
    function = _function(first, base, model, data, len(known)) if settings.function else None
    parts = [
        Part(
            field.on(own.space),
            units(own.space, field.standardize),
            _coupled(plan, own, base),
            function,
            None if left is None else _coupled(plan, left, base),
        )
        for own, left in divided
    ]
    randomness = Randomness(seed, [(0,)], where)
    run = Learning(parts, settings, randomness, progress)
    folders = []
    if out is not None:
        tensors = [x for own in known for x in (own.ends, own.starts, own.conditions) if x is not None]
        asked = asdict(plan)
        more = {**asked.pop("architecture"), **asked, "outputs": None if function is None else function.known}
        folder = open_folder(out, settings, seed, field, tensors, where, **more)
        folder.write_settings()
        folders = [RowFolder(folder.path / "flow")]
    group, name = [(0,)], "The flow"
    epochs = settings.epochs
    drive(run, epochs, None, randomness, group, folders, where, progress, checkpoint_seconds, lambda row: name)
    run.finish()
    return Fitted(field.requires_grad_(False), base, conditions, settings.precision, populations[0][1].about)


def _known(plan: Plan, sym: Symmetry, own: Population, conditions: Conditions | None, where: torch.device) -> _Known:
    template = {name: x[0] for name, x in own.states.items()}
    room = space(holding(sym, _shared(sym, own)), template, plan.geometry, _floors(sym, own)).to(where)
    given: State = own.states
    if plan.aligns:
        given = _aligned({name: x.to(where) for name, x in given.items()}, room)
    if plan.coupling == "training" and own.starts is None:
        raise CosetError(
            "The coupling 'training' needs to know where each network began, which this population does not: use 'ot'."
        )
    starts = None if own.starts is None else room.encode(own.starts)
    if plan.coupling == "training" and starts is not None:
        _warn_of_few(starts, room.at_once)
    asked = {name: x.to(where) for name, x in own.labels.items() if name in plan.conditions}
    matrix = None if conditions is None else conditions.matrix(asked, len(own))
    return _Known(room, room.encode(given), starts, matrix, own.labels.get("run"))


def _segments(runs: Tensor) -> Tensor:
    """[n] numbers from zero on of stretches of one run; populations that were joined count their runs anew."""
    flat = columns_of(runs).cpu()
    return torch.cat([torch.zeros(1, dtype=torch.int64), (flat[1:] != flat[:-1]).any(1).long().cumsum(0)])


def _warn_of_few(starts: Tensor, at_once: int) -> None:
    """Iterations of one run have one start, so few runs are few starts, and new ones are unlike all of them."""
    distinct = len({value for part in torch.split(starts, at_once) for value in part.double().sum(1).tolist()})
    if distinct * FEW < len(starts):
        log.warning(
            "these %d networks have %d different starts: coupled with them, a flow learns where these lead and not "
            "where others do; give more runs, or couple by 'ot'",
            len(starts),
            distinct,
        )


def _shared(sym: Symmetry, own: Population) -> list[str]:
    """Buffers that all networks share, as constants of a model do: they are no coordinates."""
    populations = [own.states] if own.starts is None else [own.states, own.starts]

    def same(name: str) -> bool:
        first = own.states[name][:1]
        return all(bool((states[name] == first).all()) for states in populations)

    return [name for name in _buffers(sym, own) if same(name)]


def _floors(sym: Symmetry, own: Population) -> dict[str, float]:
    """Zero for buffers that no network has below it, as variances."""
    return {name: 0.0 for name in _buffers(sym, own) if bool((own.states[name] >= 0).all())}


def _buffers(sym: Symmetry, own: Population) -> list[str]:
    return [name for name in sym.buffers if name in own.states and own.states[name].is_floating_point()]


def _aligned(population: State, room: Space) -> State:
    """The networks in the order of the first one; in canonical form where factors do not count."""
    reference = {name: x[0] for name, x in population.items()}
    if room.geometry != "euclidean":
        return canonicalize(population, room.sym, reference).state
    found = align_many(population, room.sym, reference)
    assert isinstance(found, PopulationMatch)
    return room.sym.act(found.element.to(next(iter(population.values())).device), population)


def _field(plan: Plan, known: _Known, condition: int, seed: int) -> Field:
    room = known.space
    wiring = Wiring.of(room.sym, room.template)
    standardize = Standardize(wiring).to(known.ends.device)
    both = [x[:MEASURED] for x in (known.ends, known.starts) if x is not None]
    standardize.measure(neural_graph(room.manifold.chart.state(torch.cat(both), room.single), wiring))
    with seeded(seed, (0,)):
        network = plan.architecture.build(wiring, condition)
    return Field(room, network, standardize, plan.predict)


def _function(
    known: _Known, base: Base, model: nn.Module | None, data: Data | None, widths: int
) -> FunctionError | None:
    if model is None and data is None:
        return None
    if model is None or data is None:
        raise CosetError("Errors of outputs need both, a model and data.")
    if widths > 1:
        raise CosetError("Errors of outputs are those of one model: fit populations of several widths without it.")
    split = as_split(data).to(known.ends.device)
    check_call(model, split, known.ends.device)
    ends = known.ends[:PAIRS]
    generator = torch.Generator(ends.device).manual_seed(0)
    starts = base.draw(len(ends), generator) if known.starts is None else known.starts[:PAIRS]
    return FunctionError.of(model, known.space, split, starts, ends)


def _coupled(plan: Plan, known: _Known, base: Base) -> Coupling:
    if plan.coupling == "training" and known.starts is not None:
        return Training(known.ends, known.conditions, known.starts)
    own = base.on(known.space)
    if plan.coupling == "independent":
        return Independent(known.ends, known.conditions, own)
    return Transport(known.ends, known.conditions, own, plan.group)
