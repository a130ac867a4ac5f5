"""The relaxed action: against the exact action, against dense matrices, and its derivative."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from torch import Tensor

import coset
from coset import Symmetry
from coset.alignment import relaxed
from coset.core import state as states
from coset.symmetries.verify import generic
from coset.zoo import build, example_input

NETS = [
    "mlp:6-8-7-4",
    "resnet20:width=0.25",
    "tinyten",
    "vit:dim=12,depth=1,heads=3,patch=16",
    "gpt:dim=16,depth=1,heads=4,vocab=11,context=8",
    "gpt:dim=16,depth=1,heads=4,kv_heads=2,tied=false,vocab=11,context=8",
    "gpt:dim=16,depth=1,heads=4,kv_heads=2,rope=true,swiglu=true,norm=rms,vocab=11,context=8",
]
# Sets over others on the same axis and on another one, two deep, in parts that are joined in both ways.
WRITTEN = {
    "groups": {"h": 3, "g": 2, "i": {"size": 2, "over": ["h"]}, "j": {"size": 3, "over": ["h", "i"]}},
    "tensors": {
        "same": [["h", "i"], "g"],
        "across": ["g", "i", "h"],
        "deep": [["h", 2, "i", "j"]],
        "joined": [{"concat": ["g", 1, ["h", "i"]]}, {"interleave": ["g", "g"]}],
        "alone": [4],
    },
}


@functools.cache
def case(spec: str) -> tuple[Symmetry, dict[str, Tensor]]:
    """A symmetry, and a state of it in float64."""
    generator = torch.Generator().manual_seed(0)
    if spec == "written":
        sym = Symmetry.from_json(json.dumps(WRITTEN))
        shapes = {name: [axis.size for axis in axes] for name, axes in sym.axes.items()}
        return sym, {name: torch.randn(n, generator=generator, dtype=torch.float64) for name, n in shapes.items()}
    model = build(spec)
    sym = coset.symmetry(model, example_input(model), verify=False)
    return sym, states.to(generic(states.of(model), generator), dtype=torch.float64)


def stochastic(sym: Symmetry, seed: int) -> dict[str, Tensor]:
    """Means of three random permutation matrices."""
    generator = torch.Generator().manual_seed(seed)
    elements = [sym.random(generator) for _ in range(3)]
    return {g.name: torch.stack([relaxed.matrix_of(x, g.name).double() for x in elements]).mean(0) for g in sym.groups}


@pytest.mark.parametrize("spec", [*NETS, "written"])
@pytest.mark.parametrize("skip", [1, 2])
def test_permutation_matrices_act_as_the_element(spec: str, skip: int) -> None:
    sym, state = case(spec)
    full = sym.random(torch.Generator().manual_seed(1))
    # With skip 2 every other set stays, bases and sets over them alike.
    element = sym.element(dict(list(full.permutations.items())[::skip]))
    matrices = {name: relaxed.matrix_of(element, name) for name in element.permutations}
    image, expected = relaxed.act(sym, matrices, state), sym.act(element, state)
    assert image.keys() == expected.keys()
    for name in expected:
        assert torch.equal(image[name], expected[name]), name


@pytest.mark.parametrize("spec", [*NETS, "written"])
def test_it_is_linear_in_each_matrix(spec: str) -> None:
    sym, state = case(spec)
    both = {name: x for name, x in state.items() if name != "joined"}  # there g meets itself
    p, q = stochastic(sym, 2), stochastic(sym, 3)
    for group in sym.groups:
        mixed = {**p, group.name: 0.3 * p[group.name] + 0.7 * q[group.name]}
        ends = relaxed.act(sym, p, both), relaxed.act(sym, {**p, group.name: q[group.name]}, both)
        assert states.allclose(relaxed.act(sym, mixed, both), states.lerp(*ends, 0.7))


def test_it_is_the_product_of_dense_matrices() -> None:
    sym, state = case("written")
    p = stochastic(sym, 4)
    inner = p["i"]
    pairs = torch.einsum("ab,aij->aibj", p["h"], inner).reshape(6, 6)
    image = relaxed.act(sym, p, state)
    torch.testing.assert_close(image["same"], pairs @ state["same"] @ p["g"].mT)
    across = state["across"].permute(2, 1, 0).reshape(6, 2)
    torch.testing.assert_close(image["across"].permute(2, 1, 0).reshape(6, 2), pairs @ across @ p["g"].mT)
    mixed = torch.block_diag(p["g"], torch.ones(1, 1), pairs)
    lanes = torch.kron(p["g"], torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(image["joined"], mixed @ state["joined"] @ lanes.mT)
    deepest = p["j"].reshape(3, 2, 3, 3)
    deep = torch.einsum("ab,aij,aikl,bxjl->axik", p["h"], inner, deepest, state["deep"].reshape(3, 2, 2, 3))
    torch.testing.assert_close(image["deep"], deep.flatten())
    assert torch.equal(image["alone"], state["alone"])


def test_its_derivative_in_matrices_and_state_is_right() -> None:
    sym, state = case("written")
    p = stochastic(sym, 5)

    def images(*tensors: Tensor) -> tuple[Tensor, ...]:
        matrices = dict(zip(p, tensors, strict=False))
        return tuple(relaxed.act(sym, matrices, dict(zip(state, tensors[len(p) :], strict=True))).values())

    inputs = [x.clone().requires_grad_() for x in [*p.values(), *state.values()]]
    assert torch.autograd.gradcheck(images, inputs)


def test_dtypes_are_kept_and_integers_carried_along() -> None:
    sym, _ = case("written")
    state = {"same": torch.randn(6, 2).half(), "across": torch.arange(12).reshape(2, 2, 3), "unknown": torch.ones(3)}
    image = relaxed.act(sym, stochastic(sym, 6), state)
    assert [x.dtype for x in image.values()] == [torch.float16, torch.int64, torch.float32]
    assert torch.equal(image["across"], state["across"])
    assert torch.equal(image["unknown"], state["unknown"])
