"""The action of an element on a state: one gather per tensor, then factors where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coset.errors import SymmetryError
from coset.symmetries.axes import Axis, Layout, layout, names
from coset.symmetries.group import Element, ScaledAxis, Scaling


class Action:
    """Index tables of one element, shared by all tensors with the same axes."""

    def __init__(self, axes: Mapping[str, tuple[Axis, ...]], scalings: Sequence[Scaling], element: Element) -> None:
        self.axes = axes
        self.element = element
        self.scaled: dict[str, list[tuple[Scaling, ScaledAxis]]] = {}
        for scaling in scalings:
            for member in scaling.members if scaling.name in element.scales else ():
                self.scaled.setdefault(member.tensor, []).append((scaling, member))
        self.batch = _batch_shape(element)
        self.moved = {
            name
            for name, known in element.sets.items()
            if name in element.permutations or any(base in element.permutations for base in known.over)
        }
        self._plain: dict[Axis, Tensor] = {}
        self._layouts: dict[Axis, Layout] = {}
        tensors = [*element.permutations.values(), *element.scales.values()]
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
            count, given = self.batch[0], tuple(tensor.shape[:lead])
            raise SymmetryError(f"{count} elements cannot act on tensor {name!r} with leading shape {given}")
        image = self._rescale(name, self._gather(axes, tensor, lead), lead)
        return image.clone() if image is tensor else image

    def _gather(self, axes: Sequence[Axis], tensor: Tensor, lead: int) -> Tensor:
        touched = [d for d, axis in enumerate(axes) if names(axis) & self.moved]
        if not touched:
            return tensor
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
            if entry.name in self.moved:
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
        return [b for name in here & self.moved for b in self.element.sets[name].over if b not in here]

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
        members = self.scaled.get(name, ())
        # In few bits every product is an error that can be seen, and a factor may not fit: round once, at the end.
        few = bool(members) and tensor.is_floating_point() and tensor.element_size() < 4
        image = tensor.float() if few else tensor
        for scaling, member in members:
            factor = self._factor(scaling, member, self.axes[name]).to(image)
            if not self.batch:
                factor = factor.reshape((*[1] * lead, *factor.shape))
            image = (image + member.offset) * factor**member.power - member.offset
        return image.to(tensor.dtype)

    def _factor(self, scaling: Scaling, member: ScaledAxis, axes: Sequence[Axis]) -> Tensor:
        """Factors of a tensor, one where the scaling does not reach."""
        c = self.element.scales[scaling.name]
        rank = len(axes)
        axis = member.axis
        if axis is None:
            return c.reshape((*self.batch, *[1] * rank))
        layouts = [self._layout(a) for a in axes]
        found = [entry.coordinate for entry in layouts[axis].entries if entry.name == scaling.units]
        coordinate = found[member.occurrence]
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


def _batch_shape(element: Element) -> tuple[int, ...]:
    for name, p in element.permutations.items():
        return tuple(p.shape[: -2 if element.sets[name].over else -1])
    for name, c in element.scales.items():
        units = element.units[name]
        fibred = units in element.sets and element.sets[units].over
        return tuple(c.shape[: -2 if fibred else -1])
    return ()
