"""The bound of tatro2020 Theorem 3.1: by hand, above the loss, lower when aligned, and reached."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import Activations, Symmetry
from coset.core import state as states
from coset.core.errors import DataError, ModelError, StateError
from coset.data import Split, load
from coset.paths.interpolation_bound import LIPSCHITZ, InterpolationBound, interpolation_bound
from coset.zoo import build

State = dict[str, Tensor]
ACTIVATIONS = [nn.ReLU(), nn.LeakyReLU(0.3), nn.ELU(), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.Softsign()]


def net(activation: nn.Module, sizes: tuple[int, ...]) -> nn.Sequential:
    layers = [nn.Linear(n, m) for n, m in itertools.pairwise(sizes)]
    chain = itertools.chain(*((layer, activation) for layer in layers[:-1]), layers[-1:])
    return nn.Sequential(*chain).double()


def random_state(model: nn.Module, generator: torch.Generator, scale: float = 1.0) -> State:
    return {n: scale * torch.randn(x.shape, generator=generator).to(x) for n, x in states.of(model).items()}


def examples(generator: torch.Generator, n: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, generator=generator).double(), torch.randint(4, (n,), generator=generator)


def holds(result: InterpolationBound, rounding: float = 1e-9) -> bool:
    return all(loss <= bound + rounding for loss, bound in zip(result.loss, result.bound, strict=True))


@functools.cache
def permutations(hidden: int) -> Symmetry:
    """Those of hidden layers of 4 units, which are the same for every activation function."""
    return coset.symmetry(net(nn.ReLU(), (3, *[4] * hidden, 4)), (torch.randn(2, 3).double(),))


@functools.cache
def digits(spec: str) -> tuple[nn.Module, Symmetry, list[State], Split]:
    split = load("digits").train
    model = build(spec)
    sym = coset.symmetry(model, (split.inputs[:8],))
    return model, sym, [q.mean for q in coset.fit(model, split, coset.MAP(epochs=10), replicas=2)], split


def test_one_hidden_layer_by_hand() -> None:
    g = torch.Generator().manual_seed(0)
    model = net(nn.ReLU(), (3, 5, 4))
    a, b = random_state(model, g), random_state(model, g)
    inputs, targets = examples(g)
    result = interpolation_bound(model, a, b, (inputs, targets), points=5, batch_size=5)
    first, second = ({n: x.numpy() for n, x in s.items()} for s in (a, b))
    x, y = inputs.numpy(), targets.numpy()

    def loss(w: dict[str, np.ndarray]) -> float:
        hidden = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0)
        logits = hidden @ w["2.weight"].T + w["2.bias"]
        return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[range(len(y)), y]))

    hidden = [x @ w["0.weight"].T + w["0.bias"] for w in (first, second)]
    apart = np.sqrt(np.mean(np.sum((hidden[0] - hidden[1]) ** 2, 1)))
    norms = [np.linalg.svd(w["2.weight"])[1].max() for w in (first, second)]
    assert result.t == (0.0, 0.25, 0.5, 0.75, 1.0)
    for t, bound, value in zip(result.t, result.bound, result.loss, strict=True):
        assert value == pytest.approx(loss({n: (1 - t) * first[n] + t * second[n] for n in first}))
        chord = (1 - t) * loss(first) + t * loss(second)
        assert bound == pytest.approx(chord + math.sqrt(2) * t * (1 - t) * apart * sum(norms))
    assert result.mean_bound == pytest.approx(np.trapezoid(result.bound, result.t))
    assert result.mean_loss == pytest.approx(np.trapezoid(result.loss, result.t))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 6), st.floats(0.01, 30))
def test_cross_entropy_is_sqrt_2_lipschitz(seed: int, classes: int, scale: float) -> None:
    g = torch.Generator().manual_seed(seed)
    first, second = (scale * torch.randn(classes, generator=g).double() for _ in range(2))
    target = torch.zeros((), dtype=torch.int64)
    losses = [nn.functional.cross_entropy(logits, target) for logits in (first, second)]
    assert abs(losses[0] - losses[1]) <= LIPSCHITZ * (first - second).norm() + 1e-12


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(ACTIVATIONS), st.integers(0, 3), st.floats(0.1, 3))
def test_the_loss_is_below(seed: int, activation: nn.Module, hidden: int, scale: float) -> None:
    g = torch.Generator().manual_seed(seed)
    model = net(activation, (3, *[5] * hidden, 4))
    result = interpolation_bound(
        model, random_state(model, g, scale), random_state(model, g, scale), examples(g), points=7
    )
    assert holds(result)
    assert result.bound[0] == result.loss[0] and result.bound[-1] == result.loss[-1]


@settings(max_examples=8, deadline=None)
# Softsign is several ops to torch, so what comes before it is not all that is matched.
@given(st.integers(0, 2**31), st.sampled_from(ACTIVATIONS[:-1]), st.integers(1, 2))
def test_alignment_lowers_the_bound_as_much_as_can_be(seed: int, activation: nn.Module, hidden: int) -> None:
    g = torch.Generator().manual_seed(seed)
    model, sym = net(activation, (3, *[4] * hidden, 4)), permutations(hidden)
    a, b, data = random_state(model, g), random_state(model, g), examples(g)
    aligned = sym.act(coset.align(a, b, sym, Activations("pre", "l2"), model, data).element, b)
    least = interpolation_bound(model, a, aligned, data, points=5)
    assert holds(least)
    for other in (b, *(sym.act(sym.random(g), b) for _ in range(4))):
        result = interpolation_bound(model, a, other, data, points=5)
        assert all(x <= y + 1e-9 for x, y in zip(least.bound, result.bound, strict=True))


@pytest.mark.parametrize("spec", ["mlp:64-16-10", "mlp:64-16-16-10,activation=tanh"])
def test_trained_networks(spec: str) -> None:
    model, sym, (a, b), split = digits(spec)
    aligned = sym.act(coset.align(a, b, sym, Activations("pre", "l2"), model, split).element, b)
    before, after = (interpolation_bound(model, a, q, split) for q in (b, coset.Dirac(aligned)))
    assert holds(before, 1e-5) and holds(after, 1e-5)
    assert all(x <= y + 1e-6 for x, y in zip(after.bound, before.bound, strict=True))
    assert after.mean_bound < 0.8 * before.mean_bound and after.mean_loss < before.mean_loss
    line = coset.barrier(coset.geodesic(a, b), model, split)
    assert before.t == line.t and before.loss == line.loss


def slack(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
    """The most by which the bound exceeds the loss, for nets of one unit a layer, all active, with (weight, bias) each.

    The last pair is for the first logit, and minus that for the second, whose class is right. It is far lower, so the
    cross-entropy is the difference of the logits, which grows by sqrt 2 times a move along (1, -1).
    """
    model = net(nn.ReLU(), (1, *[1] * (len(first) - 1), 2))
    ends = []
    for layers in (first, second):
        numbers = itertools.chain(*layers)
        ends.append({n: torch.zeros_like(x) + next(numbers) for n, x in states.of(model).items()})
        for name in list(ends[-1])[-2:]:
            ends[-1][name][1] *= -1
    data = torch.ones(3, 1, dtype=torch.float64), torch.ones(3, dtype=torch.int64)
    result = interpolation_bound(model, *ends, data, points=9)
    assert holds(result) and result.loss[4] > (result.loss[0] + result.loss[-1]) / 2 + 0.1
    return max(bound - loss for bound, loss in zip(result.bound, result.loss, strict=True))


def test_the_bound_is_reached() -> None:
    """tatro2020 Appendix C.2: activations grow from one end to the other, weights of the two have opposite signs."""
    assert slack([(1, 10), (0.7, 100)], [(3, 10), (-0.4, 100)]) < 1e-9
    assert slack([(1, 10), (0.7, 100)], [(3, 10), (0.4, 100)]) > 0.1


def test_with_more_layers_it_is_reached_only_where_the_ends_agree() -> None:
    """|e_2 + t d| and |e_2 - (1-t) d|, of d = f_2(1) - f_2(0), are the sums of their parts together only if d = 0."""
    # At both ends f_2 is 45.5, and 60 at the second one as the appendix would have it.
    assert slack([(1, 10), (0.5, 40), (0.7, 100)], [(3, 10), (-0.5, 52), (0.4, 100)]) < 1e-9
    assert slack([(1, 10), (0.5, 40), (0.7, 100)], [(3, 10), (-0.5, 66.5), (-0.4, 100)]) > 0.1


def test_positions_count_as_examples() -> None:
    g = torch.Generator().manual_seed(1)
    model = net(nn.Tanh(), (3, 5, 4))
    a, b, (inputs, targets) = random_state(model, g), random_state(model, g), examples(g)
    flat = interpolation_bound(model, a, b, (inputs, targets), points=3)
    deep = interpolation_bound(model, a, b, (inputs.reshape(4, 3, 3), targets.reshape(4, 3)), points=3)
    assert deep.bound == pytest.approx(flat.bound)


def test_models() -> None:
    g = torch.Generator().manual_seed(2)
    shared = nn.Linear(3, 3)
    chain = nn.Sequential(
        nn.Flatten(), nn.Sequential(shared, nn.ReLU()), shared, nn.Identity(), nn.Linear(3, 4, bias=False)
    )
    model = chain.double()
    a, b = states.of(model), {n: x + 1 for n, x in states.of(model).items() if not n.startswith("2.")}
    assert holds(interpolation_bound(model, a, b, examples(g)))
    mlp = build("mlp:3-5-4").double()
    plain = net(nn.ReLU(), (3, 5, 4))
    ends = [random_state(mlp, g) for _ in range(2)]
    renamed = [dict(zip(states.of(plain), end.values(), strict=True)) for end in ends]
    data = examples(g)
    assert interpolation_bound(mlp, *ends, data) == interpolation_bound(plain, *renamed, data)


def test_refusals() -> None:
    g = torch.Generator().manual_seed(3)
    data = examples(g)
    last = nn.Linear(3, 4)
    for model, message in (
        (nn.Sequential(nn.Linear(3, 3), nn.GELU(), last), "layer '1', a GELU"),
        (nn.Sequential(nn.Sequential(nn.LayerNorm(3)), last), "layer '0.0', a LayerNorm"),
        (nn.Sequential(nn.LeakyReLU(1.5), last), "layer '0', a LeakyReLU"),
        (nn.Sequential(nn.ELU(2.0), last), "layer '0', a ELU"),
        (build("mlp:3-5-4,activation=silu"), "layer 'activation', a SiLU"),
        (nn.Conv1d(3, 4, 1), "for a Conv1d"),
        (nn.Sequential(last, nn.ReLU()), "last layer of Sequential is not linear"),
        (nn.Sequential(), "last layer of Sequential is not linear"),
    ):
        state = states.of(model)
        with pytest.raises(ModelError, match=message):
            interpolation_bound(model, state, state, data)
    model = net(nn.ReLU(), (3, 4))
    state = states.of(model)
    with pytest.raises(DataError, match="give int64 classes"):
        interpolation_bound(model, state, state, (data[0], data[0]))
    with pytest.raises(StateError, match="the second solution"):
        interpolation_bound(model, state, {"0.weight": state["0.weight"]}, data)
