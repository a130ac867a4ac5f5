"""The correlation signature against numpy on activations collected by hooks."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coset
from coset import Activations, Symmetry, signature
from coset.alignment.activations import cross_statistics
from coset.core import state as states
from coset.core.errors import CosetError, DataError, StateError
from coset.zoo import build, example_input

Kind = Literal["pre", "post"]
Pair = tuple[Tensor, Tensor]


@functools.cache
def net() -> tuple[nn.Module, Symmetry, Pair]:
    torch.manual_seed(0)
    model = build("mlp:6-9-7-4").double()
    inputs = torch.randn(50, 6, dtype=torch.float64)
    return model, coset.symmetry(model, (inputs,)), (inputs, torch.zeros(50, dtype=torch.int64))


def random_weights(model: nn.Module, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(x.shape, generator=generator).to(x) for n, x in states.of(model).items()}


def hooked(model: nn.Module, state: dict[str, Tensor], inputs: Tensor, kind: Kind) -> list[np.ndarray]:
    """[examples, units] at each call of the activation function."""
    outputs: list[np.ndarray] = []

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        outputs.append((inputs[0] if kind == "pre" else output).detach().numpy().copy())

    handle = model.activation.register_forward_hook(hook)
    states.call(model, state, (inputs,))
    handle.remove()
    return outputs


def live(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    both: np.ndarray = (np.ptp(x, 0) > 0) & (np.ptp(y, 0) > 0)
    return both


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_it_is_the_mean_correlation_of_numpy(kind: Kind) -> None:
    model, sym, data = net()
    a, b = random_weights(model, 1), random_weights(model, 2)
    a["layers.0.bias"][3] = -100.0  # dead after the ReLU
    b["layers.1.weight"][2] = 0.0  # constant before and after
    values = signature(a, coset.Dirac(b), sym, model, data, kind, batch_size=13)
    assert list(values) == ["layers.0", "layers.1"]
    for value, x, y in zip(
        values.values(), hooked(model, a, data[0], kind), hooked(model, b, data[0], kind), strict=True
    ):
        alive = live(x, y)
        assert alive.any() and (kind == "pre" or not alive.all())
        own = [np.corrcoef(x[:, i], y[:, i])[0, 1] for i in np.flatnonzero(alive)]
        assert value == pytest.approx(sum(own) / x.shape[1], abs=1e-10)


def test_a_network_moved_and_aligned_back_has_the_share_of_its_live_units() -> None:
    model, sym, data = net()
    a = random_weights(model, 3)
    a["layers.0.bias"][4] = -100.0
    shuffled = sym.act(sym.random(torch.Generator().manual_seed(0)), a)
    back = sym.act(coset.align(a, shuffled, sym, Activations(), model, data).element, shuffled)
    shares = [live(x, x).mean() for x in hooked(model, a, data[0], "post")]
    assert shares[0] < 1
    assert list(signature(a, back, sym, model, data).values()) == pytest.approx(shares)
    assert max(signature(a, shuffled, sym, model, data).values()) < 0.9
    assert list(signature(a, back, sym, model, data, "pre").values()) == pytest.approx([1, 1])


def test_alignment_raises_it() -> None:
    model, sym, data = net()
    a, b = random_weights(model, 4), random_weights(model, 5)
    before = signature(a, b, sym, model, data)
    after = signature(a, sym.act(coset.align(a, b, sym, Activations(), model, data).element, b), sym, model, data)
    assert all(after[name] > before[name] for name in before)


def test_copies_are_compared_with_themselves_and_sets_keep_their_order() -> None:
    torch.manual_seed(0)
    model, other = build("vit:dim=16,depth=2,heads=2,patch=16"), build("vit:dim=16,depth=2,heads=2,patch=16")
    (inputs,) = example_input(model, 8)
    sym = coset.symmetry(model, (inputs,))
    a, b, data = states.of(model), states.of(other), (inputs, torch.zeros(8, dtype=torch.int64))
    scores = cross_statistics(a, b, sym.without_matrices(), model, data)
    values = signature(a, b, sym, model, data)
    assert list(values) == [name for name in sym.sets if name in scores]
    deep = [name for name, x in scores.items() if x.dim() == 4]
    assert deep
    for name, x in scores.items():
        copies = [x] if x.dim() == 2 else [x[k, k] for k in range(len(x))]
        assert values[name] == pytest.approx(float(np.mean([np.diag(copy.numpy()) for copy in copies])), abs=1e-12)
    assert signature(a, a, sym, model, data)[deep[0]] == pytest.approx(1.0)


def test_refusals() -> None:
    model, sym, data = net()
    a = random_weights(model, 6)
    with pytest.raises(StateError, match="the second solution"):
        signature(a, {"layers.0.weight": a["layers.0.weight"]}, sym, model, data)
    with pytest.raises(CosetError, match="choose post or pre"):
        signature(a, a, sym, model, data, "during")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="NaN or infinite"):
        signature(a, a, sym, model, (data[0] * torch.inf, data[1]))
    with pytest.raises(StateError, match="has no place of its own"):
        signature(
            coset.Symmetrized(coset.Gaussian(a, {n: torch.ones_like(x) for n, x in a.items()}), sym),
            a,
            sym,
            model,
            data,
        )
