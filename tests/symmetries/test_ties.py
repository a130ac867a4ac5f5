"""Where equal scores are told apart by position: units are fixed, or a note says when they are interchangeable.

Every claim is held against brute force on inputs that make scores equal: all-zero rows, repeated and constant ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin, names, par
from oracle import deviation, randomise, signature
from torch import Tensor, nn

import coset
from coset import Symmetry

Score = Callable[[Net, Tensor], Tensor]
WIDTH = 5


def no_bias() -> nn.Module:
    return lin(3, WIDTH, bias=False)


# Ties have measure zero at every input, or at all but special ones, or they are common.
APART: dict[str, Score] = {
    "bias": lambda m, x: m.a(x),
    "softmax": lambda m, x: m.a(x).softmax(-1),
    "sigmoid and a bias": lambda m, x: m.r(x).sigmoid() + m.c,
    "tanh of a gain": lambda m, x: (m.a(x) * m.c).tanh(),
    "gelu": lambda m, x: F.gelu(m.a(x)),
    "no bias above a bias": lambda m, x: m.s(m.e(x)),
    "no bias above tokens": lambda m, x: m.s(m.t((x[:, 0] > 0).long())),
    "no bias above a residual stream": lambda m, x: m.s(m.e(x) + F.relu(m.e(x))),
    "normed": lambda m, x: F.layer_norm(m.a(x), (WIDTH,)),
    "nearest code": lambda m, x: -(x[:, None] - m.k).pow(2).sum(-1),
    "cosine of codes": lambda m, x: F.normalize(m.e(x), dim=-1) @ F.normalize(m.k4, dim=-1).mT,
    "sum of two": lambda m, x: m.r(x).relu() + m.a(x),
    "attended": lambda m, x: m.a(x) + F.scaled_dot_product_attention(m.a(x), m.a(x), m.a(x)),
}
RARELY: dict[str, Score] = {
    "no bias": lambda m, x: m.r(x),
    "softmax of no bias": lambda m, x: m.r(x).softmax(-1),
    "no bias above many ReLU": lambda m, x: F.linear(m.wide(x).relu(), m.reader),
    "no bias above padded tokens": lambda m, x: m.s(m.p((x[:, 0] > 0).long())),
    "rms norm": lambda m, x: m.s(F.rms_norm(m.f(x), (4,))),
}
OFTEN: dict[str, Score] = {
    "relu": lambda m, x: m.a(x).relu(),
    "clamp": lambda m, x: m.a(x).clamp(-0.2, 0.2),
    "clamp from below": lambda m, x: m.a(x).clamp(min=0),
    "rounded": lambda m, x: (2 * m.a(x)).round(),
    "integers": lambda m, x: m.a(x).long(),
    "compared": lambda m, x: (m.a(x) > 0).to(x.dtype),
    "masked": lambda m, x: m.a(x).masked_fill(m.a(x) < 0, -1.0),
    "where": lambda m, x: torch.where(m.a(x) > 0, m.a(x), 0.0),
    "at least another": lambda m, x: torch.maximum(m.a(x), x.mean(-1, keepdim=True)),
    "gated by ReLU": lambda m, x: m.a(x) * m.r(x).relu(),
    "softmax of relu": lambda m, x: m.a(x).relu().softmax(-1),
    "gain of relu": lambda m, x: m.a(x).relu() * m.c,
    "relu6": lambda m, x: F.relu6(4 * m.a(x)),
    "sign": lambda m, x: m.a(x).sign(),
    "hardtanh": lambda m, x: F.hardtanh(m.a(x), -0.1, 0.1),
    "thresholded": lambda m, x: F.threshold(m.a(x), 0.1, 0.3),
    "masked product": lambda m, x: m.a(x) * (m.a(x) > 0.1),
    "counted": lambda m, x: (m.a(x)[:, None] > x[:, :, None]).sum(1),
    "floor division": lambda m, x: torch.div(m.a(x), 0.3, rounding_mode="floor"),
    "copies": lambda m, x: m.e(x).sum(-1, keepdim=True).expand(-1, WIDTH),
    "no bias above few ReLU": lambda m, x: m.s(m.e(x).relu()),
    "relu of a sum": lambda m, x: (m.a(x) + m.c).relu().sqrt(),
    "dead units added up": lambda m, x: (m.a(x)[..., None].relu() * m.k[0]).sum(-1),
}


def _masked_by_rank(m: Net, x: Tensor) -> Tensor:
    """As routers limited to some groups do."""
    scores = m.r(x).sigmoid()
    best = torch.zeros_like(scores).scatter(1, m.a(x).topk(3, -1)[1], 1.0)
    return scores.masked_fill(~best.bool(), 0.0)


RARELY["scores masked by rank"] = _masked_by_rank

USES: dict[str, Callable[[Net, Tensor, Tensor], Tensor]] = {
    "argmax": lambda m, x, s: F.embedding(s.argmax(-1), m.w),
    "argmin": lambda m, x, s: m.w[s.argmin(-1)],
    "max": lambda m, x, s: F.one_hot(s.max(-1)[1], WIDTH).to(m.w.dtype) @ m.w,
    "topk": lambda m, x, s: m.w[s.topk(2, -1)[1]].tanh().sum(1),
    "sort": lambda m, x, s: m.w[s.sort(-1, descending=True)[1][:, 0]],
    "argsort": lambda m, x, s: m.w[s.argsort(-1)[:, 2]],
    "kthvalue": lambda m, x, s: m.w[s.kthvalue(2, -1)[1]],
    "median": lambda m, x, s: m.w[s.to(x.dtype).median(-1)[1]],
    "gather": lambda m, x, s: m.o(m.a(x)).tanh() + m.a(x).gather(-1, s.topk(1, -1)[1]),
    "scatter": lambda m, x, s: torch.zeros_like(m.a(x)).scatter(1, s.topk(2, -1)[1], 1.0) @ m.w,
}


def net(score: Score, use: str) -> Net:
    torch.manual_seed(0)
    parts: dict[str, Any] = {
        "a": lin(3, WIDTH), "r": no_bias(), "c": par(WIDTH), "k": par(WIDTH, 3), "k4": par(WIDTH, 4),
        "w": par(WIDTH, 2),
        "e": lin(3, 4), "f": lin(3, 4, bias=False), "s": lin(4, WIDTH, bias=False), "t": nn.Embedding(2, 4),
        "wide": lin(3, 32), "reader": par(WIDTH, 32), "p": nn.Embedding(2, 4, padding_idx=0), "o": lin(WIDTH, 2),
    }  # fmt: skip
    own = names(score.__code__) | names(USES[use].__code__)
    model = randomise(
        Net(lambda m, x: USES[use](m, x, score(m, x)), **{name: part for name, part in parts.items() if name in own})
    )
    if "p" in own:
        with torch.no_grad():
            model.p.weight[0] = 0.0
    return model


def ordinary(count: int = 40) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(5)).double()


def special() -> Tensor:
    """All-zero rows among others, constant and negative ones."""
    rows = [torch.zeros(2, 3), torch.ones(2, 3), -torch.ones(1, 3), torch.eye(3), 3 * torch.eye(3)]
    return torch.cat(rows).double()


def moved(sym: Symmetry, model: nn.Module, x: Tensor) -> float:
    generator = torch.Generator().manual_seed(1)
    state = model.state_dict()
    return max(deviation(model, (x,), sym.act(sym.random(generator), state)) for _ in range(6))


def has_units(sym: Symmetry) -> bool:
    return str(WIDTH) in signature(sym)


@pytest.mark.parametrize("name", APART)
def test_scores_with_a_number_of_their_own_are_apart(name: str) -> None:
    for use in USES if name == "bias" else ("topk",):
        model = net(APART[name], use)
        sym = coset.symmetry(model, ordinary(8), strict=True)
        assert has_units(sym) and not sym.notes, use
        assert moved(sym, model, torch.cat([ordinary(), special()])) < 1e-9, use


@pytest.mark.parametrize("name", RARELY)
def test_scores_that_vanish_at_special_inputs_are_noted(name: str) -> None:
    for use in USES if name == "no bias" else ("topk",):
        model = net(RARELY[name], use)
        sym = coset.symmetry(model, 1 + ordinary(8).abs())
        assert has_units(sym), use
        (note,) = sym.notes
        assert "are interchangeable where the scores that" in note and "differ" in note and note.endswith("position.")
        assert moved(sym, model, 1 + ordinary().abs()) < 1e-9
        with pytest.raises(coset.SymmetryError, match=r"are interchangeable where the scores .* strict=True"):
            coset.symmetry(model, 1 + ordinary(8).abs(), strict=True)


def test_the_note_is_needed() -> None:
    model = net(RARELY["no bias"], "topk")
    sym = coset.symmetry(model, ordinary(8))
    assert moved(sym, model, ordinary()) < 1e-9 < 1e-2 < moved(sym, model, special())


@pytest.mark.parametrize("name", OFTEN)
def test_scores_that_are_often_equal_fix_their_units(name: str) -> None:
    for use in USES if name == "relu" else ("topk", "argmax", "gather"):
        model = net(OFTEN[name], use)
        if name in ("integers", "counted") and use == "median":
            continue
        sym = coset.symmetry(model, ordinary(8))
        assert not has_units(sym) and not sym.notes, use
        reasons = {fixed.reason for fixed in sym.fixed}
        assert "equal scores are told apart by position" in reasons, use
        assert moved(sym, model, torch.cat([ordinary(), special()])) < 1e-9


VALUES: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "max": lambda m, x: m.o(m.a(x).relu()) + m.a(x).relu().max(-1, keepdim=True)[0],
    "sort": lambda m, x: m.o(m.a(x).relu()) + m.a(x).relu().sort(-1)[0][:, 1:2],
    "topk": lambda m, x: m.o(m.a(x) * (m.a(x).relu() >= m.a(x).relu().topk(2, -1)[0][:, -1:])),
    "median": lambda m, x: m.o(m.a(x).relu()) + m.a(x).relu().median(-1, keepdim=True)[0],
    "kthvalue": lambda m, x: m.o(m.a(x).relu()) + m.a(x).relu().kthvalue(2, -1, keepdim=True)[0],
    "the best put back": lambda m, x: m.o(_put_back(m.a(x).relu())),
    "the best put back, masked": lambda m, x: m.o(_put_back(m.a(x).masked_fill(m.a(x) < 0, 0.0))),
}


def _put_back(h: Tensor, change: Callable[[Tensor], Tensor] = lambda values: values) -> Tensor:
    """The two largest of the units, the others zero: which of several zeros was taken does not matter."""
    values, places = h.topk(2, -1)
    return torch.zeros_like(h).scatter(-1, places, change(values))


@pytest.mark.parametrize("name", VALUES)
def test_values_alone_leave_ties_alone(name: str) -> None:
    torch.manual_seed(0)
    model = randomise(Net(lambda m, x: VALUES[name](m, x), a=lin(3, WIDTH), o=lin(WIDTH, 2)))
    sym = coset.symmetry(model, ordinary(8), strict=True)
    assert has_units(sym) and not sym.notes
    assert moved(sym, model, torch.cat([ordinary(), special()])) < 1e-9


ELSEWHERE: dict[str, Callable[[Tensor], Tensor]] = {
    "another number": lambda h: _put_back(h.relu(), lambda values: values + 1),
    "zeros moved before": lambda h: _put_back(h.relu() + 1),
    "zeros moved by each row": lambda h: _put_back(h.relu() + h.sum(-1, keepdim=True)),
    "a floor that is not zero": lambda h: _put_back(F.threshold(h, 0.1, 0.3)),
    "exponentials": lambda h: _put_back(h.relu().exp()),
    "one over": lambda h: _put_back(-1 / h.relu()),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_put_back_as_another_number_fixes(name: str) -> None:
    torch.manual_seed(0)
    model = randomise(Net(lambda m, x: m.o(ELSEWHERE[name](m.a(x)).tanh()), a=lin(3, WIDTH), o=lin(WIDTH, 2)))
    assert not has_units(coset.symmetry(model, ordinary(8)))


def test_a_buffer_may_hold_equal_numbers() -> None:
    """The bias of a router that is a buffer, as those that balance their experts have, begins as zeros."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.w[(m.r(x).sigmoid() + m.c).topk(2, -1)[1]].sum(1)

    model = randomise(Net(forward, r=no_bias(), c=torch.zeros(WIDTH), w=par(WIDTH, 2)))
    assert len(coset.symmetry(model, ordinary(8)).notes) == 1


def test_the_note_survives_a_file() -> None:
    sym = coset.symmetry(net(RARELY["no bias"], "topk"), ordinary(8))
    assert Symmetry.from_json(sym.to_json()).notes == sym.notes
