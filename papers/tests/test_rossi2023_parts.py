"""What the figures of rossi2023 compute, against direct computations."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st

from coset import MAP, VI, Dirac, Gaussian, Solution, Symmetry, align, data, mixture, symmetry, wasserstein, zoo
from coset.core import state as states
from coset.data import Split
from coset_papers import SCALES, Settings
from coset_papers.examples import some
from coset_papers.images import IMAGE_SETS, load, pairs
from coset_papers.outcome import Claim, without_repeated_notes
from coset_papers.rossi2023 import alignment_costs, criteria
from coset_papers.rossi2023.barriers import PathMeasurement, barriers
from coset_papers.rossi2023.collapse import ratios, variances
from coset_papers.rossi2023.networks import measure_of, mlp, resnet
from coset_papers.rossi2023.planes import dip
from coset_papers.rossi2023.study import PosteriorStudy
from coset_papers.rossi2023.textbook_matching import textbook_align

TINY = PosteriorStudy("digits", "mlp:64-6-6-10", VI(epochs=2, batch_size=300), examples=300)


def gaussian(model: torch.nn.Module, seed: int) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    like = states.of(model)
    mean = {name: torch.randn(x.shape, generator=generator) for name, x in like.items()}
    return Gaussian(mean, {name: torch.rand(x.shape, generator=generator) / 4 + 0.1 for name, x in like.items()})


def test_variances_are_those_of_what_enters_activations() -> None:
    model = zoo.build("mlp:5-4-3-2")
    q, x = gaussian(model, 0), torch.randn(11, 5, generator=torch.Generator().manual_seed(1))
    result = variances(q, model, x, 3, batch_size=4)
    first, second = [], []
    for w in states.unstack(q.sample(3, torch.Generator().manual_seed(0))):
        first.append(F.linear(x, w["layers.0.weight"], w["layers.0.bias"]))
        second.append(F.linear(first[-1].relu(), w["layers.1.weight"], w["layers.1.bias"]))
    expected = [float(torch.cat(rows).double().var(0, correction=0).sum()) for rows in (first, second)]
    assert result == pytest.approx(expected, rel=1e-5)


def test_variances_of_channels_are_over_positions_too() -> None:
    model = zoo.build("resnet20:width=0.125,norm=frn,in_channels=1")
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    result = variances(Dirac(states.of(model)), model, x, 1, batch_size=2)
    with torch.no_grad():
        stem = model.get_submodule("stem_norm")(model.get_submodule("stem")(x))
    assert len(result) == 19  # the stem, and two of each block
    assert result[0] == pytest.approx(float(stem.double().var((0, 2, 3), correction=0).sum()), rel=1e-5)


def test_ratios_are_to_the_line_between_the_ends() -> None:
    assert ratios((0.0, 0.25, 1.0), [[4.0], [2.5], [8.0]]) == [[1.0], [0.5], [1.0]]


@pytest.mark.parametrize("kind", ["gaussian", "dirac", "deviations"])
def test_the_textbook_algorithm_undoes_a_permutation(kind: str) -> None:
    model = zoo.build("mlp:6-9-8-3")
    sym = symmetry(model, (torch.randn(2, 6),))
    a: Solution = gaussian(model, 0)
    if kind == "dirac":
        a = Dirac(a.mean)
    elif kind == "deviations":  # which alone tell the units apart
        a = Gaussian(
            {name: torch.zeros_like(x) for name, x in a.mean.items()}, {name: x.abs() for name, x in a.mean.items()}
        )
    b = sym.act(sym.random(torch.Generator().manual_seed(3)), a)
    element = textbook_align(a, b, sym, torch.Generator().manual_seed(0))
    assert float(wasserstein(a, b)) > 1
    assert float(wasserstein(a, sym.act(element, b))) == pytest.approx(0, abs=1e-5)


def test_the_textbook_algorithm_is_as_good_as_align() -> None:
    model = zoo.build("mlp:6-9-8-3")
    sym = symmetry(model, (torch.randn(2, 6),))
    a, b = gaussian(model, 0), gaussian(model, 1)
    ours, theirs = (
        float(wasserstein(a, sym.act(element, b)))
        for element in (align(a, b, sym).element, textbook_align(a, b, sym, torch.Generator().manual_seed(0)))
    )
    assert theirs == pytest.approx(ours, rel=0.05) and theirs < 0.9 * float(wasserstein(a, b))


def test_divergence_is_that_of_torch() -> None:
    model = zoo.build("mlp:3-4-2")
    p, q = gaussian(model, 0), gaussian(model, 1)
    expected = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(q.mean[name].double(), q.std[name].double()),
            torch.distributions.Normal(p.mean[name].double(), p.std[name].double()),
        ).sum()
        for name in p.mean
    )
    assert alignment_costs.divergence(q, p) == pytest.approx(float(expected))


def test_each_cost_of_the_example_is_the_best_of_both_orders() -> None:
    sym = Symmetry.from_json(alignment_costs.SWAP)
    mean = {"w": torch.tensor(alignment_costs.MEAN)}
    q0, q1 = (Gaussian(mean, {"w": torch.tensor(std)}) for std in (alignment_costs.STD, alignment_costs.STD[::-1]))
    images = {order: sym.act(sym.element({"axis": torch.tensor(order)}), q1) for order in permutations(range(2))}
    by_kl = min(images, key=lambda order: alignment_costs.divergence(images[order], q0))
    by_wasserstein = min(images, key=lambda order: float(wasserstein(q0, images[order])))
    result = alignment_costs._toy()
    assert result == {"weights": [0, 1], "kl": list(by_kl), "wasserstein": list(by_wasserstein)}
    assert by_kl == by_wasserstein == (1, 0)


def test_a_mode_has_the_same_prior() -> None:
    study = mlp("paper", "mnist")
    assert isinstance(study.method, VI)
    method = study.mode().method
    assert isinstance(method, MAP) and method.weight_decay == pytest.approx(1 / (60_000 * 0.0025))
    assert (method.rate, method.epochs, method.precision) == (0.06, 300, "tf32")


@pytest.mark.parametrize("scale", SCALES)
def test_networks_fit_their_images(scale: str) -> None:
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"):
        for study in (mlp(scale, name), resnet(scale, name)):
            source = IMAGE_SETS[study.data]
            side = {64: (8, 8), 128: (8, 16), 784: (28, 28), 1568: (28, 56), 3072: (32, 32)}[source.pixels]
            with torch.no_grad():
                assert study.build()(torch.zeros(1, source.channels, *side)).shape == (1, source.classes)
            assert measure_of(scale, study).points > 2 and source.title in study.title


def test_sources_know_their_data() -> None:
    for name in ("digits", "digit-pairs"):
        train, source = load(name, "cpu").train, IMAGE_SETS[name]
        assert len(train) == source.examples and train.inputs[0].numel() == source.pixels
        assert int(train.targets.max()) < source.classes
    assert len(load("digits", "cpu", 50).train) == 50


def test_pairs_have_both_digits() -> None:
    split = some(data.load("digits").train, 40)
    result = pairs(split)
    for image, target in zip(*result, strict=True):
        for part, digit in zip(image.split(8, dim=-1), divmod(int(target), 10), strict=True):
            at = int((split.inputs == part).flatten(1).all(1).nonzero()[0])
            assert int(split.targets[at]) == digit


def test_some_are_always_the_same() -> None:
    split = Split(torch.arange(9.0)[:, None], torch.arange(9))
    assert some(split, 9) is split and torch.equal(some(split, 4).targets, some(split, 4).targets)


def test_a_dip_is_measured_against_the_chord() -> None:
    x, y = np.linspace(-1, 5, 13), np.linspace(-1, 3, 9)
    values = x[None] * (x[None] - 4) + 7 * x[None] + 3 * y[:, None]  # a parabola on a slope
    surface = {"x": x.tolist(), "y": y.tolist(), "points": [(0, 0), (4, 0), (2, 2)], "log_posterior": values.tolist()}
    assert dip(surface, 0, 1, examples=2) == pytest.approx(4 / 2, rel=0.01)
    assert dip(surface, 0, 2, examples=1) == pytest.approx(1, rel=0.01)


def test_networks_are_shared_and_more_may_be_asked_for(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path)
    first = TINY.solutions(settings)
    times = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    more = replace(TINY, replicas=3).solutions(settings)
    assert len(times) == 2 and all(file.stat().st_mtime_ns == time for file, time in times.items())
    assert len(more) == 3 and float(wasserstein(first[1], more[1])) == 0


def test_barriers_of_all_pairs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, measure = Settings(out=tmp_path), PathMeasurement(points=3, samples=2, examples=50)
    study = replace(TINY, replicas=3)
    rows = barriers(study, settings, measure, "naive")
    assert [row["pair"] for row in rows] == [[0, 1], [0, 2], [1, 2]]
    aligned = barriers(study, settings, measure, "auto")
    assert aligned[0]["test"]["endpoints"][0] == rows[0]["test"]["endpoints"][0]
    monkeypatch.setattr(PosteriorStudy, "solutions", None)  # what is kept needs no networks
    assert barriers(study, settings, measure, "naive") == rows


def test_a_mixture_has_no_barrier(tmp_path: Path) -> None:
    (row,) = barriers(TINY, Settings(out=tmp_path), PathMeasurement(5, 8, 100), "naive", mixture)
    assert row["test"]["height"] == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9))
def test_standard_errors_are_those_of_numpy(values: list[float]) -> None:
    expected = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    assert criteria.standard_error(values) == pytest.approx(expected, abs=1e-9)


def test_trends_need_more_than_noise_and_one_pair() -> None:
    assert criteria.falls([1.0, 1.1, 0.9], [0.5, 0.6, 0.4]) is True
    assert criteria.falls([1.0, 1.1, 0.9], [0.95, 1.05, 0.85]) is False
    assert criteria.falls([0.5, 0.6], [1.0, 1.1]) is False
    assert criteria.falls([1.0], [0.0]) is None and criteria.differ([1.0], [0.0]) is None
    assert criteria.differ([0.5, 0.6], [1.0, 1.1]) is True


def test_notes_are_said_once() -> None:
    claims = [Claim(str(k), None, 0.0, None, note) for k, note in enumerate("aba")]
    assert [claim.note for claim in without_repeated_notes(claims)] == ["a", "b", ""]
