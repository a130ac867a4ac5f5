"""The breast-cancer exhibits of weightflow: they run, and their numbers and verdicts are right."""

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, strategies as st
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from coset import data, zoo
from coset.plot import save
from coset.populations.pair_barriers import PairBarriers
from coset_papers import SCALES, Claim, Settings
from coset_papers.weightflow import cancer
from coset_papers.weightflow.barriers import BINS, WAYS, barrier_claims, barriers, draw_barriers, histogram
from coset_papers.weightflow.cancer import (
    ALIGNED,
    GEOMETRIES,
    KINDS,
    OURS,
    SIZES,
    TRANSPORT,
    UNALIGNED,
    above,
    draw_table1,
    table1,
)
from coset_papers.weightflow.study import draw_samples

Record = dict[str, Any]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, as both exhibits share their networks."""
    return tmp_path_factory.mktemp("cancer")


@pytest.mark.slow
def test_table1(out: Path, tmp_path: Path) -> None:
    outcome = table1(Settings(out=out))
    assert {(g, k) for g, rows in outcome.data["flows"].items() for k in rows} == {
        (g, k) for g in GEOMETRIES for k in KINDS
    }
    assert all(each.ours != "" and each.holds is None for each in outcome.claims)
    save(draw_table1(outcome.data), tmp_path / "table1.png")
    assert (tmp_path / "table1.png").stat().st_size > 10_000


def test_numbers_are_those_of_the_samples(out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cancer, "GEOMETRIES", {"geometric": "Geometric"})
    settings, sizes = Settings(out=out), SIZES["smoke"]
    rows = table1(settings).data
    row = rows["flows"]["geometric"][OURS]
    flow = sizes.recipe("geometric", OURS).flow(settings, sizes.many)
    assert row["parameters"] == sum(p.numel() for p in flow.sampler.field.network.parameters())
    assert row["novelty"]["kinds"]["samples"]["distance"]["n"] == sizes.near
    samples = draw_samples(settings, flow, sizes.samples, sizes.steps)[0]
    population = sizes.subject.population(settings).states
    images = data.load("breast-cancer")
    for record, networks in ((row, samples), (rows["networks"]["kept"], population)):
        for name, split in (("test", images.test), ("train", images.train)):
            each = [
                _scores({key: x[k] for key, x in networks.items()}, split)
                for k in range(len(networks["layers.0.bias"]))
            ]
            accuracies, losses = zip(*each, strict=True)
            assert record[name]["accuracy"]["mean"] == pytest.approx(np.mean(accuracies))
            assert record[name]["loss"]["mean"] == pytest.approx(np.mean(losses), rel=1e-4)
    save(draw_table1(rows), tmp_path / "table1.png")
    assert (tmp_path / "table1.png").stat().st_size > 10_000


def test_barriers_are_those_of_the_middles(out: Path, tmp_path: Path) -> None:
    settings, sizes = Settings(out=out), SIZES["smoke"]
    outcome = barriers(settings)
    assert all(each.holds is None for each in outcome.claims)
    save(draw_barriers(outcome.data), tmp_path / "barriers.png")
    assert (tmp_path / "barriers.png").stat().st_size > 10_000
    population = sizes.subject.population(settings)
    order = torch.randperm(len(population), generator=torch.Generator().manual_seed(0))[: sizes.networks]
    train = data.load("breast-cancer").train
    networks = [{name: x[k] for name, x in population.states.items()} for k in order]
    ends = [_scores(one, train)[1] for one in networks]
    heights = [
        _scores({name: (x + networks[j][name]) / 2 for name, x in networks[i].items()}, train)[1]
        - (ends[i] + ends[j]) / 2
        for i, j in combinations(range(len(networks)), 2)
    ]
    row = outcome.data["found"]["variance 0.1"]["train"]
    assert row["means"]["before"] == pytest.approx(np.mean(heights), rel=1e-3)
    assert row["means"]["common"] < 0.5 * row["means"]["before"]
    assert all(sum(counts) == len(heights) for counts in row["counts"].values())


def _scores(weights: dict[str, Tensor], split: data.Split) -> tuple[float, float]:
    """Accuracy and loss of one network."""
    model = zoo.build("mlp:30-16-16-2")
    model.load_state_dict(weights)
    with torch.no_grad():
        outputs = model(split.inputs)
    right = (outputs.argmax(1) == split.targets).double().mean()
    return float(right), float(F.cross_entropy(outputs, split.targets))


def test_histograms_share_their_bins() -> None:
    generator = torch.Generator().manual_seed(0)
    before, common, paired = torch.randn(3, 500, generator=generator, dtype=torch.float64)
    result = histogram(PairBarriers(torch.zeros(500, 2), before, common, paired))
    everything = torch.cat([before, common, paired]).numpy()
    counts, edges = np.histogram(common.numpy(), BINS, (everything.min(), everything.max()))
    assert result["counts"]["common"] == counts.tolist()
    assert result["edges"] == pytest.approx(edges)
    assert result["means"]["paired"] == pytest.approx(paired.mean().item())


@pytest.mark.parametrize("scale", SCALES)
def test_flows_are_those_of_the_thesis_and_ours(scale: str) -> None:
    sizes = SIZES[scale]
    recipes = {(g, kind): sizes.recipe(g, kind) for g in GEOMETRIES for kind in KINDS}
    assert len(set(map(repr, recipes.values()))) == 12
    for (_, kind), recipe in recipes.items():
        plan, ours = recipe.plan, kind == OURS
        assert plan.aligns == (kind in (ALIGNED, TRANSPORT))
        assert recipe.outputs == ours
        assert (plan.predict == "endpoint", recipe.matching.times == "beta") == (not ours, not ours)
        assert recipe.matching.noise == (0 if ours else 1e-3)
        assert (recipe.matching.epochs, plan.architecture) == (sizes.matching.epochs, sizes.architecture)


def test_the_largest_scale_is_that_of_the_thesis() -> None:
    subject = SIZES["paper"].subject
    assert (subject.model, subject.runs, SIZES["paper"].networks) == ("mlp:30-16-16-2", 100, 250)
    assert subject.deviation == pytest.approx(math.sqrt(0.1))
    steps = 456 // subject.training.batch_size
    iterations = [k for k in range(1, 50 * steps + 1) if subject.training.keeps(k, steps)]
    assert iterations == list(range(10 * steps + 4, 50 * steps + 1, 4))


accuracies = st.lists(st.floats(0, 1), min_size=2, max_size=6)


@given(accuracies, accuracies)
def test_above_is_two_standard_errors_of_the_difference(one: list[float], other: list[float]) -> None:
    gap = np.mean(one) - np.mean(other) - 2 * math.hypot(stats.sem(one), stats.sem(other))
    assume(abs(gap) > 1e-9)
    rows = [_row(float(np.mean(x)), spread=float(np.std(x, ddof=1)), n=len(x)) for x in (one, other)]
    assert above(*rows) == (gap > 0)


def _row(accuracy: float, spread: float = 0.01, n: int = 256, memorised: float = 0.0, closest: float = 6.5) -> Record:
    split = {"accuracy": {"mean": accuracy, "std": spread, "n": n}, "loss": {"mean": 0.1}}
    spreads = {"samples": (closest, 7.0, 8.0), "fresh": (6.0, 7.0, 8.0), "noisy": (0.5, 0.75, 1.0)}
    kinds = {kind: {"distance": dict(zip(("least", "mean", "largest"), x, strict=True))} for kind, x in spreads.items()}
    return {"test": split, "train": split, "novelty": {"memorised": memorised, "kinds": kinds}}


def _claims(**accuracies: float) -> dict[str, Claim]:
    """Of flows that have these accuracies in every geometry."""
    networks = {"kept": _row(0.985), "fresh": _row(0.99)}
    accuracy_of = {UNALIGNED: 0.90, ALIGNED: 0.98, TRANSPORT: 0.981, OURS: 0.99} | accuracies
    flows = {geometry: {kind: _row(value) for kind, value in accuracy_of.items()} for geometry in GEOMETRIES}
    return {each.text: each for each in cancer.flow_claims("paper", networks, flows, "How.")}


def _holds(claims: dict[str, Claim], words: str) -> bool | None:
    (verdict,) = {each.holds for text, each in claims.items() if words in text}
    return verdict


def test_verdicts_on_flows() -> None:
    claims = _claims()
    assert len(claims) == 10
    for words in ("aligned: generated", "alignment makes", "our flow is more", "our flow: generated", "as new"):
        assert _holds(claims, words) is True
    assert _holds(_claims(aligned=0.97), "aligned: generated") is False
    assert _holds(_claims(aligned=0.90), "alignment makes") is False
    assert _holds(_claims(ot=0.9801), "optimal transport") is False
    assert _holds(_claims(ot=0.985), "optimal transport") is True
    assert _holds(_claims(unaligned=0.99), "our flow is more") is False
    assert _holds(_claims(ours=0.974), "our flow: generated") is False


def test_verdicts_on_copies() -> None:
    rows = {kind: _row(0.98) for kind in KINDS}
    networks = {"kept": _row(0.98), "fresh": _row(0.98)}
    for share, new in ((0.04, True), (0.06, False)):
        flows = {geometry: rows | {UNALIGNED: _row(0.98, memorised=share)} for geometry in GEOMETRIES}
        *_, share_of_copies, none_close = cancer.flow_claims("paper", networks, flows, "")
        assert (share_of_copies.holds, "unaligned 4.0%" in str(share_of_copies.ours)) == (new, new)
        assert none_close.holds and "on average 7.00, the least 6.50, fresh runs 7.00, copies 0.75" in none_close.ours
    for closest, none in ((1.01, True), (0.99, False)):
        flows = {geometry: rows | {ALIGNED: _row(0.98, closest=closest)} for geometry in GEOMETRIES}
        *_, none_close = cancer.flow_claims("paper", networks, flows, "")
        assert none_close.holds is none


@pytest.mark.parametrize(
    ("means", "holds"),
    [
        ((0.25, 0.08, 0.03), [True, True, True]),
        ((0.25, 0.13, 0.03), [False, False, True]),
        ((0.40, 0.07, 0.08), [True, False, False]),
    ],
)
def test_verdicts_on_barriers(means: tuple[float, ...], holds: list[bool]) -> None:
    one = {split: {"means": dict(zip(WAYS, means, strict=True))} for split in ("train", "test")}
    claims = barrier_claims("paper", {"variance 0.1": one, "deviation 0.1": one})
    assert [each.holds for each in claims] == holds
    assert f"from {means[0]:.3f} to {means[1]:.3f}" in str(claims[0].ours)
    assert all(each.holds is None for each in barrier_claims("smoke", {"variance 0.1": one}))


def test_scales_share_all_but_their_sizes() -> None:
    smoke, paper = SIZES["smoke"].subject, SIZES["paper"].subject
    assert replace(smoke, runs=paper.runs, fresh=paper.fresh, training=paper.training) == paper
