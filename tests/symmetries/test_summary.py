"""The record of a symmetry."""

import json
import math
from dataclasses import replace

import pytest
from torch import nn

import coset
from coset.symmetries.serialization import moved_tensors, scalar_tensors, summary
from coset.zoo import build, example_input


@pytest.fixture(scope="module")
def resnet() -> coset.Symmetry:
    model = build("resnet20:width=0.25")
    return coset.symmetry(model, example_input(model))


def test_strict_json(resnet: coset.Symmetry) -> None:
    assert resnet.verification is not None
    unmeasured = replace(resnet, verification=replace(resnet.verification, control=math.inf))
    record = json.loads(json.dumps(summary(unmeasured), allow_nan=False))
    assert record["verification"]["control"] is None
    assert record["verification"]["deviation"] == resnet.verification.deviation
    again = coset.Symmetry.from_json(json.dumps(record["symmetry"]))
    assert again.groups == resnet.groups and again.scalings == resnet.scalings and again.fixed == resnet.fixed


def test_everything_is_listed(resnet: coset.Symmetry) -> None:
    record = summary(resnet)
    assert sum(len(group["members"]) for group in record["groups"]) == sum(len(g.members) for g in resnet.groups)
    scalars = [name for name in resnet.axes if name.endswith("num_batches_tracked")]
    assert scalar_tensors(resnet) == scalars
    assert set(moved_tensors(resnet)) == set(resnet.axes) - set(scalars) - {"head.bias"}
    assert record["tensors"] == {
        "all": len(resnet.axes),
        "moved": len(resnet.axes) - len(scalars) - 1,
        "scalars": len(scalars),
    }


def test_without_verification_and_without_groups() -> None:
    model = nn.Linear(3, 2, device="meta")
    sym = coset.symmetry(model, (nn.Parameter(model.weight[:1]).detach(),))
    record = summary(sym)
    assert record["verification"] is None
    assert record["groups"] == [] and record["log10_order"] == 0 and record["tensors"]["moved"] == 0


def test_a_set_that_cannot_move_moves_nothing() -> None:
    spec = {"groups": {"pairs": {"size": 4, "movable": False}}, "tensors": {"query.weight": ["pairs", 3]}}
    assert moved_tensors(coset.Symmetry.from_json(json.dumps(spec))) == []
