"""Predictions and metrics against NumPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset.core import state as states
from coset.core.errors import CosetError, DataError, ModelError
from coset.solutions import metrics
from coset.solutions.predictive import predictive

Pair = tuple[Tensor, Tensor]


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def probs_at(net: nn.Module, state: dict[str, Tensor], x: Tensor) -> np.ndarray:
    net = net.double().eval()
    with torch.no_grad():
        out: Tensor = torch.func.functional_call(net, states.to(state, dtype=torch.float64), (x.double(),))
    net.float()
    return softmax(out.numpy())


def test_a_dirac_gives_the_models_own_probabilities(net: nn.Module, batch: Pair) -> None:
    x, _ = batch
    result = coset.predict(states.of(net), net, x, batch_size=7)
    assert result.shape == (30, 4) and result.dtype == torch.float64
    assert np.allclose(result.exp(), probs_at(net, states.of(net), x), atol=1e-6)


def test_samples_are_averaged_as_probabilities(net: nn.Module, gaussian: coset.Gaussian, batch: Pair) -> None:
    """A Gaussian's average is near that of many independent draws, and far from the mean state's own."""
    x, _ = batch
    wide = coset.Gaussian(gaussian.mean, {n: 3 * s for n, s in gaussian.std.items()})
    population = wide.sample(1500, torch.Generator().manual_seed(5))
    expected = np.mean([probs_at(net, one, x) for one in states.unstack(population)], 0)
    result = coset.predict(wide, net, x, samples=1500, generator=torch.Generator().manual_seed(6)).exp().numpy()
    assert np.abs(result - expected).max() < 0.04
    assert np.abs(result - probs_at(net, wide.mean, x)).max() > 0.06


def test_mixtures_of_points_are_exact(net: nn.Module, batch: Pair) -> None:
    x, _ = batch
    a, b = states.of(net), states.scale(states.of(net), 2.0)
    result = coset.predict(coset.Mixture([coset.Dirac(a), coset.Dirac(b)], [1, 3]), net, x, samples=2)
    assert np.allclose(result.exp(), 0.25 * probs_at(net, a, x) + 0.75 * probs_at(net, b, x), atol=1e-6)


def test_each_component_gets_its_share(net: nn.Module, gaussian: coset.Gaussian, batch: Pair) -> None:
    calls = []
    q = coset.Mixture([gaussian, gaussian, coset.Dirac(states.of(net))], [6, 1, 1])
    predictive(q, net, *batch, 16, prepare=lambda _, state: calls.append(1) or state)  # type: ignore[func-returns-value]
    assert len(calls) == 12 + 2 + 1


def test_the_model_is_left_alone(net: nn.Module, gaussian: coset.Gaussian, batch: Pair) -> None:
    before = states.of(net)
    net[1].train()
    net[0].eval()
    coset.evaluate(gaussian, net, batch, samples=3)
    assert net[1].training and not net[0].training
    assert states.allclose(states.of(net), before, rtol=0, atol=0)
    assert coset.evaluate(before, net, batch) == coset.evaluate(before, net.eval(), batch)


def test_same_generator_same_result(net: nn.Module, gaussian: coset.Gaussian, batch: Pair) -> None:
    runs = [coset.evaluate(gaussian, net, batch, 5, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_the_standard_error_is_that_of_repeated_estimates(
    net: nn.Module, gaussian: coset.Gaussian, batch: Pair
) -> None:
    q = coset.Mixture([gaussian, coset.Gaussian(states.scale(gaussian.mean, 2.0), gaussian.std)], [1, 2])
    runs = [coset.evaluate(q, net, batch, 40, generator=torch.Generator().manual_seed(s)) for s in range(40)]
    claimed = np.mean([run.nll_error for run in runs])  # type: ignore[arg-type]
    actual = np.std([run.nll for run in runs], ddof=1)
    assert claimed == pytest.approx(actual, rel=0.35)
    assert coset.evaluate(states.of(net), net, batch).nll_error == 0
    assert coset.evaluate(gaussian, net, batch, samples=1).nll_error is None


@st.composite
def predictions(draw: st.DrawFn) -> Pair:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    n, classes = draw(st.integers(1, 40)), draw(st.integers(2, 40))
    logits = draw(st.sampled_from([0.0, 1.0, 8.0])) * torch.randn(n, classes, generator=generator).double()
    return logits.log_softmax(-1), torch.randint(classes, (n,), generator=generator)


@settings(max_examples=60, deadline=None)
@given(predictions())
def test_metrics_are_numpys(pair: Pair) -> None:
    logs, y = pair[0].numpy(), pair[1].numpy()
    p = np.exp(logs)
    assert metrics.accuracy(*pair) == pytest.approx((p.argmax(1) == y).mean())
    truth = np.eye(p.shape[1])[y]
    assert metrics.brier(*pair) == pytest.approx(((p - truth) ** 2).sum(1).mean(), abs=1e-9)
    confidence, right = p.max(1), p.argmax(1) == y
    gap = 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            gap += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert metrics.ece(*pair) == pytest.approx(gap, abs=1e-9)


def test_calibration_is_told_apart_by_confidence() -> None:
    """Right with confidence 0.06 and wrong with 0.1: in one bin the errors would cancel in part."""
    p = torch.full((2, 30), 0.0)
    for row, confidence in enumerate((0.06, 0.1)):
        p[row] = (1 - confidence) / 29
        p[row, 0] = confidence
    assert metrics.ece(p.double().log(), torch.tensor([0, 1])) == pytest.approx((0.94 + 0.1) / 2, abs=1e-6)


def test_sequences_have_a_class_at_each_place() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5))
    x, y = torch.randn(4, 6, 3), torch.randint(5, (4, 6))
    result = coset.evaluate(states.of(net), net, (x, y))
    p = probs_at(net, states.of(net), x).reshape(24, 5)
    assert result.nll == pytest.approx(-np.log(p[np.arange(24), y.flatten().numpy()]).mean(), abs=1e-6)
    assert result.accuracy == pytest.approx((p.argmax(1) == y.flatten().numpy()).mean())


class Odd(nn.Module):
    def __init__(self, give: object) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.give = give

    def forward(self, x: Tensor) -> object:
        return self.give


def test_bad_models_and_data(net: nn.Module, batch: Pair) -> None:
    x, y = batch
    state = states.of(net)
    with pytest.raises(DataError, match="are values, but this solution has no noise"):
        coset.evaluate(state, net, (x, y.float()))
    with pytest.raises(DataError, match=r"targets are torch.int32: give int64 classes"):
        coset.evaluate(state, net, (x, y.int()))
    with pytest.raises(DataError, match="from 0 to 4, but the model has the classes 0 to 3"):
        coset.evaluate(state, net, (x, torch.full((30,), 4).index_fill(0, torch.tensor([0]), 0)))
    with pytest.raises(DataError, match="do not fit logits"):
        coset.evaluate(state, net, (x, y[:, None]))
    with pytest.raises(CosetError, match="with 0 samples"):
        coset.predict(state, net, x, samples=0)
    with pytest.raises(CosetError, match="30 examples in batches of 0"):
        coset.predict(state, net, x, batch_size=0)
    with pytest.raises(CosetError, match="device 'cuda:77' cannot be used"):
        coset.predict(state, net, x, device="cuda:77")
    w = {"w": torch.ones(1)}
    with pytest.raises(ModelError, match="returns a dict where a tensor of logits"):
        coset.predict(w, Odd({}), x)
    with pytest.raises(ModelError, match=r"returns torch.float32 of shape \(30,\)"):
        coset.predict(w, Odd(torch.zeros(30)), x)
    with pytest.raises(ModelError, match="NaN"):
        coset.predict(w, Odd(torch.full((30, 2), math.nan)), x)
