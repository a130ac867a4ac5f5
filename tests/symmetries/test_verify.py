"""Verification can fail: broken specs are caught, where weights hide them and where a group hardly shows, too."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin, par, seq
from oracle import signature
from samples import Sample, attention, batch_normed, mlp, relu_mlp
from torch import Tensor, nn

import coset
from coset import Symmetry, SymmetryError
from coset.symmetries.examples import Example
from coset.symmetries.verify import check


def edited(sym: Symmetry, change: Callable[[dict[str, Any]], None]) -> Symmetry:
    raw = json.loads(sym.to_json())
    raw.update(matrices={}, blocked={})
    change(raw)
    return Symmetry.from_json(json.dumps(raw))


def name_of(sym: Symmetry, tensor: str, axis: int, over: bool = False) -> str:
    return next(g.name for g in sym.groups if (tensor, axis) in g.members and bool(g.over) == over)


def broken(kind: str) -> tuple[nn.Module, tuple[Any, ...], Symmetry, str]:
    """A model, a spec with one mistake, and the group it is in."""
    make = {
        "swapped axes": mlp,
        "moved output": mlp,
        "moved input": mlp,
        "one way of two": relu_mlp,
        "wrong power": relu_mlp,
        "sign of relu": relu_mlp,
        "lost member": mlp,
        "lost buffer": batch_normed,
        "lost variance": batch_normed,
    }.get(kind, attention)
    model, args = make()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape) + 0.5)
            assert name
    sym = coset.symmetry(model, args)
    first = "0.weight" if make is not attention else "q.weight"
    group = name_of(sym, first, 0)

    def change(raw: dict[str, Any]) -> None:
        tensors, groups = raw["tensors"], raw["groups"]
        if kind in PERMUTATIONS:
            raw["scalings"] = {}
        if kind == "swapped axes":
            # The group of the first layer moves the rows, not the columns, of the second.
            groups[group] = 4
            tensors["2.weight"] = [{"concat": [group, 1]}, 4]
        elif kind == "moved output":
            groups["out"] = 2
            tensors["4.weight"][0] = "out"
            tensors["4.bias"] = ["out"]
        elif kind == "moved input":
            groups["in"] = 3
            tensors["0.weight"][1] = "in"
        elif kind == "lost member":
            tensors["0.bias"] = [4]
        elif kind == "lost buffer":
            del tensors["1.running_mean"]
        elif kind == "lost variance":
            tensors["1.running_var"] = [4]
        elif kind == "values tied to keys":
            inner = name_of(sym, "q.weight", 0, over=True)
            values = name_of(sym, "v.weight", 0, over=True)
            tensors["v.weight"] = [[group, inner], 3]
            tensors["v.bias"] = [[group, inner]]
            assert values != inner
        elif kind == "heads apart":
            groups["other"] = 2
            values = name_of(sym, "v.weight", 0, over=True)
            groups[values] = {"size": 4, "over": ["other"]}
            tensors["v.weight"] = [["other", values], 3]
            tensors["v.bias"] = [["other", values]]
            tensors["o.weight"] = [2, ["other", values]]
        elif kind == "wrong power":
            (scaling,) = (s for s in raw["scalings"].values() if s["kind"] == "scaling")
            scaling["members"][-1][2] *= 2
        elif kind == "one way of two":
            (scaling,) = (s for s in raw["scalings"].values() if s["kind"] == "scaling")
            scaling["members"] = scaling["members"][:2]
        elif kind == "sign of relu":
            (scaling,) = (s for s in raw["scalings"].values() if s["kind"] == "scaling")
            scaling["kind"] = "sign"
        else:
            raise AssertionError(kind)

    blamed = {"moved output": "out", "moved input": "in", "heads apart": "other"}.get(kind, group)
    if kind == "values tied to keys":
        blamed = name_of(sym, "q.weight", 0, over=True)
    return model, args, edited(sym, change), blamed


PERMUTATIONS = (
    "swapped axes",
    "moved output",
    "moved input",
    "lost member",
    "lost buffer",
    "lost variance",
    "values tied to keys",
    "heads apart",
)
FACTORS = ("wrong power", "one way of two", "sign of relu")


@pytest.mark.parametrize("kind", [*PERMUTATIONS, *FACTORS])
def test_a_broken_spec_is_caught(kind: str) -> None:
    model, args, wrong, group = broken(kind)
    with pytest.raises(SymmetryError) as caught:
        wrong.verify(model, args)
    assert group in str(caught.value)


def hide(model: nn.Module, how: str) -> None:
    """Weights that make the output hardly depend on anything."""
    with torch.no_grad():
        linear = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        if how == "zero head":
            linear[-1].weight.zero_()
            linear[-1].bias.zero_()
        elif how == "zero biases":
            for m in linear:
                m.bias.zero_()
        elif how == "saturated":
            linear[0].weight.mul_(1e4)
            linear[0].bias.fill_(-1e5)
        elif how == "constant weights":
            for p in model.parameters():
                p.fill_(0.1)
        elif how == "tiny":
            for p in model.parameters():
                p.mul_(1e-6)


@pytest.mark.parametrize("how", ["zero head", "zero biases", "saturated", "constant weights", "tiny"])
@pytest.mark.parametrize(
    "kind",
    [
        "lost buffer",
        "wrong power",
        *[pytest.param(k, marks=pytest.mark.slow) for k in ("swapped axes", "lost member", "values tied to keys")],
    ],
)
def test_weights_that_hide_everything_hide_nothing(kind: str, how: str) -> None:
    model, args, wrong, _ = broken(kind)
    hide(model, how)
    right = coset.symmetry(model, args)
    assert right.verification is not None
    assert right.verification.conclusive
    with pytest.raises(SymmetryError):
        wrong.verify(model, args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_layer_scale_of_a_millionth_hides_nothing(dtype: torch.dtype) -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.out(x + m.gamma * m.down(F.gelu(m.up(x))))

    model = Net(forward, up=lin(3, 6), down=lin(6, 3), gamma=nn.Parameter(1e-6 * torch.ones(3)), out=lin(3, 2))
    model, args = model.to(dtype), (torch.randn(4, 3).to(dtype),)
    sym = coset.symmetry(model, args)
    assert sym.verification is not None
    assert sym.verification.conclusive
    assert signature(sym) == {"6": 1}
    with pytest.raises(SymmetryError, match="up"):
        edited(sym, lambda raw: raw.update(tensors={**raw["tensors"], "down.weight": [3, 6]}, scalings={})).verify(
            model, args
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("make", [mlp, relu_mlp, batch_normed, attention])
def test_dtypes(make: Callable[[], Sample], dtype: torch.dtype) -> None:
    model, args = make()
    model, args = model.to(dtype), tuple(x.to(dtype) for x in args)
    sym = coset.symmetry(model, args)
    assert sym.verification is not None
    assert sym.verification.conclusive
    image = sym.act(sym.random(scalings=True), model.state_dict())
    assert {t.dtype for t in image.values()} == {t.dtype for t in model.state_dict().values()}


def test_mixed_dtypes() -> None:
    """Half-precision layers with a float32 norm between, as mixed-precision checkpoints have."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.norm(m.a(x).float()).to(torch.bfloat16)
        return m.b(F.gelu(h))

    model = Net(forward, a=lin(3, 4).bfloat16(), norm=nn.LayerNorm(4), b=lin(4, 2).bfloat16())
    sym = coset.symmetry(model, (torch.randn(6, 3).bfloat16(),))
    assert signature(sym) == {"4": 1}
    assert sym.verification is not None
    assert sym.verification.conclusive


def test_a_constant_model_is_inconclusive() -> None:
    model = Net(lambda m, x: 0 * m.b(F.gelu(m.a(x))) + m.c, a=lin(3, 4), b=lin(4, 2), c=par(2))
    sym = coset.symmetry(model, (torch.randn(4, 3),))
    assert sym.verification is not None
    assert not sym.verification.conclusive
    assert sym.verification.note.startswith("inconclusive")


def test_a_model_that_ignores_its_input_is_inconclusive() -> None:
    model = Net(lambda m, x: m.b(F.gelu(m.a(x * 0 + 1))), a=lin(3, 4), b=lin(4, 2))
    sym = coset.symmetry(model, (torch.randn(4, 3),))
    assert sym.verification is not None
    assert not sym.verification.conclusive


def test_complex_and_integer_outputs_count() -> None:
    model = Net(lambda m, x: torch.fft.fft(m.b(F.gelu(m.a(x)))), a=lin(3, 4), b=lin(4, 2))
    sym = coset.symmetry(model, (torch.randn(4, 3),))
    assert sym.verification is not None
    assert sym.verification.conclusive
    wrong = edited(sym, lambda raw: raw["tensors"].update({"b.weight": [2, 4]}))
    with pytest.raises(SymmetryError, match="'a'"):
        wrong.verify(model, (torch.randn(4, 3),))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tensor", ["0.weight", "2.bias"])
def test_weights_that_are_not_finite_are_refused_by_name(value: float, tensor: str) -> None:
    model, args = mlp()
    with torch.no_grad():
        model.state_dict()[tensor].view(-1)[0] = value
    with pytest.raises(coset.CosetError, match=tensor.replace(".", r"\.")):
        coset.symmetry(model, args)


def test_buffers_that_are_not_finite_are_refused_by_name() -> None:
    model, args = batch_normed()
    model[1].running_var[0] = math.nan
    with pytest.raises(coset.CosetError, match="running_var"):
        coset.symmetry(model, args)


def test_an_output_that_is_not_finite_is_said() -> None:
    model = Net(lambda m, x: m.b(F.gelu(m.a(x))) / 0.0, a=lin(3, 4), b=lin(4, 2))
    with pytest.raises(SymmetryError, match="finite"):
        coset.symmetry(model, (torch.randn(4, 3),))


def test_masks_of_minus_infinity_in_the_output_are_fine() -> None:
    model = Net(
        lambda m, x: m.b(F.gelu(m.a(x))).masked_fill(torch.tensor([True, False]), -math.inf), a=lin(3, 4), b=lin(4, 2)
    )
    sym = coset.symmetry(model, (torch.randn(4, 3),))
    assert sym.verification is not None
    assert sym.verification.conclusive


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("small", [1e-3, 1e-7])
def test_a_branch_behind_a_small_constant_is_seen_or_not_vouched_for(small: float, dtype: torch.dtype) -> None:
    """The rest of the net is right and loud; the broken group only whispers."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.b(F.gelu(m.a(x))) + small * m.d(F.gelu(m.c(x)))

    model = Net(forward, a=lin(3, 4), b=lin(4, 2), c=lin(3, 5), d=lin(5, 2)).to(dtype)
    args = (torch.randn(6, 3, dtype=dtype),)
    sym = coset.symmetry(model, args)
    wrong = edited(sym, lambda raw: raw["tensors"].update({"d.weight": [2, 5]}))
    try:
        result = check(wrong, model, Example(args))
        assert not result.conclusive or ("c" in result.weak and "'c'" in result.note)
    except SymmetryError as error:
        assert "'c'" in str(error)


def test_a_dead_branch_is_not_vouched_for() -> None:
    """A group that no output depends on cannot be verified, and the rest can."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.b(F.gelu(m.a(x))) + 0.0 * m.d(F.gelu(m.c(x)))

    model = Net(forward, a=lin(3, 4), b=lin(4, 2), c=lin(3, 5), d=lin(5, 2))
    args = (torch.randn(6, 3),)
    wrong = edited(coset.symmetry(model, args), lambda raw: raw["tensors"].update({"b.weight": [2, 4]}))
    with pytest.raises(SymmetryError, match="'a'"):
        wrong.verify(model, args)


def test_approximate_scalings_are_verified_too() -> None:
    model = seq(lin(3, 4), nn.LayerNorm(4), nn.GELU(), lin(4, 2))
    args = (torch.randn(6, 3),)
    sym = coset.symmetry(model, args)

    def change(raw: dict[str, Any]) -> None:
        rough = [s for s in raw["scalings"].values() if "approximate" in s]
        assert rough
        rough[0]["members"] = [["3.weight", None, 1.0]]

    with pytest.raises(SymmetryError):
        edited(sym, change).verify(model, args)


@pytest.mark.parametrize("layer", [2, 4])
def test_one_trial_moves_every_group(layer: int) -> None:
    """Half of the random orders of two units are no change at all; a wrong pair must be seen all the same."""
    layers: list[nn.Module] = [lin(3, 2)]
    for _ in range(6):
        layers += [nn.GELU(), lin(2, 2)]
    model, args = seq(*layers), (torch.randn(6, 3),)
    sym = coset.symmetry(model, args)
    wrong = edited(sym, lambda raw: raw["tensors"].update({f"{2 * layer}.bias": [2]}))
    with pytest.raises(SymmetryError, match=repr(str(2 * layer))):
        wrong.verify(model, args, trials=1)


def test_verify_returns_what_it_saw_and_compares_by_the_deviation() -> None:
    model, args = mlp()
    sym = coset.symmetry(model, args)
    v: coset.Verification = sym.verify(model, args, trials=2)
    assert v < 1e-5 and v <= v.deviation and not v > 1e-5 and v >= 0 and float(v) == v.deviation
    assert (
        v.conclusive and v.trials == 2 and v.control > 30 * v.deviation and v > dataclasses.replace(v, deviation=-1.0)
    )
