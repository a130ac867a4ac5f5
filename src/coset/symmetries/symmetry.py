"""`Symmetry`: the group, how it acts, and what it could not use."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload, runtime_checkable

import torch
from torch import Tensor, nn

from coset.core.errors import SymmetryError
from coset.core.names import plural
from coset.core.show import Shown, Table
from coset.core.state import State, as_state
from coset.symmetries.examples import Args, Example, spelled_out
from coset.symmetries.group import (
    Axis,
    Element,
    FixedAxis,
    Group,
    IndexSet,
    Layout,
    MatrixAxis,
    MatrixGroup,
    ScaledAxis,
    Scaling,
    blocks,
    layout,
    names,
)
from coset.symmetries.matrix_action import random_matrices, turn
from coset.symmetries.show import few, fixed_rows, group_rows, matrix_rows, scaling_rows


class Action:
    """Index tables of one element, shared by all tensors with the same axes."""

    def __init__(
        self,
        axes: Mapping[str, tuple[Axis, ...]],
        scalings: Sequence[Scaling],
        matrices: Sequence[MatrixGroup],
        element: Element,
    ) -> None:
        self.axes = axes
        self.element = element
        self.turned: dict[str, list[tuple[MatrixGroup, MatrixAxis]]] = {}
        for group in matrices:
            for turned in group.members if group.name in element.matrices else ():
                self.turned.setdefault(turned.tensor, []).append((group, turned))
        self._inverses: dict[str, Tensor] = {}
        self.scaled: dict[str, list[tuple[Scaling, ScaledAxis]]] = {}
        for scaling in scalings:
            for member in scaling.members if scaling.name in element.scales else ():
                self.scaled.setdefault(member.tensor, []).append((scaling, member))
        self.batch = element.batch
        self.movers = {
            name
            for name, one in element.sets.items()
            if name in element.permutations or any(base in element.permutations for base in one.over)
        }
        self._plain: dict[Axis, Tensor] = {}
        self._layouts: dict[Axis, Layout] = {}
        tensors = [*element.permutations.values(), *element.scales.values(), *element.matrices.values()]
        self.device = tensors[0].device if tensors else torch.device("cpu")

    def _layout(self, axis: Axis) -> Layout:
        """Positions on the element's device."""
        if axis not in self._layouts:
            self._layouts[axis] = layout(axis).to(self.device)
        return self._layouts[axis]

    def on(self, name: str, tensor: Tensor) -> Tensor:
        """The image of one tensor; leading population dimensions are kept."""
        if name not in self.axes:
            return tensor.clone()
        axes = self.axes[name]
        lead = tensor.dim() - len(axes)
        if lead < 0 or tuple(tensor.shape[lead:]) != tuple(axis.size for axis in axes):
            expected = tuple(axis.size for axis in axes)
            raise SymmetryError(f"tensor {name!r} has shape {tuple(tensor.shape)}, the symmetry expects {expected}")
        if self.batch and lead == 0:
            tensor, lead = tensor.expand(*self.batch, *tensor.shape), 1
        if self.batch and tuple(tensor.shape[:lead]) != self.batch:
            count, leading = self.batch[0], tuple(tensor.shape[:lead])
            raise SymmetryError(f"{count} elements cannot act on tensor {name!r} with leading shape {leading}")
        image = self._gather(axes, tensor, lead)
        # In few bits every product is an error that can be seen, and a factor may not fit: round once, at the end.
        few = tensor.is_floating_point() and tensor.element_size() < 4
        if few and (name in self.scaled or name in self.turned):
            image = image.float()
        image = self._turn(name, self._rescale(name, image, lead), lead).to(tensor.dtype)
        return image.clone() if image is tensor else image

    def _gather(self, axes: Sequence[Axis], tensor: Tensor, lead: int) -> Tensor:
        touched = [d for d, axis in enumerate(axes) if names(axis) & self.movers]
        if not touched:
            return tensor
        if tensor.is_floating_point() and tensor.itemsize == 1:  # which torch 2.7 cannot index
            return self._gather(axes, tensor.view(torch.uint8), lead).view(tensor.dtype)
        layouts = [self._layout(axis) for axis in axes]
        indices = {d: self._index(d, axes, layouts).to(tensor.device) for d in touched}
        if len(touched) == 1 and not self.batch and indices[touched[0]].numel() == axes[touched[0]].size:
            return tensor.index_select(lead + touched[0], indices[touched[0]].flatten())
        rank = len(axes)
        spanned = [d for d in range(rank) if any(index.shape[d - rank] > 1 for index in indices.values())]
        first, last = min(spanned), max(spanned)
        mesh: list[slice | Tensor] = []
        for d in range(first, last + 1):
            index = indices.get(d)
            if index is None:
                index = _along(torch.arange(axes[d].size, device=tensor.device), d, rank)
            mesh.append(_trim(index, rank, first, last))
        if self.batch:
            rows = torch.arange(self.batch[0], device=tensor.device).reshape(-1, *[1] * (last - first + 1))
            if first > 0:
                # Only neighbouring index tensors keep their place, so the axes before join the mesh.
                return self._gather_all(axes, tensor, indices)
            return tensor[(rows, *mesh)]
        skip: list[slice | Tensor] = [slice(None)] * (lead + first)
        return tensor[tuple(skip + mesh)]

    def _gather_all(self, axes: Sequence[Axis], tensor: Tensor, indices: Mapping[int, Tensor]) -> Tensor:
        rank = len(axes)
        rows = torch.arange(self.batch[0], device=tensor.device).reshape(-1, *[1] * rank)
        mesh = [
            indices[d] if d in indices else _along(torch.arange(axes[d].size, device=tensor.device), d, rank)
            for d in range(rank)
        ]
        return tensor[(rows, *mesh)]

    def _index(self, d: int, axes: Sequence[Axis], layouts: Sequence[Layout]) -> Tensor:
        """(*batch, 1.., n, ..1) source positions along axis d; wider where fibres lie along other axes."""
        cross = self._cross(d, axes)
        if not cross and axes[d] in self._plain:
            return _along(self._plain[axes[d]], d, len(axes))
        flat = layouts[d]
        total: Tensor = flat.offset if cross == [] else _along(flat.offset, d, len(axes))
        for entry in flat.entries:
            inside = entry.coordinate >= 0
            unit = entry.coordinate.clamp(min=0)
            if entry.name in self.movers:
                unit = self._source(entry.name, unit, d, axes, layouts, bool(cross))
            elif cross:
                unit = _along(unit, d, len(axes))
            mask = _along(inside, d, len(axes)) if cross else inside
            total = total + torch.where(mask, unit, 0) * entry.stride
        if not cross:
            self._plain[axes[d]] = total
            return _along(total, d, len(axes))
        return total

    def _cross(self, d: int, axes: Sequence[Axis]) -> list[str]:
        """Bases of the units on axis d that lie on other axes of the tensor."""
        here = names(axes[d])
        return [b for name in here & self.movers for b in self.element.sets[name].over if b not in here]

    def _source(
        self, name: str, unit: Tensor, d: int, axes: Sequence[Axis], layouts: Sequence[Layout], cross: bool
    ) -> Tensor:
        p = self.element[name]
        rank = len(axes)
        if cross:
            unit = _along(unit, d, rank)
        over = self.element.sets[name].over
        if not over:
            return p[..., unit]
        copy: Tensor = torch.zeros_like(unit)
        for base in over:
            where = next(a for a in [d, *range(rank)] if base in names(axes[a]))
            coordinate = layouts[where].coordinate(base)
            assert coordinate is not None
            coordinate = coordinate.clamp(min=0)
            copy = copy * self.element.sets[base].size + (_along(coordinate, where, rank) if cross else coordinate)
        return p[..., copy, unit]

    def _rescale(self, name: str, tensor: Tensor, lead: int) -> Tensor:
        image = tensor
        for scaling, member in self.scaled.get(name, ()):
            factor = self._factor(scaling, member, self.axes[name]).to(image)
            if not self.batch:
                factor = factor.reshape((*[1] * lead, *factor.shape))
            image = (image + member.offset) * factor**member.power - member.offset
        return image

    def _turn(self, name: str, tensor: Tensor, lead: int) -> Tensor:
        """The tensor with each of its axes that matrices act on multiplied by them."""
        members = self.turned.get(name)
        if not members:
            return tensor
        image = tensor.clone(memory_format=torch.contiguous_format)
        parts = blocks(image, self.axes[name], lead)
        for group, member in members:
            turn(parts, group, member, self._matrices(group, member.dual).to(image), lead)
        return image

    def _matrices(self, group: MatrixGroup, dual: bool) -> Tensor:
        """(*batch, copies, [n,] k, k)"""
        if dual and group.name not in self._inverses:
            m = self.element.matrices[group.name]
            self._inverses[group.name] = torch.linalg.inv(m.double()).mT.to(m)
        m = self._inverses[group.name] if dual else self.element.matrices[group.name]
        return m if group.over else m.unsqueeze(len(self.batch))

    def _factor(self, scaling: Scaling, member: ScaledAxis, axes: Sequence[Axis]) -> Tensor:
        """Factors of a tensor, one where the scaling does not reach."""
        c = self.element.scales[scaling.name]
        rank = len(axes)
        axis = member.axis
        if axis is None:
            return c.reshape((*self.batch, *[1] * rank))
        layouts = [self._layout(a) for a in axes]
        coordinates = [entry.coordinate for entry in layouts[axis].entries if entry.name == scaling.units]
        coordinate = coordinates[member.occurrence]
        inside = _along(coordinate >= 0, axis, rank)
        unit = _along(coordinate.clamp(min=0), axis, rank)
        if not scaling.over:
            return torch.where(inside, c[..., unit], 1.0)
        copy = torch.zeros_like(unit)
        for base in scaling.over:
            where = next(a for a in [axis, *range(rank)] if base in names(axes[a]))
            at = layouts[where].coordinate(base)
            assert at is not None
            copy = copy * self.element.sets[base].size + _along(at.clamp(min=0), where, rank)
        return torch.where(inside, c[..., copy, unit], 1.0)


def _along(x: Tensor, d: int, rank: int) -> Tensor:
    """(*batch, n) -> (*batch, 1, .., n at axis d, .., 1)."""
    return x.reshape(*x.shape[:-1], *[1] * d, x.shape[-1], *[1] * (rank - d - 1))


def _trim(index: Tensor, rank: int, first: int, last: int) -> Tensor:
    """Drop the axes of an index outside [first, last]; those are of size one by construction."""
    lead = index.dim() - rank
    return index.reshape(*index.shape[:lead], *index.shape[lead + first : lead + last + 1])


if TYPE_CHECKING:
    from coset.symmetries.verify import Verification

# Random factors are drawn from exp(N(0, SPREAD^2)): far enough from one to be seen, near enough to stay accurate.
SPREAD = 0.5
GROUP_ROWS, OTHER_ROWS = 5, 2  # in a terminal, with one row on verification within `core.show.LINES`


@runtime_checkable
class HasImage(Protocol):
    """What is made of states and knows its own image: a solution, a population of networks."""

    def _image(self, sym: Symmetry, g: Element) -> Self: ...


X = TypeVar("X", bound=HasImage)


@dataclass(frozen=True, repr=False)
class Symmetry(Shown):
    """Permutations and rescalings of a state that leave the model's function unchanged.

    `coset.symmetry` infers it from a model; `from_json` reads one that was written by hand.

    Args:
        sets: The index sets by name: what axes can index, also where they cannot be permuted.
        axes: For each tensor of the state, what each of its axes indexes.
        scalings: Groups of units with a free positive factor or sign.
        fixed: What could not be used, and why.
        verification: What running the model showed; None if it was not run.
        seconds: How long "export", "inference" and "verification" took.
        buffers: The tensors that are not trained, such as running statistics.
        tied: Second names of tensors -> their first name; a state may leave either out.
        notes: What holds under a condition, or could not be looked at, in a sentence each.
        conditional: Groups that hold where the scores that rank their units differ.
        matrices: Units that matrices may act on: rotations of a residual stream, maps inside heads.
        blocked: Those that gains forbid which `coset.fold` cannot move, such as one before a tied unembedding.

    Example:
        >>> [(group.name, group.size) for group in sym.groups]
        [('layers.0', 16)]
        >>> round(sym.log_order, 2)  # of 16! permutations
        30.67
    """

    sets: Mapping[str, IndexSet]
    axes: Mapping[str, tuple[Axis, ...]]
    scalings: tuple[Scaling, ...] = ()
    fixed: tuple[FixedAxis, ...] = ()
    verification: Verification | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    conditional: frozenset[str] = frozenset()
    matrices: tuple[MatrixGroup, ...] = ()
    blocked: tuple[MatrixGroup, ...] = ()

    @property
    def groups(self) -> tuple[Group, ...]:
        """One group per movable index set, in the order of the state."""
        members: dict[str, list[tuple[str, int]]] = {name: [] for name in self.sets}
        for tensor, axes in self.axes.items():
            for d, axis in enumerate(axes):
                for name in names(axis):
                    members[name].append((tensor, d))
        return tuple(
            Group(name, one.size, tuple(members[name]), self.copies(name), one.over)
            for name, one in self.sets.items()
            if one.movable and members[name]
        )

    def copies(self, name: str) -> int:
        """How many independent orders a set has: one for each combination of the units it lies over.

        Args:
            name: The index set.
        """
        return math.prod(self.sets[base].size for base in self.sets[name].over)

    @property
    def log_order(self) -> float:
        """log |G|, the logarithm of the number of permutations; scalings have no number."""
        return sum(group.log_order for group in self.groups)

    @property
    def dimension(self) -> int:
        """How many numbers an element is free in: matrices, and positive factors that are none of these."""
        turned = {group.name for group in self.matrices if group.kind == "linear"}
        factors = [s for s in self.scalings if s.kind == "scaling" and s.units not in turned]
        return sum(s.copies * s.size for s in factors) + sum(group.dimension for group in self.matrices)

    @functools.cached_property
    def _powers(self) -> dict[str, float]:
        """Scalings that multiply vectors by a power of their factors, and what M^-T acts on by its inverse."""
        powers: dict[str, float] = {}
        for group in self.matrices:
            own = {(m.tensor, m.axis, m.occurrence): m.dual for m in group.members}
            for scaling in self.scalings:
                if scaling.units != group.name or not scaling.exact:
                    continue
                acts = {(m.tensor, m.axis, m.occurrence): m.power for m in scaling.members if not m.offset}
                even = scaling.kind == "sign"
                signed = {(-acts[k] if dual and not even else acts[k]) for k, dual in own.items() if k in acts}
                if acts.keys() == own.keys() and len(signed) == 1:
                    powers[scaling.name] = signed.pop()
        return powers

    def without_matrices(self) -> Symmetry:
        """The part of the group that permutes and rescales units."""
        return replace(self, matrices=(), blocked=())

    def element(
        self,
        permutations: Mapping[str, Tensor] | None = None,
        scales: Mapping[str, Tensor] | None = None,
        matrices: Mapping[str, Tensor] | None = None,
    ) -> Element:
        """The element with these permutations, factors and matrices; what is not named stays as it is.

        Args:
            permutations: Group name -> [size], or [copies, size] for units that lie over others: unit i of the image is
                unit p[i]. With a leading dimension, a batch of elements.
            scales: Scaling name -> factors of the same shape, for the units where they stand in the image.
            matrices: Matrix group name -> [n, n], or [copies, n, n] for units that lie over others; [..., n, 2, 2] for
                pairs.

        Example:
            >>> swap = sym.element({"layers.0": torch.tensor([1, 0, *range(2, 16)])})
            >>> torch.equal((swap @ swap)["layers.0"], torch.arange(16))
            True
        """
        units = {scaling.name: scaling.units for scaling in self.scalings}
        return Element(self.sets, permutations or {}, scales or {}, units, matrices or {}, self._powers)

    def identity(self) -> Element:
        """The element that leaves every state as it is."""
        return self.element()

    def random(
        self,
        generator: torch.Generator | None = None,
        *,
        batch: int | None = None,
        scalings: bool = False,
        matrices: bool = False,
    ) -> Element:
        """A uniform permutation of each group.

        Args:
            generator: The source of randomness, which also says on which device; torch's own if None.
            batch: How many elements to draw at once, to act on a population of as many states; None for one.
            scalings: Whether to draw factors exp(N(0, 0.25)) and signs too, of the scalings that are exact in
                evaluation and in training.
            matrices: Whether to draw matrices, too: orthogonal ones uniformly (Haar), others with singular values
                between 1/2 and 2. Where they ask for gains of one, the element acts on what `coset.fold` returns.

        Example:
            >>> sym.random(torch.Generator().manual_seed(0), batch=5).batch
            (5,)
        """
        device = generator.device if generator is not None else torch.device("cpu")
        lead = () if batch is None else (batch,)

        def shape(name: str, copies: int, size: int) -> tuple[int, ...]:
            fibred = name in self.sets and self.sets[name].over
            return (*lead, copies, size) if fibred else (*lead, size)

        permutations = {
            name: torch.rand(shape(name, self.copies(name), one.size), generator=generator, device=device).argsort(-1)
            for name, one in self.sets.items()
            if one.movable
        }
        turning = {group.name: random_matrices(group, lead, generator, device) for group in self.matrices if matrices}
        scales: dict[str, Tensor] = {}
        for scaling in self.scalings if scalings else ():
            noise = torch.randn(
                shape(scaling.units, scaling.copies, scaling.size),
                generator=generator,
                device=device,
                dtype=torch.float64,
            )
            if scaling.in_both_modes and (scaling.units not in turning or scaling.name in self._powers):
                scales[scaling.name] = noise.sign() if scaling.kind == "sign" else (SPREAD * noise).exp()
        return self.element(permutations, scales, turning)

    def missing(self, names: Collection[str]) -> list[str]:
        """The tensors that a state with these names lacks; of tied ones, one is enough.

        Args:
            names: Those that the state has.
        """
        present = {self.tied.get(name, name) for name in names}
        return [name for name in self.axes if name not in names and self.tied.get(name, name) not in present]

    def cycles(self, generator: torch.Generator | None = None) -> Element:
        """A permutation without fixed points: each group's units in random order, each sent to the next.

        Args:
            generator: The source of randomness; torch's own if None.
        """
        orders = self.random(generator).permutations
        return self.element({name: torch.empty_like(p).scatter_(-1, p, p.roll(1, -1)) for name, p in orders.items()})

    @overload
    def act(self, g: Element, x: X) -> X: ...

    @overload
    def act(self, g: Element, x: State | nn.Module) -> dict[str, Tensor]: ...

    def act(self, g: Element, x: HasImage | State | nn.Module) -> HasImage | dict[str, Tensor]:
        """The image of a network under `g`: other weights, the same function.

        `act(g @ h, x)` is `act(g, act(h, x))`, and unit i of the result is unit p[i] of `x`. Tensors that the symmetry
        does not mention pass through.

        Args:
            g: The element; a batch of them sends one state to a population, or each network of a population to its own
                image.
            x: A state, or a population of them with a leading dimension; a module; a solution; a `Population`.

        Returns:
            What it got: a solution of the same class, a `Population`, else a new state.

        Raises:
            SymmetryError: If a tensor has not the shape that the symmetry expects, or a gain that must be one is not.

        Example:
            >>> g = sym.random(torch.Generator().manual_seed(0))
            >>> coset.state.allclose(sym.act(g.inverse(), sym.act(g, a)), a)
            True
        """
        if isinstance(x, HasImage):
            return x._image(self, g)
        state = as_state(x)
        self.refuse_gains(g, state)
        action = Action(self.axes, self.scalings, self.matrices, g)
        images = {name: action.on(name, tensor) for name, tensor in state.items()}
        if action.batch and all(state[name].dim() == len(self.axes[name]) for name in state.keys() & self.axes.keys()):
            for name in state.keys() - self.axes.keys():
                images[name] = images[name].expand(*action.batch, *images[name].shape).clone()
        return images

    def refuse_gains(self, g: Element, state: State) -> None:
        """Raise `SymmetryError` where a gain is not one that the matrices of an element ask for.

        Args:
            g: The element.
            state: What it is to act on, or a part of it.
        """
        for group in self.matrices:
            for gain in group.gains if group.name in g.matrices else ():
                if gain in state and bool((state[gain] != 1).any()):
                    raise SymmetryError(
                        f"{group.name!r} turns where the gain {gain!r} is one: take coset.fold(network, sym) first, "
                        "or `coset fold`, which moves gains into the weights that read them"
                    )

    def verify(
        self,
        model: nn.Module,
        args: Args,
        kwargs: Mapping[str, Any] | None = None,
        trials: int = 3,
    ) -> Verification:
        """Run the model under random elements of the group: the outputs must not change.

        For another checkpoint, another input, or a symmetry written by hand.

        Args:
            model: The model, with real weights.
            args: Its arguments: a tuple, or a tensor if there is one.
            kwargs: Its named arguments.
            trials: How many elements are tried on each set of weights.

        Returns:
            The deviation of the outputs with what makes it credible; it compares by its deviation.

        Raises:
            SymmetryError: If the function changes; it names the groups to blame.

        Example:
            >>> sym.verify(model, digits.test.inputs[:8]) < 1e-5
            True
        """
        from coset.symmetries.trace import single
        from coset.symmetries.verify import check

        example = Example(args, kwargs or {})
        model = single(model, example)
        return check(self, model, spelled_out(example, model.forward), trials=trials)

    def _shown(self) -> Table:
        return self._table(GROUP_ROWS, OTHER_ROWS)

    def _repr_html_(self) -> str:
        return self._table(None, None).html()

    def _table(self, most_groups: int | None, most: int | None) -> Table:
        """Rows of groups, scalings and what is fixed, no more than these of each, and what verification says."""
        groups, more_groups = few(group_rows(self.groups), most_groups, "rows of groups")
        scalings, more_scalings = few(scaling_rows(self.scalings), most, "rows of scalings")
        turning, more_turning = few(matrix_rows(self.matrices), most and 1, "rows of matrices")
        fixed, more_fixed = few(fixed_rows(self.fixed), most, "reasons")
        rows: list[tuple[object, ...]] = [
            (plural(count, "group"), name, units, members) for name, count, units, _, members in groups
        ]
        rows += more_groups
        rows += [(plural(count, kind), units, size, exact) for kind, units, count, size, exact in scalings]
        rows += more_scalings
        rows += [(plural(count, "matrix", "matrices"), name, units, what) for name, count, units, what in turning]
        rows += more_turning if most is None else []
        rows += [(f"{plural(count, 'axis', 'axes')} fixed", op, reason) for op, reason, count, _ in fixed]
        rows += more_fixed
        if self.notes and most is not None:
            more = f" (and {plural(len(self.notes) - 1, 'more note')})" if len(self.notes) > 1 else ""
            rows.append(("note", self.notes[0] + more))
        else:
            rows += [("note", note) for note in self.notes]
        check = self.verification
        rows.append(
            ("check", "not verified" if check is None else f"{check.note}; the output changes by {check.deviation:.1e}")
        )
        permutations = f"10^{self.log_order / math.log(10):,.1f} permutations"
        scalings_of = plural(len(self.scalings), "scaling")
        return Table(f"Symmetry: {plural(len(self.groups), 'group')}, {permutations}, {scalings_of}", rows)

    def to_json(self) -> str:
        """The symmetry as JSON, for `from_json`, a file or a person.

        Example:
            >>> coset.Symmetry.from_json(sym.to_json()).groups == sym.groups
            True
        """
        from coset.symmetries.serialization import symmetry_to_json

        return symmetry_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Symmetry:
        """Read a symmetry that inference or a person wrote.

        Args:
            text: JSON with the `groups` by size, and for each of the `tensors` what its axes index; `scalings`,
                `fixed`, `buffers` and `tied` may be there too. An axis is the name of a group, a number (a fixed order
                of so many positions), a list (a product, outermost first), or `{"concat": [...]}` or
                `{"interleave": [...]}`.

        Returns:
            The symmetry, not verified: `verify` runs a model.

        Raises:
            SymmetryError: If the text is no JSON, or names a group that is not declared.

        Example:
            >>> text = '{"groups": {"hidden": 3}, "tensors": {"0.weight": ["hidden", 4], "1.weight": [2, "hidden"]}}'
            >>> coset.Symmetry.from_json(text).groups[0].members
            (('0.weight', 0), ('1.weight', 1))
        """
        from coset.symmetries.serialization import symmetry_from_json

        return symmetry_from_json(text)
