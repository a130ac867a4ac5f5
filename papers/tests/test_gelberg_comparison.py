"""Paired tests by hand, runs that are paired, and gelberg2024 Table 1 with the second part of the open problem."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats
from typer.testing import Result

from coset_papers.gelberg2024.comparison import WAYS, VIComparison, VISettings, measure
from coset_papers.gelberg2024.paired_tests import holm, paired
from coset_papers.gelberg2024.symmetrization import random_teacher

RUNS = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=3, max_size=8)


@given(RUNS)
@settings(max_examples=60, deadline=None)
def test_paired_is_what_it_says(runs: list[tuple[int, int]]) -> None:
    first, second = ([float(x) for x in column] for column in zip(*runs, strict=True))
    d = np.subtract(second, first)
    result = paired(first, second)
    assert result.difference == pytest.approx(d.mean())
    error = d.std(ddof=1) / math.sqrt(len(d))
    assert result.error == pytest.approx(error)
    if error > 0:
        assert result.t == pytest.approx(2 * stats.t.sf(abs(d.mean()) / error, len(d) - 1))
        assert result.t == pytest.approx(stats.ttest_rel(second, first).pvalue)
    magnitudes = np.abs(d)
    if magnitudes.all() and len(set(magnitudes)) == len(d):
        # Under the null hypothesis each sign is as likely as the other.
        ranks = stats.rankdata(magnitudes)
        sums = [float(np.dot(signs, ranks)) for signs in itertools.product((0, 1), repeat=len(d))]
        rank_sum = float(ranks[d > 0].sum())
        low, high = (np.mean([s <= rank_sum for s in sums]), np.mean([s >= rank_sum for s in sums]))
        assert result.wilcoxon == pytest.approx(min(1.0, 2 * min(low, high)))


def test_the_same_runs_are_no_evidence() -> None:
    result = paired([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (result.difference, result.error, result.t, result.wilcoxon) == (0, 0, 1, 1)
    assert paired([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]).t == 0


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_between_none_and_bonferroni(values: list[float]) -> None:
    for one, corrected in zip(values, holm(values), strict=True):
        assert one <= corrected <= min(1.0, one * len(values)) or corrected == pytest.approx(max(holm(values)))


def problem(initial_std: float) -> VIComparison:
    training = VISettings(steps=6, batch_size=50, initial_std=initial_std, noise=0.1)
    return VIComparison("toy", lambda: random_teacher(3, 6), training, tuple(WAYS), 2, 20)


def test_runs_are_paired() -> None:
    field, uniform = (measure(problem(1e-3), WAYS[name], 0, "cpu") for name in ("mean-field", "InfoNCE, K = 5"))
    # Modes that do not overlap: no gradient changes, and all else is drawn alike.
    assert field["short"] == [0, 0] and field["nll"] == uniform["nll"] and field["elbo"] == uniform["elbo"]
    field, bethe = (measure(problem(1.0), WAYS[name], 0, "cpu") for name in ("mean-field", "Bethe"))
    assert min(field["index"]) > 0.05 and field["nll"] != bethe["nll"]
    assert field["nll"] == pytest.approx(bethe["nll"], rel=0.2)
    assert 1e-4 < field["step"] < 10  # seconds, on any CPU


def test_steps_are_epochs() -> None:
    training = VISettings(steps=30, batch_size=64)
    assert training.method(WAYS["mean-field"], 200).epochs == 10
    assert training.method(WAYS["mean-field"], 20).epochs == 30
    assert replace(training, steps=1).method(WAYS["Bethe"], 200).epochs == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table1", "symmetrization"])
def test_smoke(reproduce: Callable[..., Result], tmp_path: Path, name: str) -> None:
    result = reproduce(f"gelberg2024/{name}", "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert (tmp_path / f"gelberg2024-{name}-smoke.png").stat().st_size > 10_000
    if name == "table1":
        rows = record["data"]["rows"]
        assert all(row["gain"]["Bethe"]["difference"] == 0 for row in rows)
        assert all(max(row["methods"]["mean-field"]["short"]) < 1e-6 for row in rows)
        assert max(record["data"]["broad"]["methods"]["mean-field"]["short"]) > 1
    else:
        overlapping = {row["name"] for row in record["data"]["sets"] if row["short"] > 0.1}
        assert overlapping == {"two weights"}
    again = json.loads(reproduce(f"gelberg2024/{name}", "--out", tmp_path, "--json").stdout)
    assert again["data"] == record["data"]
