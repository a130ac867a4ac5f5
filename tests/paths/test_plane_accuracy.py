"""Loss, accuracy and the track of a path on a plane, and their pictures."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from matplotlib.figure import Figure
from torch import Tensor, nn

import coset
from coset import Plane
from coset.core import state as states
from coset.core.errors import CosetError, StateError

State = dict[str, Tensor]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))


def random_states(model: nn.Module, seed: int, count: int = 3) -> list[State]:
    generator = torch.Generator().manual_seed(seed)
    return [{n: torch.randn(x.shape, generator=generator) for n, x in states.of(model).items()} for _ in range(count)]


def examples(seed: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(40, 3, generator=generator), torch.randint(4, (40,), generator=generator)


def curve(a: State, control: State, b: State, t: float) -> State:
    """A quadratic Bezier curve, by de Casteljau."""
    return states.lerp(states.lerp(a, control, t), states.lerp(control, b, t), t)


def ticks(figure: Figure) -> list[str]:
    """The texts of the colour bar beside the one panel."""
    axes, bar = figure.axes
    assert axes.get_aspect() == 1.0
    return [text.get_text() for text in bar.get_yticklabels()]


def test_loss_and_accuracy_are_those_of_evaluate() -> None:
    model, data = net(), examples()
    a, b, c = random_states(model, 1)
    result = coset.plane(a, b, c, model, data, points=4, batch_size=7)
    (_, (length, _), (shift, height)) = result.points
    assert result.accuracy is not None and len({*sum(result.accuracy, ())}) > 3
    for i, y in enumerate(result.y):
        for j, x in enumerate(result.x):
            beta = y / height
            alpha = (x - beta * shift) / length
            state = {n: z + alpha * (b[n] - z) + beta * (c[n] - z) for n, z in a.items()}
            expected = coset.evaluate(state, model, data)
            assert result.loss[i][j] == pytest.approx(expected.nll, rel=1e-5)
            assert result.accuracy[i][j] == pytest.approx(expected.accuracy)


def test_accuracy_counts_every_target_of_an_example() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(3, 10)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.map(x)
            return out.reshape(-1, 2, 5)

    model, (inputs, _) = Two(), examples()
    targets = torch.randint(5, (40, 2), generator=torch.Generator().manual_seed(0))
    corners = random_states(model, 3)
    result = coset.plane(*corners, model, (inputs, targets), points=2, margin=0)
    expected = coset.evaluate(corners[0], model, (inputs, targets)).accuracy
    assert result.accuracy is not None and 0 < expected < 1
    assert result.accuracy[0][result.x.index(0.0)] == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_the_track_of_a_curve_on_the_plane_is_exact(seed: int) -> None:
    model = nn.Linear(2, 3)
    a, b, control = random_states(model, seed)
    data = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    result = coset.plane(
        a, b, control, model, data, points=2, path=lambda t: coset.Dirac(curve(a, control, b, t)), margin=0.1
    )
    assert len(result.track) == 25
    for k, (x, y) in enumerate(result.track):
        t = k / 24
        # The curve keeps its shape under the isometry to the plane.
        for axis, value in enumerate((x, y)):
            p, q, r = (result.points[one][axis] for one in (0, 2, 1))
            assert value == pytest.approx((1 - t) ** 2 * p + 2 * t * (1 - t) * q + t**2 * r, abs=1e-5)
        for corner, place in zip((a, b, control), result.points, strict=True):
            distance = float(states.norm(states.sub(curve(a, control, b, t), corner)))
            assert math.dist((x, y), place) == pytest.approx(distance, abs=1e-5)
    plain = coset.plane(a, b, control, model, data, points=2, margin=0.1)
    assert plain.track == () and plain.x == pytest.approx(result.x, abs=1e-5)


def test_a_path_off_the_plane_is_projected_and_held() -> None:
    model = net()
    a, b, c, far = random_states(model, 5, 4)
    far = states.lerp(a, far, 4.0)
    result = coset.plane(a, b, c, model, examples(), points=2, margin=0, path=coset.geodesic(a, far))
    flat = [torch.cat([x.double().flatten() for x in s.values()]).numpy() for s in (a, b, c, far)]
    basis = np.stack([flat[1] - flat[0], flat[2] - flat[0]], 1)
    weights = np.linalg.lstsq(basis, flat[3] - flat[0], rcond=None)[0]
    expected = weights @ np.array(result.points[1:])
    assert result.track[-1] == pytest.approx(expected, rel=1e-5)
    assert result.track[12] == pytest.approx(expected / 2, rel=1e-4)
    assert result.track[-1][0] > max(x for x, _ in result.points)
    for axis, values in enumerate((result.x, result.y)):
        own = [place[axis] for place in (*result.points, *result.track)]
        assert values == pytest.approx((min(own), max(own)))
    with pytest.raises(StateError, match="the path at t = 0"):
        coset.plane(a, b, c, model, examples(), path=lambda t: coset.Dirac({"0.weight": a["0.weight"]}))


def test_statistics_and_tied_tensors_are_no_coordinates_of_a_path() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    one = states.of(model)
    corners = []
    for _ in range(3):
        new = {n: x + torch.rand(x.shape).to(x) for n, x in one.items()}
        corners.append(new | {"2.weight": new["0.weight"]})
    a, b, c = corners
    data = examples()[0], torch.zeros(40, dtype=torch.int64)
    result = coset.plane(a, b, c, model, data, points=2, path=coset.geodesic(a, c), repair=data)
    assert result.track[-1] == pytest.approx(result.points[2], rel=1e-5)


def test_json_and_regression() -> None:
    model = nn.Linear(3, 1)
    a, b, c = random_states(model, 4)
    inputs, _ = examples()
    result = coset.plane(*(coset.Dirac(s, 0.5) for s in (a, b, c)), model, (inputs, inputs[:, :1]), points=3)
    assert result.accuracy is None and json.loads(result.to_json())["accuracy"] is None
    assert json.loads(result.to_json())["track"] == []
    with pytest.raises(CosetError, match="no accuracy"):
        result.plot(what="accuracy")
    model = net()
    a, b, c = random_states(model, 4)
    record = coset.plane(a, b, c, model, examples(), points=3, path=coset.geodesic(a, b))
    numbers = json.loads(record.to_json())
    assert numbers["loss"] == [list(row) for row in record.loss]
    assert numbers["accuracy"] == [list(row) for row in record.accuracy or ()]
    assert numbers["track"] == [list(place) for place in record.track]


def test_pictures() -> None:
    points = ((0.0, 0.0), (2.0, 0.0), (1.0, 2.0))
    x = y = tuple(np.linspace(-2, 4, 25).tolist())
    # A bowl around (1, 1) whose walls are huge far away.
    loss = [[1.0 + ((u - 1) ** 2 + (v - 1) ** 2) ** 3 for u in x] for v in y]
    share = tuple(tuple(1 / value for value in row) for row in loss)
    likelihood = tuple(tuple(-10 * value for value in row) for row in loss)
    track = ((0.0, 0.0), (1.0, 0.7), (2.0, 0.0))
    result = Plane(x, y, points, likelihood, None, 10, share, track)
    figure = result.plot(("p", "q", "r"), what="loss")
    texts = ticks(figure)
    # The greatest loss inside is that at the two lower corners, 1 + 2^3.
    assert texts[0] == "1.00" and texts[-1] == "≥ 9.00" and len(texts) == len({*texts})
    line, *dots = figure.axes[0].lines
    assert line.get_xydata().tolist() == [list(place) for place in track]  # type: ignore[union-attr]
    assert [tuple(*dot.get_xydata()) for dot in dots] == list(points)  # type: ignore[arg-type, misc]
    texts = ticks(result.plot(what="accuracy"))
    assert texts[0] == "0" and texts[-1] == "100"
    assert result.plot().axes[0].get_title() == "log-likelihood"
    with pytest.raises(CosetError, match="no picture of 'height'; choose from posterior, loss, accuracy"):
        result.plot(what="height")  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["loss", "accuracy"])
def test_pictures_of_little(what: str) -> None:
    """Grids that are level or infinite in part, with no place inside the triangle."""
    points, ends = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)), (-3.0, 9.0)
    for values in (((-1.0, -math.inf), (0.0, -2.0)), ((0.0, 0.0), (0.0, 0.0))):
        result = Plane(ends, ends, points, values, None, 1, ((1.0, 1.0), (1.0, 1.0)))
        result.plot(what=what).draw_without_rendering()  # type: ignore[arg-type]
    assert ticks(Plane(ends, ends, points, ((-1.0, -3.0), (-2.0, -3.0)), None, 1).plot(what="loss"))[-1] == "3.00"
