"""Verification can fail: broken specs are caught where weights hide them too, and nothing is touched on the way."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, conv, image, lin, par, seq
from oracle import deviation, randomise, signature
from torch import Tensor, nn

import coset
from coset import SymmetryError
from coset.symmetries import Symmetry
from coset.symmetries.verify import check

Sample = tuple[nn.Module, tuple[Any, ...]]


def mlp() -> Sample:
    return seq(lin(3, 4), nn.GELU(), lin(4, 5), nn.GELU(), lin(5, 2)), (torch.randn(4, 3),)


def relu_mlp() -> Sample:
    return seq(lin(3, 4), nn.ReLU(), lin(4, 2)), (torch.randn(8, 3),)


def batch_normed() -> Sample:
    return seq(conv(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2, 1)), (image(),)


def attention() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        q, k, v = (p(x).view(2, 5, 2, 4).transpose(1, 2) for p in (m.q, m.k, m.v))
        return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8))

    return Net(forward, q=lin(3, 8), k=lin(3, 8), v=lin(3, 8), o=lin(8, 2)), (torch.randn(2, 5, 3),)


def edited(sym: Symmetry, change: Callable[[dict[str, Any]], None]) -> Symmetry:
    raw = json.loads(sym.to_json())
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
    moved = sym.act(sym.random(scalings=True), model.state_dict())
    assert {t.dtype for t in moved.values()} == {t.dtype for t in model.state_dict().values()}


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


# --- nothing is touched ------------------------------------------------------------------------------------


class Busy(nn.Module):
    """Batch norm, dropout, and a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = lin(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), lin(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(F.gelu(self.norm(self.a(x))))
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return self.b(h)


def test_the_model_and_its_inputs_are_untouched() -> None:
    model, x = Busy(), torch.randn(4, 3)
    model.norm.eval()
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    before = {n: t.detach().clone() for n, t in tensors.items()}
    flags = {n: m.training for n, m in model.named_modules()}
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    keys, given, fast = sorted(vars(model)), x.clone(), torch.backends.mha.get_fastpath_enabled()
    coset.symmetry(model, (x,))
    after = dict([*model.named_parameters(), *model.named_buffers()])
    assert all(after[n] is tensors[n] and torch.equal(after[n], before[n]) for n in tensors)
    assert {n: m.training for n, m in model.named_modules()} == flags
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert sorted(vars(model)) == keys
    assert torch.equal(x, given)
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_random_numbers_are_untouched() -> None:
    model, args = mlp()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    coset.symmetry(model, args).random()
    torch.manual_seed(123)
    coset.symmetry(model, args)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_broken_model_is_put_back_too() -> None:
    model = Net(lambda m, x: m.a(x) if float(x.sum()) > 0 else -m.a(x), a=lin(3, 4)).train()
    with pytest.raises(SymmetryError):
        coset.symmetry(model, (torch.randn(2, 3),))
    assert model.training
    assert model.a.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_still_runs(kind: type[nn.RNNBase]) -> None:
    model = Net(lambda m, x: m.o(m.r(x)[0]), r=kind(3, 4, 2, batch_first=True, bidirectional=True), o=lin(8, 2))
    x = torch.randn(2, 5, 3)
    expected = model(x)
    sym = coset.symmetry(model, (x,))
    assert torch.equal(model(x), expected)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    again = copy.deepcopy(model)
    again.load_state_dict(sym.act(sym.random(), model.state_dict()))
    assert torch.allclose(again(x), expected, atol=1e-6)
    assert type(model.r.weight_ih_l0) is nn.Parameter
    assert model.r._flat_weights[0] is model.r.weight_ih_l0


def test_the_same_answer_twice() -> None:
    model, args = attention()
    first, second = coset.symmetry(model, args), coset.symmetry(model, args)
    assert first.to_json() == second.to_json()
    assert first.verification == second.verification


# --- errors ------------------------------------------------------------------------------------------------


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 500
    return text


def test_a_model_that_cannot_be_traced() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = lin(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if float(x.sum()) > 0 else -self.a(x)

    with pytest.raises(SymmetryError) as caught:
        coset.symmetry(Branching(), (torch.randn(2, 3),))
    assert "Branching" in one_sentence(caught.value)


@pytest.mark.parametrize("mask", ["select", "nonzero"])
def test_sizes_that_depend_on_the_data(mask: str) -> None:
    """Either fixed or refused in a sentence, but no crash."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h = F.gelu(m.a(x))
        if mask == "select":
            return m.b(h) + h[h > 0].sum()
        return m.b(h).index_select(0, torch.nonzero(x[:, 0] > -9).flatten()).sum(0)

    model, args = Net(forward, a=lin(3, 4), b=lin(4, 2)), (torch.randn(5, 3),)
    try:
        sym = coset.symmetry(model, args)
    except SymmetryError as error:
        one_sentence(error)
    else:
        model = randomise(model)
        moved = sym.act(sym.random(), model.state_dict())
        assert deviation(model, (args[0].double(),), moved) < 1e-9


def test_strict_names_the_op() -> None:
    model = Net(lambda m, x: m.b(torch.fft.rfft(m.a(x)).abs()), a=lin(3, 4), b=lin(3, 2))
    args = (torch.randn(4, 3),)
    with pytest.raises(SymmetryError, match="fft_rfft"):
        coset.symmetry(model, args, strict=True)
    sym = coset.symmetry(model, args)
    assert any(f.tensor == "a.weight" and f.op == "fft_rfft" for f in sym.fixed)
    assert coset.symmetry(mlp()[0], mlp()[1], strict=True).groups


def test_strict_is_quiet_where_nothing_is_lost() -> None:
    """An unknown op on the input touches nothing that could move."""
    model = Net(lambda m, x: m.b(F.gelu(m.a(torch.fft.rfft(x).abs()))), a=lin(2, 4), b=lin(4, 2))
    assert signature(coset.symmetry(model, (torch.randn(4, 3),), strict=True)) == {"4": 1}


def test_wrong_inputs_are_said() -> None:
    model, _ = mlp()
    with pytest.raises(SymmetryError) as caught:
        coset.symmetry(model, (torch.randn(4, 5),))
    one_sentence(caught.value)


# --- without weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_meta_models(device: str) -> None:
    with torch.device("meta"):
        model, _ = attention()
    sym = coset.symmetry(model, (torch.randn(2, 5, 3, device=device),))
    assert sym.verification is None
    assert signature(sym) == {"2": 1, "4/2": 2}
    real, args = attention()
    assert coset.symmetry(real, args).to_json() == sym.to_json()
    assert deviation(real.double(), (args[0].double(),), sym.act(sym.random(), real.state_dict())) < 1e-9


# --- other inputs than the example -------------------------------------------------------------------------


def test_rows_beyond_the_example_are_not_free() -> None:
    """A learned position that the example is too short to use is no free unit: a longer input will use it."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(F.gelu(m.e(x) + m.pos[: x.shape[1]]))

    model = randomise(Net(forward, e=nn.Embedding(7, 4), pos=par(9, 4), o=lin(4, 2)))
    sym = coset.symmetry(model, (torch.randint(7, (2, 5)),))
    assert signature(sym) == {"4": 1}
    for trial in range(3):
        moved = sym.act(sym.random(scalings=trial > 0), model.state_dict())
        assert deviation(model, (torch.randint(7, (2, 9)),), moved) < 1e-9


def test_a_causal_mask_beyond_the_example_is_not_free() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        n = x.shape[1]
        h = m.e(x)
        scores = (m.q(h) @ m.k(h).transpose(1, 2)).masked_fill(m.mask[:n, :n] == 0, -1e9)
        return m.o(scores.softmax(-1) @ h)

    model = Net(forward, e=nn.Embedding(7, 4), q=lin(4, 3), k=lin(4, 3), o=lin(4, 2), mask=torch.ones(9, 9).tril())
    model = randomise(model)
    sym = coset.symmetry(model, (torch.randint(7, (2, 5)),))
    moved = sym.act(sym.random(scalings=True), model.state_dict())
    assert deviation(model, (torch.randint(7, (2, 9)),), moved) < 1e-9


def test_gpt_of_the_zoo_at_another_length() -> None:
    model = randomise(coset.zoo.GPT(7, 12, 8, 1, 2))
    sym = coset.symmetry(model, (torch.randint(7, (2, 5)),))
    moved = sym.act(sym.random(scalings=True), model.state_dict())
    for length in (1, 5, 12):
        assert deviation(model, (torch.randint(7, (3, length)),), moved) < 1e-9


def test_another_batch_size_and_image_size() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.out(F.adaptive_avg_pool2d(F.relu(m.bn(m.a(x))), 1).flatten(1))

    model = randomise(Net(forward, a=conv(3, 4, 3), bn=nn.BatchNorm2d(4), out=lin(4, 2)))
    sym = coset.symmetry(model, (image(3, 6).double(),))
    moved = sym.act(sym.random(scalings=True), model.state_dict())
    for x in (torch.randn(1, 3, 6, 6), torch.randn(5, 3, 9, 4)):
        assert deviation(model, (x.double(),), moved) < 1e-9


@pytest.mark.parametrize("tokens", [1, 2])
def test_examples_of_size_one(tokens: int) -> None:
    """A single example or token must not make more things look interchangeable."""

    def forward(m: Net, x: Tensor) -> Tensor:
        q, k, v = (p(x).view(*x.shape[:2], 2, 4).transpose(1, 2) for p in (m.q, m.k, m.v))
        return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    model = randomise(Net(forward, q=lin(3, 8), k=lin(3, 8), v=lin(3, 8), o=lin(8, 2)))
    sym = coset.symmetry(model, (torch.randn(1, tokens, 3).double(),))
    moved = sym.act(sym.random(scalings=True), model.state_dict())
    assert deviation(model, (torch.randn(2, 6, 3).double(),), moved) < 1e-9


# --- a wrong group that hardly shows -----------------------------------------------------------------------


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
        found = check(wrong, model, args)
        assert not found.conclusive or ("c" in found.weak and "'c'" in found.note)
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
