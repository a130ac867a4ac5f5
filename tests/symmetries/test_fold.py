"""Gains moved into the weights that read them, and what stands in the way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import zoo
from coset.core import state as states
from coset.symmetries.comparison import generic

SPECS = ("gpt:dim=16,depth=2,heads=2,tied=false", "gpt:dim=16,depth=1,heads=2,norm=rms,tied=false",
         "vit:dim=16,depth=1,heads=2,patch=16")  # fmt: skip


def network(spec: str) -> tuple[nn.Module, tuple[Tensor, ...], coset.Symmetry]:
    torch.manual_seed(0)
    model = zoo.build(spec).double().eval()
    args = tuple(x.double() if x.is_floating_point() else x for x in zoo.example_input(model))
    return model, args, coset.symmetry(model, args)


def gains(sym: coset.Symmetry) -> list[str]:
    return [gain for group in sym.matrices for gain in group.gains]


@pytest.mark.parametrize("spec", SPECS)
def test_the_function_stays_and_gains_are_one(spec: str) -> None:
    model, args, sym = network(spec)
    state = generic(states.of(model), torch.Generator().manual_seed(1))
    before = {name: x.clone() for name, x in state.items()}
    folded = coset.fold(state, sym)
    assert gains(sym) and all(bool((folded[gain] == 1).all()) for gain in gains(sym))
    expected = states.call(model, state, args)
    torch.testing.assert_close(states.call(model, folded, args), expected, rtol=1e-10, atol=1e-10)
    assert all(torch.equal(state[name], x) for name, x in before.items())
    again = coset.fold(folded, sym)
    assert all(torch.equal(again[name], x) for name, x in folded.items())
    back = coset.fold(folded, sym, like=state)
    assert states.allclose(back, state, rtol=1e-12, atol=1e-12)


def test_a_module_is_copied() -> None:
    model, args, sym = network(SPECS[0])
    with torch.no_grad():
        model.norm.weight.uniform_(-2, 2)
    expected = model(*args)
    folded = coset.fold(model, sym)
    assert folded is not model and bool((folded.norm.weight == 1).all()) and not bool((model.norm.weight == 1).all())
    torch.testing.assert_close(folded(*args), expected)


def test_a_gain_of_zero() -> None:
    model, args, sym = network(SPECS[0])
    state = generic(states.of(model), torch.Generator().manual_seed(1))
    gain, bias = "blocks.0.norm1.weight", "blocks.0.norm1.bias"
    state[gain][3] = 0
    with pytest.raises(coset.SymmetryError, match=r"'blocks.0.norm1.weight' is zero where 'blocks.0.norm1.bias'"):
        coset.fold(state, sym)
    state[bias][3] = 0
    folded = coset.fold(state, sym)
    assert bool((folded["blocks.0.attention.query.weight"][:, 3] == 0).all()) and bool((folded[gain] == 1).all())
    torch.testing.assert_close(states.call(model, folded, args), states.call(model, state, args))


def test_tied_weights_block_and_can_be_untied() -> None:
    model, args, _ = network("gpt:dim=16,depth=1,heads=2,norm=rms,tied=false")
    model.head.weight = model.embedding.weight
    sym = coset.symmetry(model, args)
    assert [group.kind for group in sym.blocked] == ["orthogonal"] and "norm.weight" in sym.blocked[0].gains
    assert not gains(sym)
    free = coset.untie(model)
    torch.testing.assert_close(free(*args), model(*args))
    assert free.head.weight is not free.embedding.weight and model.head.weight is model.embedding.weight
    untied = coset.symmetry(free, args)
    assert not untied.blocked and "norm.weight" in gains(untied)
    turned = untied.act(untied.random(matrices=True), coset.fold(states.of(free), untied))
    torch.testing.assert_close(states.call(free, turned, args), model(*args), rtol=1e-9, atol=1e-9)


def test_networks_that_are_not_folded_do_not_turn() -> None:
    model, _, sym = network(SPECS[1])
    state = generic(states.of(model), torch.Generator().manual_seed(1))
    with pytest.raises(coset.SymmetryError, match=r"coset.fold\(network, sym\) first"):
        sym.act(sym.random(matrices=True), state)
    heads = sym.random(torch.Generator().manual_seed(0), matrices=True).matrices
    free = {group.name: heads[group.name] for group in sym.matrices if not group.gains}
    sym.act(sym.element(matrices=free), state)


def test_half_precision_is_rounded_once() -> None:
    model, _, sym = network(SPECS[1])
    state = {n: x.bfloat16() for n, x in generic(states.of(model), torch.Generator().manual_seed(1)).items()}
    folded = coset.fold(state, sym)
    exact = coset.fold({name: x.float() for name, x in state.items()}, sym)
    for name, x in folded.items():
        assert x.dtype == torch.bfloat16
        assert torch.allclose(x.float(), exact[name], rtol=2**-8, atol=1e-6), name
