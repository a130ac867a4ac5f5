"""Each figure of tatro2020 at its smallest scale: it runs, its record is complete, and its picture is drawn."""

from pathlib import Path

import pytest
import torch
from smoke import check, figures
from torch import Tensor, nn

from coset import data
from coset_papers import Settings, reproduce
from coset_papers.tatro2020.networks import SIZES, study
from coset_papers.tatro2020.three_conv_net import ThreeConvNet


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, as figures share their networks and curves."""
    return tmp_path_factory.mktemp("tatro2020")


@pytest.mark.parametrize("name", figures("tatro2020", quick=("table1", "fig1", "fig3", "fig4")))
def test_smoke(name: str, out: Path) -> None:
    assert all(claim["holds"] is None for claim in check(name, out)["claims"])


def test_accuracies_are_those_of_the_points_of_the_curve(out: Path) -> None:
    record = reproduce("tatro2020/table1", Settings(out=out))
    measure = SIZES["smoke"].measure
    assert measure.repair <= measure.batch_size  # one batch, whose statistics are the running ones
    (row,) = record["data"]["rows"]
    assert record["claims"][0]["note"].endswith(
        "Left out: TinyTen, ResNet32, GoogLeNet, CIFAR10, CIFAR100, Tiny ImageNet."
    )
    one = study("smoke", "cifar10")
    digits = data.load("digits")

    def some(split: data.Split, n: int) -> data.Split:
        return split.subset(n, torch.Generator().manual_seed(0))

    train, test = (
        some(some(digits.train, SIZES["smoke"].examples or 0), measure.repair),
        some(digits.test, measure.examples),
    )
    for kind in ("unaligned", "pam_aligned", "aligned"):
        first, control, last = (q.mean for q in one.curve(Settings(out=out), kind, 0).points)
        shares = []
        for k in range(measure.points):
            t = k / (measure.points - 1)
            weights = {
                name: (1 - t) ** 2 * first[name] + 2 * t * (1 - t) * control[name] + t**2 * last[name]
                for name in first
                if first[name].is_floating_point()
            }
            shares.append(_share(weights, train.inputs, test))
        assert row["kinds"][kind]["average"] == pytest.approx([sum(shares) / len(shares)], abs=0.002)
        assert row["kinds"][kind]["minimum"] == pytest.approx([min(shares)], abs=0.005)
    assert row["ends"] == pytest.approx([(shares[0] + shares[-1]) / 2], abs=0.002)


def _share(weights: dict[str, Tensor], examples: Tensor, test: data.Split) -> float:
    model = ThreeConvNet()
    model.load_state_dict(weights, strict=False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(examples)
        hits = model.eval()(test.inputs).argmax(1) == test.targets
    return float(hits.double().mean())


def test_the_aligned_curve_ends_at_an_image_of_the_second_network(out: Path) -> None:
    settings, one = Settings(out=out), study("smoke", "cifar10")
    plain, aligned = (one.curve(settings, kind, 0).points[-1].mean for kind in ("unaligned", "aligned"))
    assert not torch.equal(plain["head.weight"], aligned["head.weight"])
    for name in plain:  # the same numbers in another order
        torch.testing.assert_close(plain[name].flatten().sort()[0], aligned[name].flatten().sort()[0])
    inputs = data.load("digits").test.inputs[:50]
    outputs = []
    for state in (plain, aligned):
        model = ThreeConvNet().eval()
        model.load_state_dict(state)
        outputs.append(model(inputs))
    torch.testing.assert_close(*outputs)


def test_signatures_rise_with_alignment(out: Path) -> None:
    result = reproduce("tatro2020/fig1", Settings(out=out))["data"]
    assert len(result["layers"]) == 3
    (before,), (after,) = result["ends"]["before"], result["ends"]["after"]
    assert all(low < high for low, high in zip(before, after, strict=True))


@pytest.mark.slow
def test_the_track_is_the_learned_curve(out: Path) -> None:
    for plane in reproduce("tatro2020/fig7", Settings(out=out))["data"]["planes"]:
        (a, b, control), track = plane["points"], plane["track"]
        middle = [(x + y) / 4 + z / 2 for x, y, z in zip(a, b, control, strict=True)]
        assert track[0] == pytest.approx(a, abs=1e-3)
        assert track[len(track) // 2] == pytest.approx(middle, abs=1e-3)
        assert track[-1] == pytest.approx(b, abs=1e-3)
