"""What alignment maximises: inner products of A with a moved B, and scores that are linear in the permutations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from coset.core.state import State, is_coordinate
from coset.symmetries.group import Block, Element, Label, MatrixGroup, blocks, labels
from coset.symmetries.symmetry import Symmetry

# Elements of one operand that are converted and multiplied at once.
PIECE = 2**24
# Products that are added up in float32.
SUMMED = 2**16
# Numbers beyond this, or below its inverse, are multiplied in float64.
LARGE = 1e12


def gram(a: Tensor, b: Tensor, batch: Sequence[int], units: Sequence[int]) -> Tensor:
    """G[c, i, j] = sum over the other dimensions of a[c, i, ...] b[c, j, ...].

    batch, units: dimensions of a and b, which have the same shape; those of `units` are flattened to one.
    Returns [batch, n, n] with the batch flattened, in float32, or float64 for float64 operands.
    """
    rest = [d for d in range(a.dim()) if d not in batch and d not in units]
    copies, n = math.prod(a.shape[d] for d in batch), math.prod(a.shape[d] for d in units)
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    total: Tensor | None = None
    for x, y in _pieces(a, b, rest):
        order = [*batch, *units, *rest]
        left = x.permute(order).reshape(copies, n, -1).to(dtype)
        right = y.permute(order).reshape(copies, n, -1).to(dtype)
        if total is None:
            total = torch.bmm(left, right.mT)
        else:
            total.baddbmm_(left, right.mT)
    return total if total is not None else torch.zeros(copies, n, n, dtype=dtype, device=a.device)


def inner(a: Tensor, b: Tensor) -> float:
    """<a, b>, the sums of pieces added up in float64."""
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    pairs = zip(torch.split(a.flatten(), SUMMED), torch.split(b.flatten(), SUMMED), strict=True)
    return sum(float(torch.dot(x.to(dtype), y.to(dtype))) for x, y in pairs)


def _pieces(a: Tensor, b: Tensor, rest: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    if a.numel() <= PIECE or not rest:
        yield a, b
        return
    longest = max(rest, key=lambda d: a.shape[d])
    count = min(a.shape[longest], -(-a.numel() // PIECE))
    yield from zip(a.tensor_split(count, longest), b.tensor_split(count, longest), strict=True)


@dataclass(frozen=True)
class InnerProduct:
    """The term <a, g b> of an objective; either state may be read lazily, tensor by tensor."""

    a: State
    b: State


@dataclass(frozen=True)
class Objective:
    """What alignment maximises over g: F(g) = sum_k <a_k, g b_k> + sum_u <linear_u, P_u>.

    products
        of states of equal names; their floating tensors that the symmetry moves count, buffers do not
    linear
        set -> [n, n] scores of A's unit i against B's unit j; [copies, copies, n, n] for sets over others, A's copy
        first
    device
        where the products are computed
    """

    sym: Symmetry
    products: Sequence[InnerProduct]
    linear: Mapping[str, Tensor] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def matrices(self) -> tuple[MatrixGroup, ...]:
        """The groups of matrices that can act: those whose gains are one in all states."""
        states = [state for product in self.products for state in (product.a, product.b)]
        return tuple(
            group
            for group in self.sym.matrices
            if all(bool((read(state, gain, self.sym) == 1).all()) for gain in group.gains for state in states)
        )

    def tensors(self, units: set[str]) -> list[str]:
        """The tensors that some of these sets index."""
        return [name for name in self._names() if any(label.units in units for label in self._labels(name))]

    def _names(self) -> list[str]:
        """The tensors that count: of tied names the first that is there."""
        names = self.products[0].a.keys() if self.products else ()
        once: dict[str, str] = {}
        for name in names:
            if name in self.sym.axes and name not in self.sym.buffers:
                once.setdefault(self.sym.tied.get(name, name), name)
        # In the order of the symmetry, so that sums do not depend on which of tied names a state has.
        return [once[name] for name in self.sym.axes if name in once]

    def _labels(self, name: str) -> list[Label]:
        return [label for row in labels(self.sym.axes[name]) for label in row]

    def terms(self, name: str) -> list[tuple[Tensor, Tensor]]:
        """(a, b) of each product, B not moved; none for a tensor of integers, two for the parts of a complex one."""
        real: list[tuple[Tensor, Tensor]] = []
        parts: list[tuple[Tensor, Tensor]] = []
        for product in self.products:
            a, b = (read(state, name, self.sym).to(self.device) for state in (product.a, product.b))
            if _extreme(a) or _extreme(b):
                a, b = (x.to(torch.complex128 if x.is_complex() else torch.float64) for x in (a, b))
            if a.is_complex():
                parts += [(a.real, b.real), (a.imag, b.imag)]
            elif is_coordinate(a):
                real.append((a, b))
        return real + parts

    def blocks(self, name: str, element: Element) -> list[tuple[Block, Block]]:
        """The blocks of A and of the moved B."""
        axes = self.sym.axes[name]
        pairs: list[tuple[Block, Block]] = []
        for a, b in self.terms(name):
            image = self.sym.act(element, {name: b})[name]
            pairs += zip(blocks(a, axes), blocks(image, axes), strict=True)
        return pairs

    def value(self, element: Element, units: set[str] | None = None) -> float:
        """F(g), or the part of it that depends on the permutations of some sets."""
        total = 0.0
        still = not element.permutations and not element.scales and not element.matrices
        for name in self._names() if units is None else self.tensors(units):
            for a, b in self.terms(name):
                total += inner(a, b if still else self.sym.act(element, {name: b})[name])
        for name, scores in self.linear.items():
            if units is None or name in units or units & set(self.sym.sets[name].over):
                total += float(moved_scores(element, name, scores).diagonal(dim1=-2, dim2=-1).double().sum())
        return total


def _extreme(x: Tensor) -> bool:
    """Whether products of such numbers leave the range of float32."""
    if not is_coordinate(x) or not x.numel():
        return False
    largest = float(torch.linalg.vector_norm(x.detach().float() if x.element_size() == 1 else x.detach(), math.inf))
    return largest > LARGE or 0 < largest < 1 / LARGE


def read(state: State, name: str, sym: Symmetry) -> Tensor:
    """A tensor of the state by its name, or by another name that is tied to it: files often store just one."""
    if name in state:
        return state[name]
    owner = sym.tied.get(name, name)
    return state[next(twin for twin in state if sym.tied.get(twin, twin) == owner)]


def moved_scores(element: Element, name: str, scores: Tensor) -> Tensor:
    """Scores of A's units against those of the moved B: [n, n], or [copies, n, n] within each copy.

    Of pairs [n, 2, 2], or [copies, n, 2, 2].
    """
    p, index_set = element[name].to(scores.device), element.sets[name]
    if index_set.over:
        copy = element.source_copy(name).to(scores.device)
        scores = scores[torch.arange(len(copy), device=scores.device), copy]
        scores = scores.gather(-1, p.unsqueeze(-2).expand(scores.shape)) if index_set.movable else scores
    elif index_set.movable:
        scores = scores[:, p]
    if name in element.matrices:
        scores = scores @ element.matrices[name].to(scores).mT
    return scores
