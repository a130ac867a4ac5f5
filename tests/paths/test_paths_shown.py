"""Paths and what is measured along them: what they show of themselves, and what they take as a network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import coset
from coset import data, zoo
from coset.core.show import LINES, WIDTH

FEW = coset.Connect(epochs=1)


@pytest.fixture(scope="module")
def digits() -> data.DataSet:
    return data.load("digits")


@pytest.fixture(scope="module")
def networks() -> list[nn.Module]:
    torch.manual_seed(0)
    return [zoo.build("mlp:64-12-10") for _ in range(3)]


def few_of(digits: data.DataSet) -> tuple[torch.Tensor, torch.Tensor]:
    return digits.test.inputs[:20], digits.test.targets[:20]


@pytest.fixture(scope="module")
def objects(digits: data.DataSet, networks: list[nn.Module]) -> dict[str, Any]:
    a, b, c = networks
    line = coset.geodesic(a, b)
    few = few_of(digits)
    return {
        "Geodesic": line,
        "MixturePath": coset.mixture(a, b),
        "Bezier": coset.Bezier(a, c, b),
        "Chain": coset.Chain(a, c, b),
        "Barrier": coset.barrier(line, a, few, points=3),
        "Plane": coset.plane(a, b, c, a, few, points=3),
        "InterpolationBound": coset.interpolation_bound(a, a, b, few, points=3),
        "Connect": coset.Connect(attack=coset.PGD(steps=3)),
        "Collect": coset.Collect(),
    }


def test_all_are_few_lines_and_a_table(objects: dict[str, Any]) -> None:
    for name, thing in objects.items():
        lines = repr(thing).splitlines()
        assert lines[0].startswith(name) and len(lines) <= LINES and max(map(len, lines)) <= WIDTH, name
        assert "<table>" in thing._repr_html_(), name


@pytest.mark.parametrize("name", ["Barrier", "Plane"])
def test_a_notebook_shows_the_picture_where_it_can_be_made(
    name: str, objects: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    page = objects[name]._repr_html_()
    assert page.startswith("<table>") and "<img src='data:image/svg+xml;base64," in page

    def absent(*_: object) -> None:
        raise coset.CosetError("This needs matplotlib.")

    monkeypatch.setattr(type(objects[name]), "_picture", absent)
    assert objects[name]._repr_html_().endswith("</table>")


def test_settings_show_what_is_not_as_by_default_and_all_in_a_notebook(objects: dict[str, Any]) -> None:
    assert repr(coset.Connect(bends=2)) == "Connect(bends=2)" and repr(coset.Collect(chunk=8)) == "Collect(chunk=8)"
    assert all(word in objects["Connect"]._repr_html_() for word in ("batch_size", "128", "bends", "stratified"))
    assert all(word in objects["Collect"]._repr_html_() for word in ("chunk", "4096", "weight_decay"))


def test_networks_are_modules_states_or_solutions(digits: data.DataSet, networks: list[nn.Module]) -> None:
    """With the same numbers for all three."""
    model, few = networks[0], few_of(digits)
    kinds: list[list[Any]] = [
        networks,
        [coset.state.of(net) for net in networks],
        [coset.Dirac(net) for net in networks],
    ]
    barriers, planes, bounds, curves = [], [], [], []
    for a, b, c in kinds:
        paths = coset.geodesic(a, b), coset.mixture(a, b), coset.Bezier(a, c, b), coset.Chain(a, c, b)
        barriers.append([coset.barrier(path, model, few, points=3) for path in paths])
        planes.append(coset.plane(a, b, c, model, few, points=2))
        bounds.append(coset.interpolation_bound(model, a, b, few, points=3))
        curves.append(coset.barrier(coset.find_curve(a, b, model, few, FEW), model, few, points=3))
    for measured in (barriers, planes, bounds, curves):
        assert measured[0] == measured[1] == measured[2]


def test_a_path_may_be_any_function_to_a_network(digits: data.DataSet, networks: list[nn.Module]) -> None:
    a, b, c = networks
    few = few_of(digits)

    def jump(t: float) -> nn.Module:
        return a if t < 0.5 else b

    result = coset.barrier(jump, a, few, points=2)
    assert result.loss == coset.barrier(coset.geodesic(a, b), a, few, points=2).loss
    assert coset.plane(a, b, c, a, few, points=2, path=jump).track[0] == pytest.approx((0, 0), abs=1e-6)


def test_what_is_no_network_is_refused_by_its_place(networks: list[nn.Module]) -> None:
    for path in (coset.geodesic, coset.mixture):
        with pytest.raises(coset.StateError, match="expected as the second solution, not a float"):
            path(networks[0], 0.5)  # type: ignore[operator]
