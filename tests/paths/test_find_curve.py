"""Curves between trained networks."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import coset
from coset import PAM, Bezier, Chain, Connect, Curve, Dirac, Gaussian, Solution, barrier, find_curve, geodesic, symmetry
from coset.core.errors import CosetError, StateError
from coset.core.progress import Epoch
from coset.core.resume import NO_FOLDER
from coset.data import DataSet, Split, load
from coset.paths.pam import CurveTraining, alternate

SHORT = Connect(epochs=3, batch_size=64)
FEW = PAM(epochs=2, samples=4)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits", flatten=True)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 10))


@pytest.fixture(scope="module")
def ends(digits: DataSet, net: nn.Module) -> list[Solution]:
    return coset.fit(net, digits.train, coset.MAP(epochs=25), replicas=2)


def same(one: Curve, other: Curve) -> bool:
    pairs = zip(one.points, other.points, strict=True)
    return all(torch.equal(p.mean[name], x) for p, q in pairs for name, x in q.mean.items())


def test_curves_have_low_loss_and_aligned_ones_lower(digits: DataSet, net: nn.Module, ends: list[Solution]) -> None:
    """Heights of barriers: the line, the curve, PAM, aligned, in the order of tatro2020 Table 1."""
    settings = Connect(epochs=15)
    line = barrier(geodesic(*ends), net, digits.test, 9).height
    curves = {
        (align, pam): barrier(
            find_curve(*ends, net, digits.train, settings, align=align, pam=pam), net, digits.test, 9
        ).height
        for align in (False, True)
        for pam in (False, PAM(epochs=10))
    }
    plain, pam, aligned, both = (curves[key] for key in curves)
    assert plain < line / 3
    assert pam < plain
    assert aligned < plain / 3
    assert both < plain / 3


def test_a_curve_joins_the_first_network_to_an_image_of_the_second(
    digits: DataSet, net: nn.Module, ends: list[Solution]
) -> None:
    curve = find_curve(*ends, net, digits.train, method=SHORT)
    assert isinstance(curve, Bezier)
    assert all(torch.equal(curve(0).mean[name], x) for name, x in ends[0].mean.items())
    x = digits.test.inputs[:50]
    assert torch.allclose(coset.predict(curve(1), net, x), coset.predict(ends[1], net, x), atol=1e-5)
    assert not torch.equal(curve(1).mean["0.weight"], ends[1].mean["0.weight"])
    unmoved = find_curve(*ends, net, digits.train, align=False, method=SHORT)
    assert torch.equal(unmoved(1).mean["0.weight"], ends[1].mean["0.weight"])
    by_weights = find_curve(*ends, net, digits.train, align="weights", method=SHORT)
    assert not same(by_weights, curve)


@pytest.mark.parametrize("pam", [False, FEW], ids=["curve", "pam"])
def test_the_same_arguments_give_the_same_curve(
    pam: bool | PAM, digits: DataSet, net: nn.Module, ends: list[Solution]
) -> None:
    one, other = (find_curve(*ends, net, digits.train, pam=pam, method=SHORT) for _ in range(2))
    assert same(one, other)
    assert not same(one, find_curve(*ends, net, digits.train, pam=pam, method=SHORT, seed=1))


def test_a_symmetry_that_is_there_is_not_inferred(
    digits: DataSet, net: nn.Module, ends: list[Solution], monkeypatch: pytest.MonkeyPatch
) -> None:
    inferred = find_curve(*ends, net, digits.train, method=SHORT)
    sym = symmetry(net, (digits.train.inputs[:2],))

    def refuse(*_: object) -> None:
        raise AssertionError("the symmetry is inferred")

    monkeypatch.setattr("coset.paths.find_curve.symmetry", refuse)
    assert same(find_curve(*ends, net, digits.train, method=SHORT, sym=sym), inferred)
    with pytest.raises(AssertionError, match="inferred"):
        find_curve(*ends, net, digits.train, method=SHORT)


class StopError(Exception):
    pass


@pytest.mark.parametrize("pam", [False, FEW], ids=["curve", "pam"])
def test_a_curve_that_was_stopped_goes_on(
    pam: bool | PAM, digits: DataSet, net: nn.Module, ends: list[Solution], tmp_path: Path
) -> None:
    """Stopped after every epoch that leaves a checkpoint, and in the end asked for again."""
    whole = find_curve(*ends, net, digits.train, pam=pam, method=SHORT)
    stops = 0

    def stop(epoch: Epoch) -> None:
        if epoch.epoch < epoch.epochs:
            raise StopError

    while True:
        try:
            curve = find_curve(
                *ends,
                net,
                digits.train,
                pam=pam,
                method=SHORT,
                out=tmp_path,
                progress=coset.on_epoch(stop),
                checkpoint_seconds=0,
            )
            break
        except StopError:
            stops += 1
    assert stops == (2 if pam is False else 3)
    assert same(curve, whole)
    again = find_curve(
        *ends,
        net,
        digits.train,
        pam=pam,
        method=SHORT,
        out=tmp_path,
        progress=coset.on_epoch(stop),
        checkpoint_seconds=0,
    )
    assert same(again, whole) and not list(tmp_path.glob("*/checkpoint.pt"))
    lines = (tmp_path / "curve-1" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(text)["epoch"] for text in lines] == [1, 2, 3]
    if pam is not False:
        objectives = json.loads((tmp_path / "pam.json").read_text(encoding="utf-8"))["objectives"]
        assert len(objectives) == 3 and objectives == sorted(objectives, reverse=True)


def test_a_folder_of_another_curve_is_refused(
    digits: DataSet, net: nn.Module, ends: list[Solution], tmp_path: Path
) -> None:
    find_curve(*ends, net, digits.train, method=SHORT, out=tmp_path)
    for other, name in (
        ({"align": False}, "align"),
        ({"pam": FEW}, "pam"),
        ({"seed": 1}, "seed"),
        ({"method": Connect(epochs=4, batch_size=64)}, "epochs"),
    ):
        with pytest.raises(CosetError, match=f"another {name}"):
            find_curve(*ends, net, digits.train, out=tmp_path, **{"method": SHORT, **other})  # type: ignore[arg-type]
    with pytest.raises(CosetError, match="another ends"):
        find_curve(ends[1], ends[0], net, digits.train, method=SHORT, out=tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_the_objective_of_pam_never_rises(seed: int, digits: DataSet, net: nn.Module, ends: list[Solution]) -> None:
    """Also with a rate at which learning the curve does harm, and that is then given up."""
    sym = symmetry(net, (digits.train.inputs[:2],))
    work = CurveTraining(digits.train, seed, torch.device("cpu"), NO_FOLDER, None, 60.0)
    rate = (0.03, 0.3, 30.0)[seed]
    first, second = (Dirac(q.mean) for q in ends)
    settings = Connect(rate=rate, epochs=2, weight_decay=0)
    try:
        alternation = alternate(
            settings, PAM(iterations=2, epochs=2, rate=1.0, samples=4), first, second, net, sym, work
        )
    except CosetError as error:
        assert rate == 30.0 and "diverged" in str(error)
        return
    assert len(alternation.objectives) == 5
    assert list(alternation.objectives) == sorted(alternation.objectives, reverse=True)
    image = sym.act(alternation.element, second)
    assert all(torch.equal(alternation.curve(1).mean[name], x) for name, x in image.mean.items())


def test_a_curve_between_gaussians(digits: DataSet, net: nn.Module) -> None:
    a, b = coset.fit(net, digits.train, coset.VI(epochs=20, prior_variance=0.1), replicas=2)
    settings = Connect(epochs=10, weight_decay=1 / (len(digits.train) * 0.1), bends=2, curve="chain")
    curve = find_curve(a, b, net, digits.train, method=settings)
    assert isinstance(curve, Chain) and len(curve.points) == 4
    middle = curve(0.5)
    assert isinstance(middle, Gaussian) and float(middle.std["0.weight"].min()) > 0
    last = curve(1)
    heights = [barrier(path, net, digits.test, 5, 16).height for path in (geodesic(a, last), curve)]
    assert heights[1] <= heights[0] + 0.01
    with pytest.raises(CosetError, match="PAM permutes networks and not Gaussians"):
        find_curve(a, b, net, digits.train, pam=True)


def test_regression_has_the_noise_of_its_ends() -> None:
    x = torch.linspace(-2, 2, 60).unsqueeze(1)
    split = Split(x, x.sin())
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    a, b = coset.fit(model, split, coset.MAP(epochs=40, batch_size=20), replicas=2)
    curve = find_curve(a, b, model, split, method=Connect(epochs=5, batch_size=20))
    assert a.noise is not None and b.noise is not None
    assert curve(0).noise == a.noise and curve(0.5).noise == pytest.approx((a.noise + b.noise) / 2)


def test_norms_keep_their_statistics_at_the_ends_and_are_repaired_between(digits: DataSet) -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    a, b = coset.fit(model, digits.train, coset.MAP(epochs=20), replicas=2)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    curve = find_curve(a, b, model, digits.train, method=SHORT)
    assert torch.equal(curve(0).mean["1.running_mean"], a.mean["1.running_mean"])
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    repaired = barrier(curve, model, digits.test, 5, repair=digits.train)
    assert repaired.accuracy is not None and min(repaired.accuracy) > 0.75
    stale = barrier(curve, model, digits.test, 5)
    assert stale.loss[2] != repaired.loss[2]


def test_tied_weights_stay_tied(digits: DataSet) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read = nn.Linear(64, 10)
            self.again = nn.Linear(64, 10)
            self.again.weight = self.read.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.read(x) + self.again(x)
            return out

    model = Tied()
    a, b = coset.fit(model, digits.train, coset.MAP(epochs=2), replicas=2)
    from_files = [{name: x.clone() for name, x in q.mean.items()} for q in (a, b)]
    for ends in ((a, b), from_files):
        middle = find_curve(*ends, model, digits.train, align=False, method=SHORT)(0.5).mean
        assert middle["again.weight"] is middle["read.weight"]


def test_control_points_have_the_precision_of_the_model(digits: DataSet, net: nn.Module, ends: list[Solution]) -> None:
    """Of ends in 16 bits: their own digits are kept, and what is learned has 32."""
    small = [{name: x.bfloat16() for name, x in q.mean.items()} for q in ends]
    curve = find_curve(*small, net, digits.train, method=SHORT)
    assert torch.equal(curve(0).mean["0.weight"], small[0]["0.weight"].float())
    control = curve.points[1].mean["0.weight"]
    assert not torch.equal(control, control.bfloat16().float())


class Masked(nn.Module):
    """A factor a unit that is no parameter, and is permuted with the units."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Linear(64, 12), nn.Linear(12, 10)
        self.register_buffer("factor", 0.1 + torch.rand(12, generator=torch.Generator().manual_seed(0)) * 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.write(self.read(x).relu() * self.factor)
        return out


@pytest.mark.parametrize("pam", [False, FEW], ids=["curve", "pam"])
def test_buffers_that_are_no_statistics_go_along(pam: bool | PAM, digits: DataSet) -> None:
    """What is minimised is the loss of the very networks on the curve."""
    model = Masked()
    a, b = coset.fit(model, digits.train, coset.MAP(epochs=10), replicas=2)
    epochs: list[Epoch] = []
    still = Connect(epochs=1, rate=1e-12, batch_size=16, weight_decay=0)
    curve = find_curve(a, b, model, digits.train, pam=pam, method=still, progress=coset.on_epoch(epochs.append))
    assert not torch.equal(curve(1).mean["factor"], curve(0).mean["factor"])
    along = barrier(curve, model, digits.train, 25).loss
    assert epochs[-1].loss == pytest.approx(sum(along) / len(along), rel=0.15)


def test_pam_moves_frozen_parameters_with_their_units(digits: DataSet, net: nn.Module, ends: list[Solution]) -> None:
    shared = [{**q.mean, "0.weight": ends[0].mean["0.weight"], "0.bias": ends[0].mean["0.bias"]} for q in ends]
    frozen = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 10))
    for p in frozen[0].parameters():
        p.requires_grad_(False)
    sym = symmetry(frozen, (digits.train.inputs[:2],))
    element = sym.random(torch.Generator().manual_seed(0))
    image = sym.act(element, shared[1])
    pam = PAM(epochs=10, rate=1.0)
    curve = find_curve(shared[0], image, frozen, digits.train, align=False, pam=pam, method=SHORT)
    x = digits.test.inputs[:50]
    assert torch.allclose(coset.predict(curve(1), net, x), coset.predict(shared[1], net, x), atol=1e-5)


def test_a_small_reach_forbids_every_permutation(digits: DataSet, net: nn.Module, ends: list[Solution]) -> None:
    permuted = []
    for reach in (0.05, 1e9):
        pam = PAM(epochs=10, rate=1.0, permutation_reach=reach)
        curve = find_curve(*ends, net, digits.train, align=False, pam=pam, method=SHORT)
        permuted.append(not torch.equal(curve(1).mean["0.weight"], ends[1].mean["0.weight"]))
    assert permuted == [False, True]


def test_pam_with_batch_norm_and_one_example_too_many(digits: DataSet) -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    some = Split(digits.train.inputs[:513], digits.train.targets[:513])
    a, b = coset.fit(model, some, coset.MAP(epochs=2), replicas=2)
    find_curve(a, b, model, some, pam=PAM(epochs=1, samples=2), method=Connect(epochs=1))


def test_a_folder_knows_the_noise_and_names_of_its_ends(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 40).unsqueeze(1).double()
    split = Split(x, x.sin())
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    a, b = (Dirac(q.mean, 0.1) for q in coset.fit(model, split, coset.MAP(epochs=2), replicas=2))
    quick = Connect(epochs=1, batch_size=20)
    curve = find_curve(a, b, model, split, method=quick, out=tmp_path)
    shuffled = [Dirac(dict(sorted(q.mean.items(), reverse=True)), 0.1) for q in (a, b)]
    assert same(find_curve(*shuffled, model, split, method=quick, out=tmp_path), curve)
    with pytest.raises(CosetError, match="another ends"):
        find_curve(Dirac(a.mean, 5.0), Dirac(b.mean, 5.0), model, split, method=quick, out=tmp_path)
    with pytest.raises(CosetError, match="noise"):
        find_curve(a.mean, b.mean, model, split, method=quick)


def test_a_model_that_returns_more_in_training_is_refused(digits: DataSet) -> None:
    class Two(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            return (out, out) if self.training else out  # type: ignore[return-value]

    model = Two(64, 10)
    with pytest.raises(CosetError, match="returns a tuple in training"):
        find_curve(model.state_dict(), model.state_dict(), model, digits.train, align=False, method=SHORT)


def test_files_of_no_run_are_not_taken_for_its_own(
    digits: DataSet, net: nn.Module, ends: list[Solution], tmp_path: Path
) -> None:
    ends[0].save(tmp_path / "aligned.safetensors")
    with pytest.raises(CosetError, match=r"holds a file aligned\.safetensors that is of no run"):
        find_curve(*ends, net, digits.train, method=SHORT, out=tmp_path)


def test_wrong_arguments_are_refused(digits: DataSet, net: nn.Module, ends: list[Solution]) -> None:
    with pytest.raises(StateError, match="the second solution"):
        find_curve(ends[0], {"0.weight": torch.zeros(2)}, net, digits.train)
    with pytest.raises(CosetError, match="seed"):
        find_curve(*ends, net, digits.train, seed=-1)
    with pytest.raises(CosetError, match="no method 'weight'"):
        find_curve(*ends, net, digits.train, align="weight")  # type: ignore[arg-type]
    with pytest.raises(CosetError, match="not through a Ensemble"):
        find_curve(coset.Ensemble([q.mean for q in ends]), ends[1], net, digits.train)
    with pytest.raises(CosetError, match="rate must be positive"):
        PAM(rate=0)
    with pytest.raises(CosetError, match="permutation_reach must be positive and finite"):
        PAM(permutation_reach=float("inf"))
    with pytest.raises(CosetError, match="two Diracs or two Gaussians"):
        find_curve(ends[0], coset.Gaussian(ends[1].mean, {}), net, digits.train)
    with pytest.raises(CosetError, match=r"is a coset\.Connect, not a MAP"):
        find_curve(*ends, net, digits.train, method=coset.MAP())  # type: ignore[arg-type]
    with pytest.raises(CosetError, match=r"pam is True, False or a coset\.PAM, not 3"):
        find_curve(*ends, net, digits.train, pam=3)  # type: ignore[arg-type]
    with pytest.raises(CosetError, match="no permutations"):
        linear = nn.Linear(64, 10)
        a = Dirac(dict(linear.state_dict()))
        find_curve(a, a, linear, digits.train, align=False, pam=True)
    with pytest.raises(CosetError, match="diverged"):
        find_curve(*ends, net, digits.train, method=Connect(rate=1e9, epochs=3))
