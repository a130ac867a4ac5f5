"""The plane against NumPy, and its picture."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import Plane
from coset.core import state as states
from coset.core.errors import CosetError, DataError, ModelError, StateError
from coset.plot import contours

Pair = tuple[Tensor, Tensor]
Corners = list[dict[str, Tensor]]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))


@pytest.fixture
def corners(net: nn.Module) -> Corners:
    generator = torch.Generator().manual_seed(1)
    return [{n: torch.randn(x.shape, generator=generator) for n, x in states.of(net).items()} for _ in range(3)]


@pytest.fixture
def data() -> Pair:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(40, 3, generator=generator), torch.randint(4, (40,), generator=generator)


def flat(state: dict[str, Tensor]) -> np.ndarray:
    return torch.cat([x.double().flatten() for x in state.values()]).numpy()


def at(net: nn.Module, w: np.ndarray) -> dict[str, Tensor]:
    parts = torch.from_numpy(w).float().split([x.numel() for x in states.of(net).values()])
    return {n: part.reshape(x.shape) for (n, x), part in zip(states.of(net).items(), parts, strict=True)}


def test_every_place_is_that_of_gram_and_schmidt(net: nn.Module, corners: Corners, data: Pair) -> None:
    events: list[tuple[int, int]] = []
    result = coset.plane(
        *corners,
        net,
        data,
        points=5,
        prior_variance=0.7,
        batch_size=16,
        progress=lambda event: events.append((event.done, event.total)),
    )
    a, b, c = (flat(corner) for corner in corners)
    axes, _ = np.linalg.qr(np.stack([b - a, c - a], 1))
    axes = axes * np.sign([axes[:, 0] @ (b - a), axes[:, 1] @ (c - a)])
    assert np.allclose(result.points, [(0, 0), axes.T @ (b - a), axes.T @ (c - a)], atol=1e-5)
    for i, y in enumerate(result.y):
        for j, x in enumerate(result.x):
            w = a + axes @ (x, y)
            likelihood = -40 * coset.evaluate(at(net, w), net, data).nll
            assert result.log_likelihood[i][j] == pytest.approx(likelihood, rel=1e-5)
            prior = float(torch.distributions.Normal(0, math.sqrt(0.7)).log_prob(torch.from_numpy(w)).sum())
            assert result.log_prior is not None and result.log_prior[i][j] == pytest.approx(prior, rel=1e-6)
            assert result.log_posterior is not None
            assert result.log_posterior[i][j] == pytest.approx(likelihood + prior, rel=1e-5)
    assert events[-1] == (25, 25) and result.examples == 40


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 2))
def test_distances_are_true_and_all_is_inside(seed: int, margin: float) -> None:
    net, g = nn.Linear(2, 3), torch.Generator().manual_seed(seed)
    corners = [{n: torch.randn(x.shape, generator=g) for n, x in states.of(net).items()} for _ in range(3)]
    data = torch.randn(4, 2, generator=g), torch.randint(3, (4,), generator=g)
    result = coset.plane(*corners, net, data, points=2, margin=margin)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        distance = float(states.norm(states.sub(corners[i], corners[j])))
        assert math.dist(result.points[i], result.points[j]) == pytest.approx(distance, rel=1e-5)
    for axis, values in enumerate((result.x, result.y)):
        own = [point[axis] for point in result.points]
        wide = margin * max(max(p[k] for p in result.points) - min(p[k] for p in result.points) for k in (0, 1))
        assert values == pytest.approx((min(own) - wide, max(own) + wide))
    assert result.log_prior is result.log_posterior is None


def test_means_and_noise_of_solutions(data: Pair) -> None:
    net = nn.Linear(3, 1)
    g = torch.Generator().manual_seed(3)
    corners = [{n: torch.randn(x.shape, generator=g) for n, x in states.of(net).items()} for _ in range(3)]
    a, b, c = (coset.Gaussian(corner, {"weight": torch.ones(1, 3)}, noise=0.5) for corner in corners)
    pairs = data[0], data[0][:, :1]
    result = coset.plane(a, b, c, net, pairs, points=2, margin=0)
    # The grid's first place is (min, 0); the second network is at the right of the first.
    x = dict(zip(result.x, result.log_likelihood[0], strict=True))
    for (place, _), corner in zip(result.points[:2], corners, strict=False):
        if place in x:
            assert x[place] == pytest.approx(-40 * coset.evaluate(coset.Dirac(corner, 0.5), net, pairs).nll, rel=1e-5)
    with pytest.raises(DataError, match="this solution has no noise"):
        coset.plane(*corners, net, pairs)


def test_norms(data: Pair) -> None:
    """Statistics are no coordinates; they do not extrapolate, and are recomputed by repair."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    a = states.of(net)
    b, c = ({n: x + 3 * torch.randn(x.shape).abs().to(x) for n, x in a.items()} for _ in range(2))
    own = [n for n, _ in net.named_parameters()]
    result = coset.plane(a, b, c, net, data, points=2, repair=data, margin=0.1)
    distance = math.sqrt(sum(float((a[n] - b[n]).square().sum()) for n in own))
    assert result.points[1][0] == pytest.approx(distance, rel=1e-6)
    assert np.isfinite(result.log_likelihood).all()
    with pytest.raises(ModelError, match="give `repair`"):
        coset.plane(a, b, c, net, data, points=2, margin=3.0)


def test_json_and_picture(net: nn.Module, corners: Corners, data: Pair) -> None:
    result = coset.plane(*corners, net, data, points=4, prior_variance=1.0)
    record = json.loads(result.to_json())
    assert record["log_posterior"] == [list(row) for row in result.log_posterior or ()]
    assert record["points"] == [list(point) for point in result.points] and record["examples"] == 40
    figure = result.plot(("p", "q", "r"))
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["log-likelihood", "log-prior", "log-posterior"]
    for axes in panels:
        assert [text.get_text() for text in axes.texts] == ["p", "q", "r"]
        assert [tuple(*line.get_xydata()) for line in axes.lines] == list(result.points)  # type: ignore[arg-type, misc]
    assert len(coset.plane(*corners, net, data, points=2).plot().axes) == 2  # a panel and the colour bar
    deep = Plane((0.0, 1.0), (0.0, 1.0), result.points, ((-1.0, -math.inf), (0.0, -2.0)), None, 1)
    contours(deep, ("a", "b", "c")).draw_without_rendering()
    assert json.loads(deep.to_json())["log_likelihood"] == [[-1.0, None], [0.0, -2.0]]
    level = Plane((0.0, 1.0), (0.0, 1.0), result.points, ((0.0, 0.0), (0.0, 0.0)), None, 1)
    contours(level, ("a", "b", "c")).draw_without_rendering()
    with pytest.raises(CosetError, match="through 3 networks, so 2 labels"):
        result.plot(("a", "b"))


def test_refusals(net: nn.Module, corners: Corners, data: Pair) -> None:
    a, b, c = corners
    for given_, message in (((a, a, c), "first and the second"), ((a, b, a), "first and the third")):
        with pytest.raises(CosetError, match=message):
            coset.plane(*given_, net, data)
    with pytest.raises(CosetError, match="second and the third"):
        coset.plane(a, b, b, net, data)
    for t in (0.5, -2.0, 1.0001):
        with pytest.raises(CosetError, match="lie on one line"):
            coset.plane(a, b, states.lerp(a, b, t), net, data)
    with pytest.raises(StateError, match="the third network"):
        coset.plane(a, b, {"0.weight": c["0.weight"]}, net, data)
    with pytest.raises(CosetError, match="grid of 1 x 1"):
        coset.plane(a, b, c, net, data, points=1)
    with pytest.raises(CosetError, match="margin"):
        coset.plane(a, b, c, net, data, margin=-1)
    with pytest.raises(CosetError, match="variance of a prior"):
        coset.plane(a, b, c, net, data, prior_variance=0.0)
