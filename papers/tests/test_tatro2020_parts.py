"""What the figures of tatro2020 compute, against direct computations."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy import stats

from coset import data
from coset.core.errors import DataError
from coset_papers import SCALES, Settings, images
from coset_papers.images import IMAGE_SETS
from coset_papers.tatro2020 import networks, published
from coset_papers.tatro2020.criteria import above, deviation, percent
from coset_papers.tatro2020.curve_kinds import ALIGNED, PAM_ALIGNED, PAM_UNALIGNED, UNALIGNED
from coset_papers.tatro2020.curve_losses import averages, dips, ends, middles, minima
from coset_papers.tatro2020.hyperparameter_grid import draw_table3
from coset_papers.tatro2020.networks import SIZES, present, robust, single, study
from coset_papers.tatro2020.robust import robust_claims
from coset_papers.tatro2020.signatures import signature_claims
from coset_papers.tatro2020.study import CurveStudy
from coset_papers.tatro2020.tables import COLUMNS, accuracy_claims, draw_table1, draw_table2, loss_claims
from coset_papers.tatro2020.training_loss import first_below

values = st.lists(st.floats(0, 1), min_size=2, max_size=5)


@given(values, st.floats(-1, 1))
def test_above_is_two_standard_errors_of_the_paired_difference(other: list[float], shift: float) -> None:
    one = [shift + value**2 for value in other]
    differences = np.subtract(one, other)
    error = float(stats.sem(differences))
    if abs(differences.mean() - 2 * error) > 1e-9:
        assert above(one, other) == (differences.mean() > 2 * error)
    assert deviation(one) == pytest.approx(statistics.stdev(one))


def test_one_pair_is_judged_by_its_sign() -> None:
    assert above([0.9], [0.8])
    assert not above([0.8], [0.9])
    assert deviation([0.8]) is None
    assert percent([0.8]) == "80.0"
    assert percent([0.8, 0.82]) == "81.0 ± 1.4"


def test_numbers_along_a_curve() -> None:
    rows = [
        {"accuracy": [0.9, 0.6, 0.7, 0.5, 0.8], "loss": [1.0, 2.0, 3.0, 2.0, 1.0]},
        {"accuracy": [0.5, 0.6, 0.9, 0.6, 0.5], "loss": [0.0, 1.0, 0.0, 1.0, 0.0]},
    ]
    assert averages(rows) == pytest.approx([0.7, 0.62])
    assert averages(rows, "loss") == pytest.approx([1.8, 0.4])
    assert minima(rows) == [0.5, 0.5]
    assert ends(rows) == pytest.approx([0.85, 0.5])
    assert dips(rows) == pytest.approx([0.35, 0.0])
    assert middles(rows) == pytest.approx([-0.15, 0.4])


def test_first_epoch_below() -> None:
    assert first_below([3.0, 2.0, 1.0], 2.0) == 2
    assert first_below([3.0, 2.0, 1.0], 0.5) is None


@pytest.mark.parametrize("scale", SCALES)
def test_every_network_takes_its_images(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "available", lambda name: name == "cifar100")
    shapes = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
    assert set(present(scale)) == {"smoke": {"digits"}, "short": {"cifar10"}, "paper": {"cifar10", "cifar100"}}[scale]
    for name in present(scale):
        for one in [*(study(scale, name, network) for network in SIZES[scale].plans), robust(scale, name)]:
            assert one.data == name
            with torch.no_grad():
                outputs = one.build().eval()(torch.zeros(1, *shapes[name]))
            assert outputs.shape == (1, IMAGE_SETS[name].classes)
    assert SIZES[scale].measure.points % 2  # so that one of the points is halfway


def test_images_that_are_not_there_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        raise DataError(f"{name} is not there")

    images.available.cache_clear()
    monkeypatch.setattr(data, "load", load)
    assert present("paper") == ("cifar10",)
    assert study("paper", "cifar100").data == "cifar10"
    assert networks.absent("cifar10", "cifar100") == "CIFAR10 stands for CIFAR100."
    assert networks.absent("cifar10", "cifar10") == ""
    images.available.cache_clear()


def test_curves_are_shared_where_nothing_differs(tmp_path: Path) -> None:
    settings, one = Settings(out=tmp_path), study("smoke", "cifar10")
    fewer = single("smoke", "cifar10")
    no_pam = replace(one, plan=replace(one.plan, pam=None))
    faster = replace(one, plan=replace(one.plan, curves=replace(one.plan.curves, rate=0.5)))

    def folder(which: CurveStudy, kind: str) -> Path:
        return which._folder(settings, kind, 0)

    assert folder(one, ALIGNED) == folder(fewer, ALIGNED) == folder(no_pam, ALIGNED)
    assert folder(one, PAM_ALIGNED) != folder(no_pam, PAM_ALIGNED)
    assert folder(one, ALIGNED) != folder(faster, ALIGNED) != folder(faster, UNALIGNED)
    assert no_pam.kinds == (UNALIGNED, ALIGNED)


def test_the_attack_is_in_units_of_pixels(tmp_path: Path) -> None:
    attack = robust("smoke", "cifar10").attack(Settings(out=tmp_path))
    scale = data.load("digits").input_scale
    assert attack is not None and attack.steps == 2
    assert attack.mean == pytest.approx([float(scale.mean[0, 0, 0])])
    assert attack.std == pytest.approx([float(scale.std[0, 0, 0])])
    assert study("smoke", "cifar10").attack(Settings(out=tmp_path)) is None


def table_row(network: str, source: str) -> dict[str, Any]:
    """A row of Table 1 or 2 with the numbers of the paper as ours, of three pairs."""
    around = (-0.001, 0.0, 0.001)
    shares = {kind: of[source] for kind, of in published.ACCURACY[network].items()}
    losses = {kind: of[source][0] for kind, of in published.LOSS[network].items()}
    return {
        "network": network,
        "data": IMAGE_SETS[source].title,
        "title": f"{network}, {IMAGE_SETS[source].title}",
        "pairs": 3,
        "trained": "",
        "ends": [published.ENDS[network][source][0] / 100 + x for x in around],
        "published_ends": published.ENDS[network][source],
        "published": shares,
        "kinds": {
            kind: {
                "average": [row[0] / 100 + x for x in around],
                "minimum": [row[2] / 100 + x for x in around],
                "along": [losses[kind] + x for x in around],
                "last": [losses[kind] + x for x in around],
            }
            for kind, row in shares.items()
        },
    }


@pytest.mark.parametrize("network", list(published.ACCURACY))
def test_the_claims_hold_for_the_numbers_of_the_paper(network: str) -> None:
    row = table_row(network, "cifar10")
    claims = list(accuracy_claims("paper", row))
    assert len(claims) == (3 if network == "GoogLeNet" else 8)
    assert all(each.holds is True for each in claims)
    assert f"aligned {published.ACCURACY[network][ALIGNED]['cifar10'][0]} ± 0.1" in claims[0].ours
    row["published"] = {kind: of["cifar10"] for kind, of in published.LOSS[network].items()}
    assert all(each.holds is True for each in loss_claims("paper", row))


def test_the_claims_can_fail() -> None:
    row = table_row("TinyTen", "cifar10")
    kinds = row["kinds"]
    kinds[ALIGNED], kinds[UNALIGNED] = kinds[UNALIGNED], kinds[ALIGNED]
    assert [each.holds for each in accuracy_claims("paper", row)] == [
        *(False, False, False),
        *(False, False, False, False),
        False,
    ]
    assert {each.holds for each in accuracy_claims("smoke", row)} == {None}
    row["published"] = {kind: of["cifar10"] for kind, of in published.LOSS["TinyTen"].items()}
    assert [each.holds for each in loss_claims("paper", row)] == [False, False, False]


def test_tables_of_several_networks_are_drawn() -> None:
    rows = [table_row(network, "cifar10") for network in published.ACCURACY]
    assert len(draw_table1({"rows": rows}).axes) == 3
    for row in rows:
        row["published"] = {kind: of["cifar10"] for kind, of in published.LOSS[row["network"]].items()}
    assert len(draw_table2({"rows": rows}).axes) == 3


def test_table_3_of_the_paper() -> None:
    aligned, plain = ([x for row in published.GRID[kind].values() for x in row] for kind in (ALIGNED, UNALIGNED))
    assert min(aligned) > max(plain)  # as its caption says
    cells = [
        {"kind": kind, "rate": rate, "batch": batch, "average": value / 100}
        for kind, rates in published.GRID.items()
        for rate, row in rates.items()
        for batch, value in zip(published.GRID_BATCHES, row, strict=True)
    ]
    ours = {kind: [cell for cell in cells if cell["kind"] == kind] for kind in published.GRID}
    figure = draw_table3({"title": "", "published_title": "", "cells": ours, "published": cells})
    left, right = ([line.get_ydata() for line in axes.lines] for axes in figure.axes)
    np.testing.assert_array_equal(left, right)


def test_robust_claims() -> None:
    def rows(*accuracy: float) -> list[dict[str, Any]]:
        return [{"accuracy": list(accuracy)}]

    good = {UNALIGNED: rows(0.5, 0.3, 0.5), ALIGNED: rows(0.5, 0.55, 0.5)}
    bad = {UNALIGNED: rows(0.5, 0.495, 0.5), ALIGNED: rows(0.5, 0.45, 0.5)}
    assert [each.holds for each in robust_claims("paper", "", {"clean": good, "robust": good}, "")] == [True] * 4
    mixed = robust_claims("paper", "", {"clean": good, "robust": bad}, "")
    assert [each.holds for each in mixed] == [False, True, False, False]
    assert mixed[0].ours == "below the ends by clean 20.0, robust 0.5 points"


def test_signature_claims() -> None:
    signatures: dict[str, Any] = {
        "ends": {"before": [[0.1, 0.2], [0.3, 0.0]], "after": [[0.5, 0.6], [0.7, 0.4]]},
        UNALIGNED: {"before": [[0.5, 0.5]], "after": [[0.6, 0.55]], "line": [[0.1, 0.1]]},
        ALIGNED: {"before": [[0.8, 0.8]], "after": [[0.8, 0.82]], "line": [[0.7, 0.7]]},
    }
    claims = signature_claims("paper", signatures, "")
    assert [each.holds for each in claims] == [True] * 4
    assert claims[0].ours == "0.15 to 0.55 on average; the least rise is 0.40"
    signatures["ends"]["after"] = [[0.5, 0.2], [0.7, 0.0]]
    signatures[UNALIGNED]["before"] = [[0.9, 0.0]]
    signatures[UNALIGNED]["after"] = [[0.9, 0.9]]
    signatures[ALIGNED]["before"] = [[0.3, 0.3]]
    assert [each.holds for each in signature_claims("paper", signatures, "")] == [False] * 4


def test_every_pam_row_of_the_paper_lies_between() -> None:
    for kinds in published.ACCURACY.values():
        if PAM_UNALIGNED in kinds:
            for source in COLUMNS:
                plain, between, best = (kinds[kind][source][0] for kind in (UNALIGNED, PAM_UNALIGNED, ALIGNED))
                assert plain < between < best
