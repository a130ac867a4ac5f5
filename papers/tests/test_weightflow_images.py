"""The image exhibits of weightflow at their smallest scale: they run, records are complete, and numbers are right."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smoke import check, figures
from torch.nn import functional as F

import coset
from coset import Flow, data, zoo
from coset_papers import Settings, reproduce
from coset_papers.weightflow.ablation import variations
from coset_papers.weightflow.criteria import as_good, equal
from coset_papers.weightflow.gradient_descent import best_of, descend, seen_at
from coset_papers.weightflow.guidance import turned
from coset_papers.weightflow.measurements import beside, closeness, fresh, generated
from coset_papers.weightflow.networks import SIZES, hidden
from coset_papers.weightflow.study import draw_samples
from coset_papers.weightflow.two_conv_net import TwoConvNet

ELSEWHERE = ("table1", "barriers", "posterior")  # in test_weightflow_cancer.py and test_weightflow_posterior.py


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, as exhibits share their networks and flows."""
    return tmp_path_factory.mktemp("weightflow")


@pytest.mark.parametrize("name", figures("weightflow", quick=("averages", "novelty", "guidance"), elsewhere=ELSEWHERE))
def test_smoke(name: str, out: Path) -> None:
    assert all(claim["holds"] is None for claim in check(name, out)["claims"])


def test_averages_are_those_of_the_samples(out: Path) -> None:
    settings, sizes = Settings(out=out), SIZES["smoke"]
    best = next(iter(sizes.ours.values()))
    record = reproduce("weightflow/averages", settings)["data"]["samples"][-1]
    result = generated(settings, sizes.subject, best, sizes.count, sizes.steps)
    samples = draw_samples(settings, best.flow(settings, sizes.subject), sizes.count, sizes.steps)[0]
    test = data.load("digits").test
    each = []
    for k in range(sizes.count):
        model = zoo.build(sizes.subject.model)
        model.load_state_dict({name: x[k] for name, x in samples.items()})
        with torch.no_grad():
            each.append(model(test.inputs).softmax(-1))
    probs = torch.stack(each)
    hits = probs.mean(0).argmax(-1) == test.targets
    assert record["count"] == sizes.count
    assert record["accuracy"] == pytest.approx(float(hits.double().mean()))
    assert record["nll"] == pytest.approx(float(F.nll_loss(probs.mean(0).log(), test.targets)), rel=1e-4)
    assert result["accuracy"]["mean"] == pytest.approx(float((probs.argmax(-1) == test.targets).double().mean()))
    assert result["wrong"] == [k for k, hit in enumerate(hits.tolist()) if not hit]
    assert result["accuracy"]["mean"] > 0.3  # far from a guess, after seconds


def test_samples_differ_from_fresh_networks_where_they_are_counted(out: Path) -> None:
    settings, sizes = Settings(out=out), SIZES["smoke"]
    result = generated(settings, sizes.subject, next(iter(sizes.ours.values())), sizes.count, sizes.steps)
    trained = fresh(settings, sizes.subject)
    both = beside(result, trained)
    difference = (len(trained["wrong"]) - len(result["wrong"])) / len(data.load("digits").test)
    assert both["better"] - both["worse"] == len(trained["wrong"]) - len(result["wrong"])
    assert difference == pytest.approx(result["averages"][-1]["accuracy"] - trained["averages"][-1]["accuracy"])
    assert beside({"wrong": [1, 2]}, {"wrong": [2, 3, 4]}) == {"better": 2, "worse": 1}


def test_nothing_is_learned_twice(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reproduce("weightflow/novelty", Settings(out=out))

    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("learned again")

    monkeypatch.setattr(Flow, "fit", refuse)
    again = reproduce("weightflow/novelty", Settings(out=out))
    assert again["data"] == first["data"] and again["claims"] == first["claims"]
    sizes = SIZES["smoke"]
    near = closeness(Settings(out=out), sizes.subject, next(iter(sizes.ours.values())), sizes.near, sizes.steps)
    assert {kind: len(one["distance"]) for kind, one in near["kinds"].items()} == dict.fromkeys(near["kinds"], 64)


def test_figures_count_what_was_learned_for_others(out: Path) -> None:
    reproduce("weightflow/averages", Settings(out=out))
    settings = Settings(out=out)
    record = reproduce("weightflow/guidance", settings)
    spent = {folder.name.partition("-smoke")[0]: seconds for folder, seconds in settings.ledger.folders.items()}
    assert spent.keys() == {"weightflow-networks", "weightflow-flow"} and all(spent.values())
    assert record["whole"] and record["seconds"] > sum(each or 0.0 for each in spent.values())


@pytest.mark.parametrize("scale", SIZES)
def test_variations_differ_in_one_thing(scale: str) -> None:
    sizes = SIZES[scale]
    first, *others = variations(sizes)
    changes = {
        "population": {"networks", "matching"},
        "network": {"architecture", "matching"},
        "coupling": {"coupling", "matching"},
        "geometry": {"geometry"},
        "errors of outputs": {"outputs"},
        "prediction": {"predict"},
        "times": {"geometry", "matching"},
        "optimizer": {"matching"},
        "weight decay of networks": set(),
    }
    assert {each.factor for each in others} == set(changes)
    for each in others:
        differences = _changed(_flat(first.recipe.key()), _flat(each.recipe.key()))
        assert (differences or each.subject != first.subject) and differences <= changes[each.factor], each
        matching, base = each.recipe.matching, first.recipe.matching
        same = replace(matching, epochs=base.epochs, batch_size=base.batch_size, compile=base.compile, level=base.level)
        if each.factor == "optimizer":
            same = replace(same, optimizer=base.optimizer, rate=base.rate)
        assert same == base and matching.level == (each.factor == "times")
        trained = replace(each.subject.training, weight_decay=first.subject.training.weight_decay)
        if each.factor == "weight decay of networks":
            assert replace(each.subject, training=trained) == first.subject != each.subject


def test_variations_take_as_many_steps() -> None:
    sizes = SIZES["paper"]
    base, trajectories, *fewer = list(variations(sizes))[: 2 + len(sizes.ablation.populations)]
    thesis = sizes.thesis
    iterations = sum(thesis.training.keeps(k + 1, 468) for k in range(25 * 468)) * thesis.runs
    assert iterations == 46_800  # of 60,000 images in batches of 128
    counts = [sizes.subject.runs, iterations, *sizes.ablation.populations]
    steps = [
        each.recipe.matching.epochs * (count // each.recipe.matching.batch_size)
        for each, count in zip((base, trajectories, *fewer), counts, strict=True)
    ]
    assert steps == pytest.approx([4000] * len(steps), rel=0.02)


def _flat(key: dict[str, Any]) -> dict[str, Any]:
    return {**key["plan"], **{key: value for key, value in key.items() if key != "plan"}}


def _changed(a: dict[str, Any], b: dict[str, Any]) -> set[str]:
    return {key for key in a if a[key] != b[key]}


def test_descent_is_that_of_the_gradient() -> None:
    sizes = SIZES["smoke"]
    split = data.load("digits").train.subset(100, torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = zoo.build(sizes.subject.model)
    begin = {name: torch.stack([x, 2 * x]) for name, x in model.state_dict().items()}
    steering = replace(sizes.steering, batch=100, steps=1, every=1)
    ((step, population),) = descend(sizes.subject, split, begin, 0.3, steering, "cpu")
    assert step == 1
    for k in range(2):
        model.load_state_dict({name: x[k] for name, x in begin.items()})
        loss = F.cross_entropy(model(split.inputs), split.targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for (name, p), gradient in zip(model.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(population[name][k], p.detach() - 0.3 * gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_few_gradients_are_told_as_they_were_measured(out: Path) -> None:
    record = reproduce("weightflow/deep", Settings(out=out))
    rows, steering = record["data"], SIZES["smoke"].finish
    (claim,) = (one for one in record["claims"] if "gradients" in one["text"])
    assert f"with {steering.steps} gradients" in claim["text"] and claim["text"].endswith("took 88")
    guided = max(row["accuracy"] for row in rows["guided"] if row["strength"])
    ends = {one["kind"]: one["trace"][-1] for one in rows["descents"]}
    assert {one["step"] for one in ends.values()} == {steering.steps}
    assert claim["ours"].startswith(
        f"{ends['samples']['accuracy']:.4f} by descent from samples, {guided:.4f} by guidance"
    )
    assert claim["ours"].endswith(f"{ends['untrained']['accuracy']:.4f} by descent from the starts of the flow")


def test_the_best_descent_is_found() -> None:
    rows = [
        {"kind": "untrained", "rate": 0.1, "trace": [{"step": 0, "accuracy": 0.1}, {"step": 8, "accuracy": 0.5}]},
        {"kind": "untrained", "rate": 1.0, "trace": [{"step": 0, "accuracy": 0.2}, {"step": 8, "accuracy": None}]},
        {"kind": "samples", "rate": 2.0, "trace": [{"step": 0, "accuracy": 0.9}]},
    ]
    assert best_of(rows, "untrained", -1)["rate"] == 0.1
    assert best_of(rows, "untrained", 4)["rate"] == 1.0
    assert seen_at(rows[0], 7) == 0.1 and seen_at(rows[0], 8) == 0.5


def test_turned_images() -> None:
    digits = data.load("digits")
    result = turned(digits)
    assert torch.equal(result.test.inputs[0, 0], digits.test.inputs[0, 0].T.flip(0))
    assert torch.equal(result.train.targets, digits.train.targets)


def test_the_symmetry_of_the_small_network() -> None:
    model = TwoConvNet()
    assert sum(p.numel() for p in model.parameters()) == 1898
    sym = coset.symmetry(model, zoo.example_input(model))
    assert [group.size for group in sym.groups] == [8, 16] and len(sym.scalings) == 2
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 10)


def test_verdicts() -> None:
    assert as_good(0.9251, 0.93) and not as_good(0.9249, 0.93)
    assert equal(50, 50) and equal(60, 40) and not equal(61, 39)


def test_widths_are_those_of_the_thesis() -> None:
    widths = SIZES["paper"].widths
    assert [hidden(one) for one in widths.sampled] == [8, 10, 16, 32]
    assert [hidden(one) for one in widths.several] == [10, 8, 16]
    assert asdict(widths.several[0]) == asdict(SIZES["paper"].subject)


def test_a_flow_that_lies_there_has_its_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the run is stopped right before or after the flow is written."""
    settings, sizes = Settings(out=tmp_path), SIZES["smoke"]
    subject, recipe = replace(sizes.subject, runs=64), replace(sizes.ablation.base, outputs=False)

    class StoppedError(Exception):
        pass

    def stop(*args: object) -> None:
        raise StoppedError

    write = Flow.save
    for save in (stop, lambda *args: (write(*args), stop())):
        monkeypatch.setattr(Flow, "save", save)
        with pytest.raises(StoppedError):
            recipe.flow(settings, subject)
    monkeypatch.undo()
    costs = recipe.cost(settings, subject)
    assert costs["minutes"] > 0 and costs["parameters"] > 1000 and 0 < costs["memory"] < 1024
    assert list(costs["errors"]) == ["loss"]
    watched = replace(recipe, matching=replace(recipe.matching, epochs=1, unseen=8))
    assert watched.cost(settings, subject)["errors"]["unseen"] > 0
    assert subject.minutes(settings) > 0
