"""Matrices that act on units: which every op allows, compared with a null space, and what they do to networks."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import Symmetry, zoo
from coset.core import state as states
from coset.symmetries.comparison import generic
from coset.symmetries.serialization import load_element, save_element

N = 5


class Net(nn.Module):
    """x -> f(a x), with weights by name."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor], **weights: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, weight in weights.items():
            setattr(self, name, weight)
        self.body = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def linear(a: int, b: int, bias: bool = True) -> nn.Linear:
    return nn.Linear(a, b, bias=bias)


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def centred(x: Tensor) -> Tensor:
    apart = x - x.mean(-1, keepdim=True)
    return apart * torch.rsqrt(apart.square().mean(-1, keepdim=True) + 1e-6)


def pair(**more: nn.Module | nn.Parameter) -> dict[str, nn.Module | nn.Parameter]:
    return {"a": linear(6, N), "b": linear(N, 6), **more}


# What is between two linear maps -> the group of matrices between them.
BETWEEN: dict[str, tuple[Callable[[Net, Tensor], Tensor], str]] = {
    "nothing": (lambda m, h: h, "linear"),
    "number": (lambda m, h: 3 * h / 2 - h, "linear"),
    "rms": (lambda m, h: rms(h), "orthogonal"),
    "rms op": (lambda m, h: F.rms_norm(h, (N,)), "orthogonal"),
    "length": (lambda m, h: F.normalize(h, dim=-1), "orthogonal"),
    "vector norm": (lambda m, h: h / (1 + h.norm(dim=-1, keepdim=True)), "orthogonal"),
    "product with itself": (lambda m, h: h * (h * h).sum(-1, keepdim=True), "orthogonal"),
    "einsum": (lambda m, h: h * torch.einsum("bi,bi->b", h, h)[:, None], "orthogonal"),
    "layer norm": (lambda m, h: F.layer_norm(h, (N,)), "centred"),
    "layer norm by hand": (lambda m, h: centred(h), "centred"),
    "deviation": (lambda m, h: h / (1 + h.std(-1, keepdim=True)), "centred"),
    "mean added": (lambda m, h: h + h.mean(-1, keepdim=True), "centred"),
    "number added": (lambda m, h: rms(h + 1), ""),
    "mask": (lambda m, h: torch.where((h.sum(-1, keepdim=True) > 0), h, -h), "centred"),
    "relu": (lambda m, h: h.relu(), ""),
    "square": (lambda m, h: h * h, ""),
    "one norm": (lambda m, h: h / (1 + h.abs().sum(-1, keepdim=True)), ""),
    "four norm": (lambda m, h: h / (1 + torch.linalg.vector_norm(h, 4, dim=-1, keepdim=True)), ""),
    "gain": (lambda m, h: h * m.g, "linear"),
    "gain after rms": (lambda m, h: rms(h) * m.g, "orthogonal"),
    "gain and bias": (lambda m, h: F.layer_norm(h, (N,), m.g, m.c), "centred"),
    "two gains": (lambda m, h: rms(h * m.g) * m.k, "orthogonal"),
    "largest": (lambda m, h: h * h.amax(-1, keepdim=True), ""),
    "softmax": (lambda m, h: h.softmax(-1), ""),
    "sorted": (lambda m, h: h.sort(-1).values, ""),
    "two blocks": (lambda m, h: torch.cat([h[:, 2:], h[:, :2]], -1), "linear linear"),
    "residual": (lambda m, h: h + m.d(rms(h)), "orthogonal"),
    "residual, linear": (lambda m, h: h + m.d(h), "linear"),
    "bilinear": (lambda m, h: h * (m.d(h) * h).sum(-1, keepdim=True), "linear"),
    "distance": (lambda m, h: h * torch.cdist(h, m.d.weight).sum(-1, keepdim=True), "orthogonal"),
    "twice the number": (lambda m, h: h.pow(1), "linear"),
}


def between(name: str) -> nn.Module:
    torch.manual_seed(0)
    body, _ = BETWEEN[name]
    weights = pair(d=linear(N, N), g=nn.Parameter(torch.rand(N) + 0.5), k=nn.Parameter(torch.rand(N) + 0.5),
                   c=nn.Parameter(torch.randn(N)))  # fmt: skip
    return Net(lambda m, x: m.b(body(m, m.a(x))), **weights).double().eval()


@functools.cache
def inferred(name: str) -> tuple[nn.Module, Tensor, Symmetry]:
    model = between(name)
    x = torch.randn(7, 6, dtype=torch.float64)
    return model, x, coset.symmetry(model, x, unreached="ignore")


def tangents(model: nn.Module, sym: Symmetry, x: Tensor) -> int:
    """Dimension of the Lie algebra on the units of `a`, by a null space.

    All pairs (A, B) of matrices with d/dt f((1 + tA) W_in, W_out (1 + tB)) = 0 at t = 0, for a bias on the way, and
    for other weights as they are; gains are ones.
    """
    state = coset.fold(states.of(model), sym)
    eye = torch.eye(N, dtype=torch.float64)

    def output(flat: Tensor) -> Tensor:
        writing, reading = flat[: N * N].reshape(N, N), flat[N * N :].reshape(N, N)
        moved = dict(state)
        moved["a.weight"] = (eye + writing) @ state["a.weight"]
        moved["a.bias"] = (eye + writing) @ state["a.bias"]
        moved["b.weight"] = state["b.weight"] @ (eye + reading)
        return torch.func.functional_call(model, moved, (torch.cat([x, 3 * x, x - 1]),)).flatten()

    jacobian = torch.func.jacrev(output)(torch.zeros(2 * N * N, dtype=torch.float64))
    return 2 * N * N - int(torch.linalg.matrix_rank(jacobian, rtol=1e-9))


# Those in which no other weight has the units, so that the null space is of these alone.
ALONE = ("nothing", "number", "rms", "length", "vector norm", "product with itself", "einsum", "layer norm by hand",
         "deviation", "mean added", "relu", "square", "one norm", "four norm", "gain after rms", "largest",
         "softmax", "twice the number")  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
def test_the_largest_group_that_every_step_allows(name: str) -> None:
    _, _, sym = inferred(name)
    kinds = [group.kind for group in sym.matrices if any(member.tensor == "a.weight" for member in group.members)]
    assert kinds == BETWEEN[name][1].split(), sym.matrices


# What is free besides: positive factors of units or of all weights, what means and softmax do not see of the vectors
# that enter, and of those that are read; and where a mean is mixed with the units, matrices that do not fix ones.
BESIDE = {"relu": N, "square": N, "largest": 1, "length": 1, "product with itself": 1, "einsum": 1, "softmax": N,
          "layer norm by hand": 2 * N, "deviation": N, "mean added": N * N - 6}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_dimension_is_that_of_a_null_space(name: str) -> None:
    model, _, sym = inferred(name)
    rows = torch.randn(200, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    free = tangents(model, sym, rows)
    assert free - sum(group.dimension for group in sym.matrices) == BESIDE.get(name, 0)


@pytest.mark.parametrize("name", [name for name, (_, kind) in BETWEEN.items() if kind])
@pytest.mark.parametrize("seed", range(3))
def test_the_function_stays(name: str, seed: int) -> None:
    model, x, sym = inferred(name)
    for weights in (states.of(model), generic(states.of(model), torch.Generator().manual_seed(seed))):
        state = coset.fold(weights, sym)
        expected = states.call(model, weights, (x,))
        torch.testing.assert_close(states.call(model, state, (x,)), expected, rtol=1e-9, atol=1e-9)
        g = sym.random(torch.Generator().manual_seed(seed), scalings=True, matrices=True)
        image = sym.act(g, state)
        assert not torch.allclose(image["a.weight"], state["a.weight"], rtol=0.1)
        torch.testing.assert_close(states.call(model, image, (x,)), expected, rtol=1e-8, atol=1e-8)


SPECS = {
    "gpt-ln": "gpt:dim=16,depth=1,heads=2,tied=false",
    "llama": "gpt:dim=16,depth=1,heads=4,kv_heads=2,rope=true,swiglu=true,norm=rms,tied=false",
    "vit": "vit:dim=16,depth=1,heads=2,patch=16",
}


@functools.cache
def transformer(name: str) -> tuple[nn.Module, Symmetry]:
    torch.manual_seed(0)
    model = zoo.build(SPECS[name]).double().eval()
    args = tuple(x.double() if x.is_floating_point() else x for x in zoo.example_input(model))
    return model, coset.symmetry(model, args)


KINDS = {
    "gpt-ln": ["centred", "linear", "linear"],
    "llama": ["linear", "orthogonal", "phase"],
    "vit": ["centred", "linear", "linear"],
}


@pytest.mark.parametrize("name", SPECS)
def test_streams_and_heads_of_transformers(name: str) -> None:
    _, sym = transformer(name)
    assert sorted(group.kind for group in sym.matrices) == KINDS[name]
    stream = next(group for group in sym.matrices if group.kind in ("orthogonal", "centred"))
    assert stream.dimension == (16 * 15 // 2 if stream.kind == "orthogonal" else 15 * 14 // 2)
    for group in sym.matrices:
        if group.kind == "linear":
            assert group.dimension == group.copies * group.size**2 and any(member.dual for member in group.members)
    assert sym.dimension >= sum(group.dimension for group in sym.matrices)
    assert not sym.without_matrices().matrices


def folded(name: str, seed: int = 0) -> dict[str, Tensor]:
    model, sym = transformer(name)
    return coset.fold(generic(states.of(model), torch.Generator().manual_seed(seed)), sym)


def close(a: coset.state.State, b: coset.state.State) -> bool:
    return states.allclose(a, b, rtol=1e-8, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(SPECS)), st.tuples(*[st.integers(0, 2**20)] * 3), st.booleans())
def test_group_laws(name: str, seeds: tuple[int, int, int], batched: bool) -> None:
    _, sym = transformer(name)
    state = folded(name)
    g, h, k = (
        sym.random(
            torch.Generator().manual_seed(s), scalings=True, matrices=True, batch=2 if batched and n == 0 else None
        )
        for n, s in enumerate(seeds)
    )
    assert close(sym.act(g @ h, state), sym.act(g, sym.act(h, state)))
    assert close(sym.act((g @ h) @ k, state), sym.act(g @ (h @ k), state))
    back = sym.act(g.inverse(), sym.act(g, state))
    expected = states.stack([state, state]) if batched else state
    assert close(back, expected) and close(sym.act(g @ g.inverse(), state), expected)


@pytest.mark.parametrize("name", SPECS)
def test_random_matrices_are_what_they_are_said_to_be(name: str) -> None:
    _, sym = transformer(name)
    g = sym.random(torch.Generator().manual_seed(0), matrices=True, batch=200)
    for group in sym.matrices:
        m = g.matrices[group.name]
        eye = torch.eye(group.order, dtype=m.dtype)
        if group.kind == "linear":
            values = torch.linalg.svdvals(m)
            assert float(values.min()) >= 0.5 and float(values.max()) <= 2
        else:
            torch.testing.assert_close(m @ m.mT, eye.expand(m.shape), rtol=0, atol=1e-12)
        if group.kind == "centred":
            torch.testing.assert_close(m.sum(-1), torch.ones(m.shape[:-1], dtype=m.dtype), rtol=0, atol=1e-12)
        if group.kind == "orthogonal":
            # Haar: entries have mean 0 and variance 1 / n, and both determinants are met.
            assert abs(float(m.mean())) < 4 / math.sqrt(m.numel()) and abs(float(m.var()) * group.size - 1) < 0.1
            assert 60 < int((torch.linalg.det(m) > 0).sum()) < 140


@pytest.mark.parametrize("name", SPECS)
def test_files(name: str, tmp_path: Path) -> None:
    _, sym = transformer(name)
    g = sym.random(torch.Generator().manual_seed(3), scalings=True, matrices=True)
    again = Symmetry.from_json(sym.to_json())
    assert (again.matrices, again.blocked) == (sym.matrices, sym.blocked)
    save_element(tmp_path / "g.safetensors", sym, g)
    _, read = load_element(tmp_path / "g.safetensors")
    assert close(sym.act(read, folded(name)), sym.act(g, folded(name)))


def test_damaged_matrices_in_files_are_refused(tmp_path: Path) -> None:
    _, sym = transformer("llama")
    g = sym.random(torch.Generator().manual_seed(3), matrices=True)
    for group in sym.matrices:
        good = g.matrices[group.name]
        for bad in (good[..., :1, :], good * 1.5 if group.kind != "linear" else good * 0, good.float() / 0):
            save_element(tmp_path / "g.safetensors", sym, sym.element(matrices={group.name: bad}))
            with pytest.raises(coset.StateError, match="matrix/"):
                load_element(tmp_path / "g.safetensors")


def test_a_wrong_specification_is_caught() -> None:
    """A rotation across a GELU, a gain that is not folded, pairs of rotary positions mixed up."""
    model, sym = transformer("llama")
    args = zoo.example_input(model)
    raw = json.loads(sym.to_json())
    hidden = next(group for group in sym.groups if group.size == 42)
    across = {"kind": "orthogonal", "members": [[tensor, axis] for tensor, axis in hidden.members]}
    with pytest.raises(coset.SymmetryError, match=re.escape(f"matrices of '{hidden.name}'")):
        Symmetry.from_json(json.dumps({**raw, "matrices": {hidden.name: across}})).verify(model, args)
    stream = next(group for group in sym.matrices if group.kind == "orthogonal")
    unfolded = {**raw["matrices"][stream.name], "gains": []}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in stream.gains:
                parameter.uniform_(0.5, 2)
    with pytest.raises(coset.SymmetryError, match=re.escape(f"matrices of '{stream.name}'")):
        Symmetry.from_json(json.dumps({**raw, "matrices": {stream.name: unfolded}})).verify(model, args)
    pairs = next(group for group in sym.matrices if group.kind == "phase")
    swapped = [[t, a, two, dual, one] if "key" in t else [t, a, one, dual, two]
               for t, a, one, dual, two in raw["matrices"][pairs.name]["members"]]  # fmt: skip
    with pytest.raises(coset.SymmetryError, match=r"no such pair"):
        Symmetry.from_json(json.dumps({**raw, "matrices": {pairs.name: {"kind": "phase", "members": swapped}}}))
    only_keys = [member for member in raw["matrices"][pairs.name]["members"] if "key" in member[0]]
    with pytest.raises(coset.SymmetryError, match=re.escape(f"matrices of '{pairs.name}'")):
        Symmetry.from_json(
            json.dumps({**raw, "matrices": {pairs.name: {"kind": "phase", "members": only_keys}}})
        ).verify(model, args)


def test_half_precision_is_computed_in_single() -> None:
    _, sym = transformer("llama")
    state = {name: x.bfloat16() for name, x in folded("llama").items()}
    g = sym.random(torch.Generator().manual_seed(0), matrices=True)
    image = sym.act(g, state)
    exact = sym.act(g, {name: x.float() for name, x in state.items()})
    for name, x in image.items():
        assert x.dtype == torch.bfloat16 and torch.equal(x, exact[name].bfloat16())


def test_gaussians_do_not_turn() -> None:
    _, sym = transformer("llama")
    mean = folded("llama")
    q = coset.Gaussian(mean, {name: torch.ones_like(x) for name, x in mean.items()})
    with pytest.raises(coset.SymmetryError, match="without_matrices"):
        sym.act(sym.random(torch.Generator().manual_seed(0), matrices=True), q)
    sym.act(sym.random(torch.Generator().manual_seed(0)), q)
