"""Symmetries as JSON, which inference writes and a person can write by hand, and elements in files.

    {"groups": {"hidden": 512, "heads": 4, "inner": {"size": 16, "over": ["heads"]}},
     "tensors": {"0.weight": ["hidden", 784], "0.bias": ["hidden"], "1.weight": [10, "hidden"],
                 "qkv.weight": [{"concat": [["heads", "inner"], ["heads", "inner"], ["heads", "value"]]}, 64]}}

Tensors that are not trained, such as running statistics, may be listed under "buffers": costs leave them out. A
second name of a tensor may be given its first under "tied": a state may leave either out. "notes" are sentences, and
"conditional" the groups that hold where the scores that rank their units differ. "matrices" say where matrices act:

    {"stream": {"kind": "orthogonal", "members": [["0.weight", 0], ["1.weight", 1]], "gains": ["norm.weight"]}}

with "linear" ones [tensor, axis, occurrence, true] where the inverse transpose acts, and with pairs the occurrence of
the second of each as a fifth entry, or null.

An axis is the name of a group, a number (a fixed order of that many positions), a list (a product, outermost
first), or ``{"concat": [...]}`` or ``{"interleave": [...]}``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from coset.core import json_reader
from coset.core.checkpoint import open_state, save_state
from coset.core.errors import StateError, SymmetryError
from coset.core.json_reader import shown
from coset.symmetries.group import (
    COMPOSITES,
    MATRICES,
    Axis,
    Concat,
    Element,
    Fixed,
    FixedAxis,
    IndexSet,
    Interleave,
    MatrixAxis,
    MatrixGroup,
    MatrixKind,
    Product,
    ScaledAxis,
    Scaling,
    Units,
    names,
)
from coset.symmetries.matrices import pairs_on
from coset.symmetries.symmetry import Symmetry

LARGEST = 2**63  # positions of an axis
FACTORS = 64  # of a product: more than that are no tensor's
METADATA = "coset.symmetry"  # under this name the file of an element says to which symmetry it belongs
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
PERMUTATION, SCALE, MATRIX = "permutation/", "scale/", "matrix/"
ORTHOGONAL = 1e-4  # how far from orthogonal the matrices of a file may be: float32 and many products


def symmetry_to_json(sym: Symmetry) -> str:
    """The symmetry as `symmetry_from_json` reads it, without the groups that no tensor has."""
    used = {name for axes in sym.axes.values() for axis in axes for name in names(axis)}
    raw = {
        "groups": {name: set_to_json(one) for name, one in sym.sets.items() if name in used},
        "tensors": {name: [axis_to_json(axis) for axis in axes] for name, axes in sym.axes.items()},
        "scalings": {scaling.name: scaling_to_json(scaling) for scaling in sym.scalings},
        "fixed": [[f.tensor, f.axis, f.size, f.op, f.reason] for f in sym.fixed],
        "buffers": [name for name in sym.axes if name in sym.buffers],
        "tied": dict(sym.tied),
        "notes": list(sym.notes),
        "conditional": [name for name in sym.sets if name in sym.conditional],
        "matrices": {group.name: matrices_to_json(group) for group in sym.matrices},
        "blocked": {group.name: matrices_to_json(group) for group in sym.blocked},
    }
    return json.dumps(raw, indent=1)


def symmetry_from_json(text: str) -> Symmetry:
    """Read a symmetry that inference or a person wrote."""
    raw = parse(text)
    sets = sets_from_json(raw["groups"])
    axes: dict[str, tuple[Axis, ...]] = {}
    for tensor, entries in raw["tensors"].items():
        where = f"tensor {tensor!r}"
        axes[tensor] = tuple(axis_from_json(entry, sets, f"{where} axis {d}") for d, entry in enumerate(entries))
        check_bases(where, axes[tensor], sets)
    scalings = tuple(scaling_from_json(n, r, sets, axes) for n, r in raw.get("scalings", {}).items())
    fixed = tuple(FixedAxis(*entry) for entry in raw.get("fixed", ()))
    buffers, tied = frozenset(raw.get("buffers", ())), raw.get("tied", {})
    notes, conditional = tuple(raw.get("notes", ())), frozenset(raw.get("conditional", ()))
    matrices, blocked = (
        tuple(matrices_from_json(n, r, sets, axes) for n, r in raw.get(key, {}).items())
        for key in ("matrices", "blocked")
    )
    return Symmetry(
        sets,
        axes,
        scalings,
        fixed,
        buffers=buffers,
        tied=tied,
        notes=notes,
        conditional=conditional,
        matrices=matrices,
        blocked=blocked,
    )


def symmetry_of_file(text: str) -> Symmetry:
    """Read a symmetry that came with a file, in which there are no more copies of units than tensors have places."""
    sym = symmetry_from_json(text)
    used = {name for row in sym.axes.values() for axis in row for name in names(axis)}
    for one in sym.sets.values():
        if one.over and one.name not in used:
            raise SymmetryError(f"group {one.name!r} lies over others, and no tensor has it")
    return sym


def axis_to_json(axis: Axis) -> Any:
    if isinstance(axis, Units):
        return axis.name
    if isinstance(axis, Fixed):
        return axis.size
    inner = [axis_to_json(part) for part in axis.parts]
    return inner if isinstance(axis, Product) else {type(axis).__name__.lower(): inner}


def axis_from_json(raw: Any, sets: Mapping[str, IndexSet], where: str) -> Axis:
    if isinstance(raw, str):
        if raw not in sets:
            raise SymmetryError(f"{where} names the group {raw!r}, which is not declared under 'groups'")
        return Units(raw, sets[raw].size)
    if is_size(raw):
        return Fixed(raw)
    kind, parts = "product", raw
    if isinstance(raw, dict) and len(raw) == 1:
        kind, parts = next(iter(raw.items()))
    if kind in COMPOSITES and isinstance(parts, list) and parts and (kind != "product" or parts is raw):
        axis = COMPOSITES[kind](tuple(axis_from_json(part, sets, where) for part in parts))
        _check_parts(axis, where)
        if not isinstance(axis, Interleave) or len({part.size for part in axis.parts}) == 1:
            return axis
    forms = "a group name, a size, a list, or a concat or interleave of axes"
    raise SymmetryError(f"{where} is {shown(raw)}; an axis is {forms}")


def _check_parts(axis: Product | Concat | Interleave, where: str) -> None:
    """Refuse what stands for more positions than a tensor has, or for many blocks of none."""
    if axis.size >= LARGEST:
        raise SymmetryError(f"{where} has more positions than a tensor can have")
    if any(part.size == 0 for part in axis.parts):
        raise SymmetryError(f"{where} has a part without any position")
    if isinstance(axis, Product) and len(axis.parts) > FACTORS:
        raise SymmetryError(f"{where} is a product of {len(axis.parts)} parts, more than {FACTORS}")


def is_size(raw: Any) -> TypeGuard[int]:
    """Whether a value is a number of positions that a tensor can have."""
    return isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < LARGEST


def scaling_to_json(scaling: Scaling) -> dict[str, Any]:
    members = [
        [m.tensor, m.axis, m.power, *([m.offset, m.occurrence] if m.offset or m.occurrence else [])]
        for m in scaling.members
    ]
    out: dict[str, Any] = {"units": scaling.units, "kind": scaling.kind, "members": members}
    if not scaling.exact:
        out["approximate"] = scaling.note
    if scaling.evaluation_only:
        out["evaluation_only"] = True
    return out


def scaling_from_json(
    name: str, raw: Any, sets: Mapping[str, IndexSet], axes: Mapping[str, tuple[Axis, ...]]
) -> Scaling:
    where = f"scaling {name!r}"
    if not isinstance(raw, dict) or not isinstance(raw.get("members"), list) or "units" not in raw:
        raise SymmetryError(f"{where} needs 'units' and 'members' as [tensor, axis, power]")
    units, kind = raw["units"], raw.get("kind", "scaling")
    if not isinstance(units, str):
        raise SymmetryError(f"{where} has the units {shown(units)}; they are the name of a group, or empty")
    if units and units not in sets:
        raise SymmetryError(f"{where} names the group {units!r}, which is not declared under 'groups'")
    if kind not in ("scaling", "sign"):
        raise SymmetryError(f"{where} has the kind {shown(kind)}; it is 'scaling' or 'sign'")
    over = sets[units].over if units else ()
    return Scaling(
        name=name,
        units=units,
        size=sets[units].size if units else 1,
        members=tuple(_member_from_json(where, member, units, axes) for member in raw["members"]),
        copies=math.prod(sets[base].size for base in over),
        over=over,
        kind=kind,
        exact="approximate" not in raw,
        note=str(raw.get("approximate", "")),
        evaluation_only=bool(raw.get("evaluation_only", False)),
    )


def _member_from_json(where: str, raw: Any, units: str, axes: Mapping[str, tuple[Axis, ...]]) -> ScaledAxis:
    if not _is_member(raw):
        raise SymmetryError(f"{where} has the member {shown(raw)}; a member is [tensor, axis, power]")
    member = ScaledAxis(*raw)
    if member.tensor not in axes:
        raise SymmetryError(f"{where} names the tensor {member.tensor!r}, which is not under 'tensors'")
    if member.axis is None and not units:
        return member
    of = axes[member.tensor]
    if member.axis is None or not 0 <= member.axis < len(of) or units not in names(of[member.axis]):
        raise SymmetryError(f"{where}: axis {member.axis} of {member.tensor!r} does not have the units {units!r}")
    occurrences = _occurrences(of[member.axis], units)
    if not 0 <= member.occurrence < occurrences:
        at = f"axis {member.axis} of {member.tensor!r}"
        raise SymmetryError(f"{where}: {at} has {units!r} {occurrences} times, not at occurrence {member.occurrence!r}")
    return member


def matrices_to_json(group: MatrixGroup) -> dict[str, Any]:
    def member(m: MatrixAxis) -> list[Any]:
        full = [m.tensor, m.axis, m.occurrence, m.dual, m.partner]
        return full if group.kind == "phase" else full[:4] if m.dual else full[:3] if m.occurrence else full[:2]

    out: dict[str, Any] = {"kind": group.kind, "members": [member(m) for m in group.members]}
    return {**out, "gains": list(group.gains)} if group.gains else out


def matrices_from_json(
    name: str, raw: Any, sets: Mapping[str, IndexSet], axes: Mapping[str, tuple[Axis, ...]]
) -> MatrixGroup:
    where = f"the matrices of {name!r}"
    if not isinstance(raw, dict) or not isinstance(raw.get("members"), list) or raw.get("kind") not in MATRICES:
        raise SymmetryError(f"{where} need a 'kind', {', '.join(MATRICES)}, and 'members' as [tensor, axis]")
    kind, gains = raw["kind"], raw.get("gains", [])
    if name not in sets:
        raise SymmetryError(f"{where} name a group that is not declared under 'groups'")
    if (kind == "phase") == sets[name].movable:
        raise SymmetryError(
            f"{where} are of the kind {kind!r}: pairs that turn have a fixed order, and other units none"
        )
    if not isinstance(gains, list) or not all(isinstance(gain, str) and gain in axes for gain in gains):
        raise SymmetryError(f"{where} have the gains {shown(gains)}; they are names under 'tensors'")
    members = tuple(_turned_from_json(where, name, kind, member, axes) for member in raw["members"])
    one = sets[name]
    copies = math.prod(sets[base].size for base in one.over)
    return MatrixGroup(name, kind, one.size, members, copies, one.over, tuple(gains))


def _turned_from_json(
    where: str, units: str, kind: MatrixKind, raw: Any, axes: Mapping[str, tuple[Axis, ...]]
) -> MatrixAxis:
    kinds: tuple[Any, ...] = (str, int, int, bool, int | None)
    plain = isinstance(raw, list) and 2 <= len(raw) <= len(kinds)
    if not plain or not all(
        isinstance(x, each) and (each is bool) == isinstance(x, bool) for x, each in zip(raw, kinds, strict=False)
    ):
        raise SymmetryError(f"{where} have the member {shown(raw)}; a member is [tensor, axis]")
    member = MatrixAxis(*raw)
    if member.tensor not in axes:
        raise SymmetryError(f"{where} name the tensor {member.tensor!r}, which is not under 'tensors'")
    of = axes[member.tensor]
    at = f"axis {member.axis} of {member.tensor!r}"
    if not 0 <= member.axis < len(of) or units not in names(of[member.axis]):
        raise SymmetryError(f"{where}: {at} does not have the units {units!r}")
    occurrences = _occurrences(of[member.axis], units)
    if not 0 <= member.occurrence < occurrences:
        raise SymmetryError(f"{where}: {at} has {units!r} {occurrences} times, not at {member.occurrence}")
    if member.dual and kind != "linear":
        raise SymmetryError(f"{where}: the inverse transpose of an orthogonal matrix is itself, at {at}")
    pairs = pairs_on(of[member.axis], units) if kind == "phase" else [(member.occurrence, None)]
    if (member.occurrence, member.partner) not in pairs:
        raise SymmetryError(f"{where}: {at} has no such pair of {units!r}")
    return member


def _is_member(raw: Any) -> bool:
    """Whether a value is [tensor, axis, power] or has offset and occurrence, too."""
    kinds: tuple[Any, ...] = (str, int | None, int | float, int | float, int)
    return (
        isinstance(raw, list)
        and 3 <= len(raw) <= len(kinds)
        and all(isinstance(x, kind) and not isinstance(x, bool) for x, kind in zip(raw, kinds, strict=False))
    )


def _occurrences(axis: Axis, units: str) -> int:
    """How many times the units stand on the axis, by its form alone."""
    if isinstance(axis, Units):
        return int(axis.name == units)
    return 0 if isinstance(axis, Fixed) else sum(_occurrences(part, units) for part in axis.parts)


@dataclass
class _Place:
    """One occurrence of a group on an axis, with those it forms a product with."""

    name: str
    axis: int
    beside: list[str]


def check_bases(where: str, axes: Sequence[Axis], sets: Mapping[str, IndexSet]) -> None:
    """Which copy of a fibred group an entry belongs to must be clear.

    Its base stands beside it in a product, once, or else once, outside of blocks, on one of the other axes.
    """
    places: list[_Place] = []
    plain: list[tuple[int, str]] = []
    for d, axis in enumerate(axes):
        plain += [(d, name) for name in _walk(axis, d, places)]
    for place in places:
        for base in sets[place.name].over:
            beside = place.beside.count(base)
            elsewhere = sum(name == base and d != place.axis for d, name in plain)
            if (beside or elsewhere) != 1:
                rule = "must stand beside it in one product, or once on another axis"
                raise SymmetryError(f"{where}: {place.name!r} on axis {place.axis} lies over {base!r}, which {rule}")


def _walk(axis: Axis, d: int, places: list[_Place]) -> list[str]:
    """Collect the occurrences of groups; returns those that are not in a block or lane."""
    if isinstance(axis, Fixed):
        return []
    if isinstance(axis, Units):
        places.append(_Place(axis.name, d, []))
        return [axis.name]
    marks, direct = [len(places)], []
    for part in axis.parts:
        direct.append(_walk(part, d, places))
        marks.append(len(places))
    if not isinstance(axis, Product):
        return []
    for k, (start, stop) in enumerate(itertools.pairwise(marks)):
        for place in places[start:stop]:
            place.beside += [name for other, names_ in enumerate(direct) if other != k for name in names_]
    return [name for names_ in direct for name in names_]


def sets_from_json(raw: Any) -> dict[str, IndexSet]:
    if not isinstance(raw, dict):
        raise SymmetryError("'groups' must map each group to its size")
    sets: dict[str, IndexSet] = {}
    for name, entry in raw.items():
        form = entry if isinstance(entry, dict) else {"size": entry}
        size, over = form.get("size"), form.get("over", [])
        if not is_size(size) or size < 1:
            raise SymmetryError(f"group {name!r} needs a positive size")
        if not isinstance(over, list) or not all(isinstance(base, str) for base in over):
            raise SymmetryError(f"group {name!r} lies over {shown(over)}; 'over' is a list of groups")
        sets[name] = IndexSet(name, size, tuple(over), bool(form.get("movable", True)))
    for name, over in ((one.name, one.over) for one in sets.values()):
        if len(set(over)) < len(over):
            raise SymmetryError(f"group {name!r} lies over a group twice: {', '.join(over)}")
        if len(over) > FACTORS:
            raise SymmetryError(f"group {name!r} lies over {len(over)} groups, more than {FACTORS}")
        for base in over:
            if base not in sets:
                raise SymmetryError(f"group {name!r} lies over {base!r}, which is not declared")
            if set(sets[base].over) - set(over) or name in sets[base].over:
                raise SymmetryError(f"group {name!r} must also lie over the bases of {base!r}")
    return sets


def set_to_json(one: IndexSet) -> Any:
    if not one.over and one.movable:
        return one.size
    out: dict[str, Any] = {"size": one.size}
    if one.over:
        out["over"] = list(one.over)
    if not one.movable:
        out["movable"] = False
    return out


def parse(text: str) -> dict[str, Any]:
    raw = json_reader.parse(text, "the symmetry", SymmetryError)
    if not isinstance(raw, dict) or "groups" not in raw or "tensors" not in raw:
        raise SymmetryError("a symmetry needs the keys 'groups' and 'tensors'")
    if not isinstance(raw["tensors"], dict):
        raise SymmetryError("'tensors' must map each tensor to the list of its axes")
    for tensor, entries in raw["tensors"].items():
        if not isinstance(entries, list) or len(entries) > FACTORS:
            raise SymmetryError(f"tensor {tensor!r} is {shown(entries)}, not the list of its axes")
    if not isinstance(raw.get("scalings", {}), dict):
        raise SymmetryError("'scalings' must map each scaling to its units and members")
    fixed = raw.get("fixed", [])
    if not isinstance(fixed, list) or not all(_is_fixed(entry) for entry in fixed):
        raise SymmetryError("'fixed' must be a list of [tensor, axis, size, op, reason]")
    buffers = raw.get("buffers", [])
    if not isinstance(buffers, list) or not all(isinstance(name, str) for name in buffers):
        raise SymmetryError("'buffers' must be a list of names of tensors")
    tied = raw.get("tied", {})
    if not isinstance(tied, dict) or not all(isinstance(name, str) for name in tied.values()):
        raise SymmetryError("'tied' must map second names of tensors to their first")
    notes = raw.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise SymmetryError("'notes' must be a list of sentences")
    for key in ("matrices", "blocked"):
        if not isinstance(raw.get(key, {}), dict):
            raise SymmetryError(f"'{key}' must map groups to where matrices act on their units")
    conditional = raw.get("conditional", [])
    if not isinstance(conditional, list) or not all(isinstance(name, str) for name in conditional):
        raise SymmetryError("'conditional' must be a list of names of groups")
    return raw


def _is_fixed(raw: Any) -> bool:
    match raw:
        case [str(), axis, size, str(), str()]:
            return is_size(axis) and is_size(size)
    return False


def save_element(path: str | Path, sym: Symmetry, element: Element) -> None:
    """Write a `.safetensors` file with permutations, factors, matrices, and the symmetry as metadata, atomically."""
    tensors = {PERMUTATION + name: p for name, p in element.permutations.items()}
    tensors |= {SCALE + name: c for name, c in element.scales.items()}
    tensors |= {MATRIX + name: m for name, m in element.matrices.items()}
    save_state(tensors, path, {METADATA: sym.to_json()})


def load_element(path: str | Path) -> tuple[Symmetry, Element]:
    """Read what `save_element` wrote; permutations that are none, and matrices of no such group, are refused."""
    stored = open_state(path)
    if METADATA not in stored.metadata:
        raise StateError(f"{path} holds no element of a symmetry; `coset align` writes one beside its result.")
    sym = symmetry_of_file(stored.metadata[METADATA])
    permutations: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    factors = {scaling.name: scaling for scaling in sym.scalings}
    matrices: dict[str, Tensor] = {}
    turning = {group.name: group for group in sym.matrices}
    for key in stored:
        kind, _, name = key.partition("/")
        x = stored[key]
        if kind == "permutation" and name in sym.sets:
            size = sym.sets[name].size
            shape = (sym.copies(name), size) if sym.sets[name].over else (size,)
            is_row = x.dtype in INTEGERS and x.shape == shape
            if not is_row or not bool((x.long().sort(-1).values == torch.arange(size)).all()):
                raise StateError(f"'{key}' in {path} is not a permutation of {size} units.")
            permutations[name] = x.long()
        elif kind == "scale" and name in factors:
            scales[name] = _factors(key, x, factors[name], path)
        elif kind == "matrix" and name in turning:
            matrices[name] = _matrices(key, x, turning[name], path)
        else:
            raise StateError(f"'{key}' in {path} belongs to no group or scaling of its symmetry.")
    return sym, sym.element(permutations, scales, matrices)


def _matrices(key: str, x: Tensor, group: MatrixGroup, path: str | Path) -> Tensor:
    n, pairs = group.order, [group.size] if group.kind == "phase" else []
    shape = (*([group.copies] if group.over else []), *pairs, n, n)
    if x.shape != shape:
        raise StateError(f"'{key}' in {path} has shape {tuple(x.shape)} where {shape} is expected.")
    if x.dtype not in (torch.float32, torch.float64):
        raise StateError(f"'{key}' in {path} is {x.dtype}, and matrices are in float32 or float64.")
    if not bool(x.isfinite().all()):
        raise StateError(f"'{key}' in {path} is not finite.")
    m = x.double()
    if group.kind == "linear":
        good = bool((torch.linalg.matrix_rank(m) == n).all())
    else:
        good = bool(((m @ m.mT - torch.eye(n, dtype=m.dtype)).abs() < ORTHOGONAL).all())
        good &= group.kind != "centred" or bool(((m.sum(-1) - 1).abs() < ORTHOGONAL).all())
        good &= group.kind != "phase" or bool((torch.linalg.det(m) > 0).all())
    if not good:
        raise StateError(f"'{key}' in {path} is not {MATRICES[group.kind]}.")
    return x


def _factors(key: str, x: Tensor, scaling: Scaling, path: str | Path) -> Tensor:
    shape = (scaling.copies, scaling.size) if scaling.over else (scaling.size,)
    if x.shape != shape:
        raise StateError(f"'{key}' in {path} has shape {tuple(x.shape)} where {shape} is expected.")
    if not x.is_floating_point() or x.element_size() < 2:
        raise StateError(f"'{key}' in {path} is {x.dtype}, and factors are real numbers.")
    good = x.abs() == 1 if scaling.kind == "sign" else x.isfinite() & (x > 0)
    if not bool(good.all()):
        rule = "1 or -1" if scaling.kind == "sign" else "positive and finite"
        raise StateError(f"'{key}' in {path} has factors that are not {rule}.")
    return x


def summary(sym: Symmetry) -> dict[str, Any]:
    """The record that `coset inspect --json` prints; `symmetry` in it is what `Symmetry.from_json` reads."""
    verification = None
    if sym.verification is not None:
        verification = {"note": sym.verification.note} | dataclasses.asdict(sym.verification)
    record = {
        "log10_order": sym.log_order / math.log(10),
        "tensors": {"all": len(sym.axes), "moved": len(moved_tensors(sym)), "scalars": len(scalar_tensors(sym))},
        "groups": [dataclasses.asdict(group) for group in sym.groups],
        "scalings": [dataclasses.asdict(scaling) for scaling in sym.scalings],
        "dimension": sym.dimension,
        "matrices": [{**dataclasses.asdict(group), "dimension": group.dimension} for group in sym.matrices],
        "blocked": [{**dataclasses.asdict(group), "dimension": group.dimension} for group in sym.blocked],
        "fixed": [dataclasses.asdict(fixed) for fixed in sym.fixed],
        "verification": verification,
        "seconds": dict(sym.seconds),
    }
    return {**_strict(record), "symmetry": json.loads(sym.to_json())}


def moved_tensors(sym: Symmetry) -> list[str]:
    """The tensors that some group moves."""
    return [
        tensor
        for tensor, axes in sym.axes.items()
        if any(sym.sets[name].movable for axis in axes for name in names(axis))
    ]


def scalar_tensors(sym: Symmetry) -> list[str]:
    """The tensors of at most one entry, which have nothing to move."""
    return [tensor for tensor, axes in sym.axes.items() if all(axis.size <= 1 for axis in axes)]


def _strict(value: Any) -> Any:
    """JSON has no infinity: a deviation that could not be measured is null."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
