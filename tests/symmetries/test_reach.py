"""What the example does not reach: other ways are looked for, and what is left holds the units that it may read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin, par
from oracle import deviation, randomise, signature
from torch import Tensor, nn

import coset

X = torch.randn(3, 3)


def holds(sym: coset.Symmetry, model: nn.Module, *calls: tuple[Any, ...]) -> None:
    """Random elements with factors change nothing in these calls, in float64."""
    model = randomise(model)
    for k, args in enumerate(calls):
        args = tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)
        for _ in range(3):
            state = sym.act(sym.random(torch.Generator().manual_seed(k), scalings=True), model.state_dict())
            assert deviation(model, args, state) < 1e-9, args


def gains_and_shifts(m: Net, x: Tensor, condition: Tensor | None = None) -> Tensor:
    h = m.a(x)
    if condition is not None:
        gain, shift = m.c(condition).chunk(2, -1)
        h = h * (1 + gain) + shift
    return m.b(h.relu())


def one_shift(m: Net, x: Tensor, condition: Tensor | None = None) -> Tensor:
    return m.b((m.a(x) if condition is None else m.a(x) + m.c(condition)).relu())


def noise(m: Net, x: Tensor, condition: Tensor | None = None) -> Tensor:
    return m.b((m.a(x) if condition is None else m.a(x) + m.c * condition[:, :1]).relu())


OPTIONAL: dict[str, tuple[Callable[..., Tensor], Callable[[], Any], str]] = {
    "gains and shifts": (gains_and_shifts, lambda: lin(4, 12), ""),
    "a table of both": (
        lambda m, x, c=None: gains_and_shifts(m, x, None if c is None else (c[:, 0] > 0).long()),
        lambda: nn.Embedding(2, 12),
        "",
    ),
    "one shift for all units": (one_shift, lambda: lin(4, 1), "6"),
    "one number": (noise, lambda: par(1), "6"),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_arguments_that_the_example_leaves_out(name: str) -> None:
    function, part, groups = OPTIONAL[name]
    model = Net(function, a=lin(3, 6), b=lin(6, 2), c=part())
    sym = coset.symmetry(model, X)
    assert " ".join(signature(sym)) == groups and "c" in sym.notes[0]
    holds(sym, model, (X,), (X, torch.randn(3, 4)))


def test_arguments_that_may_be_left_out() -> None:
    def forward(m: Net, x: Tensor, pair: Tensor | None = None) -> Tensor:
        z = F.normalize(m.a(x), dim=-1)
        return z @ m.memory if pair is None else z @ F.normalize(m.a(pair), dim=-1).T

    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(forward, a=lin(3, 6), memory=torch.randn(6, 4))

        def forward(self, x: Tensor, pair: Tensor | None = None) -> Any:
            return self.net(x, pair)

    model = Contrast()
    sym = coset.symmetry(model, (X, X))
    assert signature(sym) == {"6": 1} and not sym.notes
    holds(sym, model, (X, X), (X,))


class Heads(nn.Module):
    """Heads by name and by number, of which one is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.a = lin(3, 6)
        self.named = nn.ModuleDict({"age": lin(6, 1), "job": lin(6, 4)})
        self.numbered = nn.ModuleList([lin(6, 2) for _ in range(4)])

    def forward(self, x: Tensor, task: str = "age", number: int = 0) -> Any:
        h = F.gelu(self.a(x))
        return self.named[task](h), self.numbered[number](h)


def test_heads_by_name_and_number_are_found() -> None:
    sym = coset.symmetry(Heads(), X)
    assert signature(sym) == {"6": 1} and not sym.notes
    holds(sym, Heads(), (X, "age", 0), (X, "job", 3))


class Left(nn.Module):
    """With a layer and numbers that no method mentions any more."""

    def __init__(self, mentioned: bool) -> None:
        super().__init__()
        self.a, self.b, self.old = lin(3, 6), lin(6, 2), nn.Sequential(lin(6, 6), nn.BatchNorm1d(6))
        self.register_buffer("mean", torch.zeros(6))
        self.mentioned = mentioned

    def forward(self, x: Tensor, way: str = "new") -> Any:
        h = F.gelu(self.a(x))
        return self.b(h)


class Kept(Left):
    def forward(self, x: Tensor, way: str = "new") -> Any:
        h = F.gelu(self.a(x))
        return self.b(self.old(h) + self.average() if len(way) > 3 else h)

    def average(self) -> Any:
        return self.mean


class ByNames(Left):
    def forward(self, x: Tensor, way: str = "b") -> Any:
        return getattr(self, way)(F.gelu(self.a(x)))


def test_what_no_code_mentions_is_not_reached_by_any_call() -> None:
    assert signature(coset.symmetry(Left(False), X)) == {"6": 1}
    for model in (Kept(True), ByNames(True)):
        assert not coset.symmetry(model, X).groups
    holds(coset.symmetry(Kept(True), X), Kept(True), (X, "as of old"))
    hooked = Left(False)
    hooked.a.register_forward_hook(lambda module, args, out: hooked.old(out) if len(out) > 99 else out)
    assert not coset.symmetry(hooked, X).groups, "a hook may reach it"


def test_what_a_loop_computes_in_vain_at_its_end_fixes_nothing() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        h, out = m.a(x), 0
        for layer, head, back in zip(m.layers, m.heads, m.backs, strict=True):
            z = torch.tanh(layer(h))
            out, h = out + head(z), h + back(z)
        return out

    layers, heads, backs = (nn.ModuleList([lin(*sizes), lin(*sizes)]) for sizes in ((6, 5), (5, 2), (5, 6)))
    model = Net(forward, a=lin(3, 6), layers=layers, heads=heads, backs=backs)
    sym = coset.symmetry(model, X)
    assert signature(sym) == {"6": 1, "5": 2} and not sym.notes
    holds(sym, model, (X,), (X[:1],))


class MovingCodebook(nn.Module):
    """Counts and sums that training alone writes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = lin(3, 6), lin(6, 2)
        self.register_buffer("codes", torch.randn(5, 6))
        self.register_buffer("count", torch.ones(5))
        self.register_buffer("total", torch.randn(5, 6))

    def forward(self, x: Tensor) -> Any:
        z = self.a(x)
        nearest = torch.cdist(z, self.codes).argmin(-1)
        if self.training:
            chosen = F.one_hot(nearest, 5).to(z.dtype)
            self.count.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.total.mul_(0.9).add_(chosen.T @ z, alpha=0.1)
            self.codes.copy_(self.total / self.count[:, None])
        return self.b(F.embedding(nearest, self.codes))


def test_buffers_that_training_writes_move_along() -> None:
    sym = coset.symmetry(MovingCodebook(), X)
    assert signature(sym) == {"6": 1, "5": 1}
    assert {("count", 0), ("total", 0), ("codes", 0)} == set(next(g for g in sym.groups if g.size == 5).members)


def test_a_transformer_with_a_mask_it_makes_itself() -> None:
    class Translate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Embedding(9, 8), nn.Embedding(7, 8), lin(8, 7)
            self.net = nn.Transformer(8, 2, 1, 1, 5, batch_first=True)

        def forward(self, x: Tensor, y: Tensor) -> Any:
            mask = self.net.generate_square_subsequent_mask(y.shape[1])
            return self.out(self.net(self.a(x), self.b(y), tgt_mask=mask))

    model = Translate()
    sym = coset.symmetry(model, (torch.randint(9, (2, 4)), torch.randint(7, (2, 3))))
    assert signature(sym) == {"8": 1, "5": 2, "2": 3, "4/2": 6}
    holds(sym, model, (torch.randint(9, (1, 2)), torch.randint(7, (1, 5))))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "l1": lambda a, b: F.l1_loss(a, b, reduction="sum"),
    "smooth l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "kl": lambda a, b: F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"),
    "bce": lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
    "bce of logits": lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid(), reduction="none").mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_units(name: str) -> None:
    model = Net(lambda m, x: (m.b(m.a(x)), LOSSES[name](m.a(x), m.c(x))), a=lin(3, 6), b=lin(6, 2), c=lin(3, 6))
    sym = coset.symmetry(model, X)
    assert signature(sym) == {"6": 1}
    holds(sym, model, (X,))


def test_kernels_over_whole_embeddings() -> None:
    """As convolutions over sentences have; where the image is larger, the same kernel has places."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(m.c(m.e(x)[:, None]).squeeze(3).relu().amax(2))

    model = Net(forward, e=nn.Embedding(9, 6), c=nn.Conv2d(1, 5, (2, 6)), o=lin(5, 2))
    words = torch.randint(9, (2, 4))
    sym = coset.symmetry(model, words)
    assert signature(sym) == {"6": 1, "5": 1}
    holds(sym, model, (words,), (torch.randint(9, (1, 7)),))
    shifted = Net(forward, e=nn.Embedding(9, 3), c=nn.Conv2d(1, 5, (2, 3), stride=3, padding=1), o=lin(5, 2))
    assert signature(coset.symmetry(shifted, words)) == {"5": 1}
