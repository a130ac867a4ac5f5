"""Probes against activations caught by hooks, and moved with the units."""

from __future__ import annotations

import torch
from graph_cases import make, symmetry
from torch import Tensor, nn

from coset.core import state as states
from coset.weightspace.probes import probes
from coset.zoo import build


def test_probes_are_activations() -> None:
    torch.manual_seed(0)
    model, x = build("mlp:5-6-4-3").eval(), torch.randn(7, 5)
    caught: list[Tensor] = []
    hooks = [m.register_forward_hook(lambda *a: caught.append(a[2])) for m in model.modules() if isinstance(m, nn.ReLU)]
    model(x)
    for hook in hooks:
        hook.remove()
    result = probes(model, states.of(model), symmetry("mlp:5-6-4-3"), x)
    assert list(result) == ["layers.0", "layers.1"]
    for records, values in zip(caught, result.values(), strict=True):
        torch.testing.assert_close(values, records.detach().T[None])


def test_positions_are_averaged_and_populations_go_one_by_one() -> None:
    torch.manual_seed(0)
    model, (x,) = make("conv")
    model = model.eval()
    other, _ = make("conv")
    a, b = states.of(model), states.of(other)
    result = probes(model, states.stack([a, b]), symmetry("conv"), x)
    assert {name: tuple(v.shape) for name, v in result.items()} == {"a": (2, 5, 3), "b": (2, 4, 3)}
    hidden = torch.relu(model.get_submodule("norm")(model.get_submodule("a")(x)))
    torch.testing.assert_close(result["a"][0], hidden.mean((2, 3)).T)
    torch.testing.assert_close(result["b"][1], probes(model, b, symmetry("conv"), x)["b"][0])


def test_probes_move_with_the_units() -> None:
    torch.manual_seed(0)
    for name in ("mlp:5-6-4-3", "conv", "residual"):
        model, (x,) = make(name)
        sym, s = symmetry(name), states.of(model)
        element = sym.random(torch.Generator().manual_seed(0))
        plain, image = probes(model, s, sym, x), probes(model, sym.act(element, s), sym, x)
        assert plain.keys() == {group.name for group in sym.groups}
        for units, values in plain.items():
            torch.testing.assert_close(image[units], values[:, element[units]])
