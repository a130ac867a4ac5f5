"""Other ways through a model that only its code tells of: sizes, names, numbers, modes and calls where they begin."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin, par
from oracle import deviation, randomise, signature
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import coset
from coset.symmetries.branches import other_branches


def holds(sym: coset.Symmetry, model: nn.Module, *calls: tuple[Any, ...]) -> None:
    """Random elements with factors change nothing in these calls, in float64."""
    model = randomise(model)
    for args in calls:
        args = tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)
        for k in range(3):
            state = sym.act(sym.random(torch.Generator().manual_seed(k), scalings=True), model.state_dict())
            assert deviation(model, args, state) < 1e-9, args


def net(function: Callable[..., Any], **parts: Any) -> Net:
    return Net(function, **{"a": lin(3, 6), "b": lin(6, 5), "c": lin(5, 2), **parts})


def ends(m: Net, h: Tensor) -> Tensor:
    return m.c(m.b(h).relu())


class Longest(nn.Module):
    """Goes another way beyond a length that it holds, and beyond one that its code names."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.a, self.b, self.c = lin(3, 6), lin(6, 5), lin(5, 2)
        self.longest, self.which = 64, which

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        if self.which == "held":
            later = x.shape[1] > self.longest
        elif self.which == "said":
            later = x.shape[1] >= 50
        elif self.which == "counted":
            later = len(x) > 30
        else:
            later = len(list(range(x.shape[1]))) > 40
        return self.c(self.b((h.cumsum(-1) if later else h).mean(1)).relu())


@pytest.mark.parametrize(
    ("which", "shape"), [("held", (2, 65)), ("said", (2, 50)), ("counted", (31, 4)), ("looped", (2, 41))]
)
def test_sizes_at_which_a_branch_begins(which: str, shape: tuple[int, int]) -> None:
    model = Longest(which)
    sym = coset.symmetry(model, torch.randn(2, 4, 3))
    assert signature(sym) == {"5": 1}
    holds(sym, model, (torch.randn(*shape, 3),))


def test_what_is_asked_of_sizes() -> None:
    turns = other_branches(Longest("held"), coset.Example(torch.randn(2, 4, 3)))
    assert 65 in turns[4]


class Names(nn.Module):
    WAYS = ("plain", "ranked")

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = lin(3, 6), lin(6, 5), lin(5, 2)

    def forward(self, x: Tensor, way: str = "plain", pool: str = "mean") -> Tensor:
        h = self.a(x).relu()
        if way == self.WAYS[1]:
            h = h.cumsum(-1)
        h = self.b(h).relu()
        return self.c(h.flip(-1) if pool == "odd" else h)


class Kind(enum.Enum):
    PLAIN = 0
    RANKED = 1


def by_kind(m: Net, x: Tensor, kind: Kind = Kind.PLAIN) -> Tensor:
    return ends(m, m.a(x).relu() if kind is Kind.PLAIN else m.a(x).cumsum(-1))


class Threshold(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = lin(3, 6), lin(6, 5), lin(5, 2)

    def forward(self, x: Tensor, level: int = 2) -> Tensor:
        h = self.a(x).relu()
        return self.c(self.b(h.cumsum(-1) if level > 20 else h).relu())


X = torch.randn(4, 3)


def test_names_that_the_code_compares_with() -> None:
    sym = coset.symmetry(Names(), X)
    assert not sym.groups
    holds(sym, Names(), (X, "ranked"), (X, "plain", "odd"))


def test_members_of_an_enumeration() -> None:
    model = net(by_kind)
    assert signature(coset.symmetry(model, (X, Kind.PLAIN))) == {"5": 1}


def test_numbers_that_the_code_compares_with() -> None:
    assert signature(coset.symmetry(Threshold(), X)) == {"5": 1}
    holds(coset.symmetry(Threshold(), X), Threshold(), (X, 21))


def test_another_head_with_results_of_another_size_counts() -> None:
    """Results of another shape are not hidden states if their entries change."""

    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = lin(3, 6), lin(6, 5), lin(5, 2)

        def forward(self, x: Tensor, task: str = "first") -> Tensor:
            h = self.a(x).relu()
            y = self.c(self.b(h.cumsum(-1) if task == "second" else h).relu())
            return y.sum(-1) if task == "second" else h if task == "hidden" else y

    sym = coset.symmetry(Tasks(), X)
    assert signature(sym) == {"5": 1}
    holds(sym, Tasks(), (X, "second"))


def by_width(m: Net, x: Tensor, width: Any) -> Tensor:
    w = width if isinstance(width, int) else int(8 * width)
    h = F.linear(x, m.a.weight[:w], m.a.bias[:w]).relu()
    return m.c(F.linear(h, m.b.weight[:, :w], m.b.bias).relu())


@pytest.mark.parametrize("width", [8, 1.0])
def test_slices_that_move_with_an_argument_fix_their_units(width: float) -> None:
    model = net(by_width, a=lin(3, 8), b=lin(8, 5))
    sym = coset.symmetry(model, (X, width))
    assert signature(sym) == {"5": 1}
    holds(sym, model, *((X, k) for k in (1, 2, 3, 4, 8, 0.25, 0.5)))


def prefix(m: Net, x: Tensor, count: int) -> Tensor:
    k = m.a(x).tanh()
    return m.c(m.b((m.q[:count] @ k.mT).softmax(-1) @ k).mean(1))


def test_a_prefix_of_queries_fixes_all_of_them() -> None:
    model, x = net(prefix, q=par(8, 6)), torch.randn(2, 4, 3)
    sym = coset.symmetry(model, (x, 8))
    assert signature(sym) == {"6": 1, "5": 1}
    holds(sym, model, (x, 3), (x, 1))


class Trains(nn.Module):
    """Another function of its units in training."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.way = lin(3, 6), lin(6, 5), lin(5, 2), way

    def forward(self, x: Tensor) -> Any:
        h = self.a(x).relu()
        if self.training and self.way == "order":
            h = h.cumsum(-1)
        if self.training and self.way == "clamp":
            h = h.clamp(max=1.0)
        if self.training and self.way == "noise":
            h = h * (1 + torch.randn_like(h))
        y = self.c(self.b(h).relu())
        return (y, h) if self.training and self.way == "hidden" else y


def test_units_that_training_takes_in_order_are_fixed() -> None:
    assert signature(coset.symmetry(Trains("order"), X)) == {"5": 1}


@pytest.mark.parametrize("way", ["noise", "hidden", "clamp"])
def test_noise_and_hidden_states_of_training_fix_nothing(way: str) -> None:
    assert signature(coset.symmetry(Trains(way), X)) == {"6": 1, "5": 1}


def test_factors_that_a_clamp_of_training_bounds_hold_in_evaluation_only() -> None:
    torch.manual_seed(0)
    sym = coset.symmetry(Trains("clamp"), 0.01 * X)
    assert {s.units: s.evaluation_only for s in sym.scalings} == {"a": True, "b": False}


def test_signs_of_spectral_norms_hold_in_evaluation_only() -> None:
    """In training the norm is measured anew, and is positive."""
    model = nn.Sequential(*(part for _ in range(5) for part in (spectral_norm(lin(3, 3)), nn.ReLU())))
    sym = coset.symmetry(model, X)
    alone = [s for s in sym.scalings if s.kind == "sign" and not s.units and len(s.members) == 1]
    assert len(alone) == 5
    assert all(s.evaluation_only for s in alone)


def caption(m: Net, image: Tensor, words: Tensor) -> Tensor:
    h = m.state(m.conv(image).relu().mean((2, 3)))
    c, out = torch.zeros_like(h), []
    for t in range(words.shape[1]):
        h, c = m.cell(m.words(words[:, t]), (h, c))
        out.append(m.out(h))
    return torch.stack(out, 1)


def test_one_word_beside_an_image_of_one_channel() -> None:
    """Axes of one size in two tensors are varied one by one, too."""
    parts = {"conv": nn.Conv2d(1, 5, 3), "state": lin(5, 6), "words": nn.Embedding(9, 4), "cell": nn.LSTMCell(4, 6)}
    model = Net(caption, **parts, out=lin(6, 9))
    image = torch.randn(2, 1, 6, 6)
    sym = coset.symmetry(model, (image, torch.randint(9, (2, 1))))
    assert signature(sym) == {"4": 1, "5": 1, "6": 1}
    holds(sym, model, (image, torch.randint(9, (2, 3))))


def decode(m: Net, x: Tensor, steps: int) -> Tensor:
    h, out = x.new_zeros(len(x), 6), []
    for _ in range(steps):
        h = m.cell(x, h)
        x = m.out(h)
        out.append(x)
    return torch.stack(out, 1)


def test_one_step_among_the_arguments_is_traced_with_more() -> None:
    model, x = Net(decode, cell=nn.RNNCell(2, 6), out=lin(6, 2)), torch.randn(3, 2)
    sym = coset.symmetry(model, (x, 1))
    assert signature(sym) == {"6": 1}
    holds(sym, model, (x, 1), (x, 4))


class Optional(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.r, self.b, self.c = nn.GRU(3, 6, batch_first=True), lin(6, 5), lin(5, 2)
        self.way = way

    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        y, _ = self.r(x, given if self.way == "state" else None)
        if self.way == "residual" and given is not None:
            y = y + given
        return self.c(self.b(y).relu())


@pytest.mark.parametrize(("way", "shape"), [("state", (1, 2, 6)), ("residual", (2, 4, 6))])
def test_units_that_an_optional_argument_indexes_are_fixed(way: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(2, 4, 3)
    sym = coset.symmetry(Optional(way), x)
    assert signature(sym) == {"5": 1}
    holds(sym, Optional(way), (x, torch.randn(shape)))


class Later(nn.Module):
    """Another function from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.calls = lin(3, 6), lin(6, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.a(x).relu()
        return self.b(h.cumsum(-1) if self.calls > 2 else h)


def test_a_third_call_of_one_module() -> None:
    assert not coset.symmetry(Later(), X).groups
