"""Training: that it learns, repeats, leaves the model alone, and goes on where it was stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import Epoch, data, zoo
from coset.core import state as states
from coset.core.checkpoint import load_state
from coset.core.errors import CosetError, DataError, ModelError
from coset.core.resume import Stage
from coset.data import Split

QUICK = coset.MAP(epochs=4, batch_size=16, rate=0.01)


@pytest.fixture
def split() -> Split:
    """Three noisy clusters."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (100,), generator=generator)
    centres = 3 * torch.randn(3, 4, generator=generator)
    return Split(centres[targets] + torch.randn(100, 4, generator=generator), targets)


def make() -> nn.Module:
    """Dropout and batch norm: random numbers and statistics besides the parameters."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def same(a: coset.Dirac, b: coset.Dirac) -> bool:
    return a.mean.keys() == b.mean.keys() and all(torch.equal(a.mean[n], b.mean[n]) for n in a.mean)


def test_bare_defaults_learn_the_digits() -> None:
    digits = data.load("digits")
    net = zoo.build("mlp:64-64-10")
    (q,) = coset.fit(net, digits.train, coset.MAP())
    assert isinstance(q, coset.Dirac)
    found = coset.evaluate(q, net, digits.test)
    assert found.accuracy > 0.95 and found.nll < 0.2


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("schedule", ["cosine", "constant", "onecycle"])
def test_every_optimizer_and_schedule_learns(split: Split, optimizer: str, schedule: str) -> None:
    net = make()
    method = coset.MAP(optimizer, epochs=30, batch_size=16, schedule=schedule)  # type: ignore[arg-type]
    (q,) = coset.fit(net, split, method)
    assert coset.evaluate(q, net, split).accuracy > 0.85


def test_seeds_decide_and_replicas_differ(split: Split) -> None:
    net = make()
    a, b = coset.fit(net, split, QUICK, replicas=2, seed=3)
    again = coset.fit(net, (split.inputs, split.targets), QUICK, replicas=2, seed=3)
    assert same(a, again[0]) and same(b, again[1]) and not same(a, b)
    assert same(coset.fit(net, split, QUICK, seed=3)[0], a)
    (other,) = coset.fit(net, split, QUICK, seed=4)
    assert not same(other, a) and not same(other, b)


def test_the_start_does_not_depend_on_the_models_parameters(split: Split) -> None:
    torch.manual_seed(0)
    first, second = make(), make()
    assert same(coset.fit(first, split, QUICK)[0], coset.fit(second, split, QUICK)[0])


def test_nothing_outside_is_changed(split: Split) -> None:
    net = make().eval()
    before, modes = states.of(net), [m.training for m in net.modules()]
    inputs = split.inputs.clone()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    coset.fit(net, split, QUICK)
    assert torch.equal(torch.rand(3), expected)
    assert states.allclose(states.of(net), before, 0, 0) and modes == [m.training for m in net.modules()]
    assert all(p.grad is None for p in net.parameters()) and torch.equal(split.inputs, inputs)


def test_norm_statistics_are_part_of_the_solution(split: Split) -> None:
    (q,) = coset.fit(make(), split, QUICK)
    assert q.mean["1.num_batches_tracked"] == 4 * 6
    assert not torch.equal(q.mean["1.running_mean"], torch.zeros(8))
    assert list(q.mean) == list(make().state_dict())


def test_weight_decay_is_the_priors(split: Split) -> None:
    """At the optimum of a convex problem the gradient of the loss is -weight_decay w."""
    net = nn.Linear(4, 3)
    method = coset.MAP("sgd", 0.5, weight_decay=0.05, epochs=300, batch_size=100)
    (q,) = coset.fit(net, split, method)
    weight = {n: x.clone().requires_grad_() for n, x in q.mean.items()}
    loss = nn.functional.cross_entropy(states.call(net, weight, (split.inputs,)), split.targets)
    (gradient,) = torch.autograd.grad(loss, [weight["weight"]])
    assert torch.allclose(gradient, -0.05 * q.mean["weight"], atol=1e-3)


def test_progress(split: Split) -> None:
    seen: list[Epoch] = []
    coset.fit(make(), split, QUICK, replicas=2, progress=coset.on_epoch(seen.append))
    assert [(e.replica, e.epoch, e.epochs) for e in seen] == [(r, k, 4) for r in (0, 1) for k in range(1, 5)]
    assert seen[3].loss < seen[0].loss and all(0 <= e.accuracy <= 1 and e.seconds > 0 for e in seen)


def test_bfloat16(split: Split) -> None:
    net = make()
    method = coset.MAP(epochs=30, batch_size=16, precision="bfloat16")
    (q,) = coset.fit(net, split, method)
    assert all(x.dtype != torch.bfloat16 for x in q.mean.values()) and coset.evaluate(q, net, split).accuracy > 0.8
    assert not same(q, coset.fit(net, split, coset.MAP(epochs=30, batch_size=16))[0])


def test_images_are_augmented() -> None:
    digits = data.load("digits").train.subset(64, torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    method = coset.MAP(epochs=2, batch_size=32, augment=True)
    plain = coset.MAP(epochs=2, batch_size=32)
    a, b, c = (coset.fit(net, digits, m)[0] for m in (method, method, plain))
    assert same(a, b) and not same(a, c)


class Odd(nn.Module):
    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x * self.scale)
        return out


class Own(Odd):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.scale)
        nn.init.constant_(self.linear.bias, 7.0)


def test_parameters_that_nobody_can_draw(split: Split) -> None:
    with pytest.raises(ModelError, match="'scale' cannot be drawn anew: give Odd a method reset_parameters"):
        coset.fit(Odd(torch.randn(4)), split, QUICK)
    coset.fit(Odd(torch.ones(4)), split, QUICK)
    (q,) = coset.fit(Own(torch.randn(4)), split, coset.MAP(epochs=1, rate=1e-6, batch_size=50))
    assert torch.allclose(q.mean["linear.bias"], torch.tensor(7.0), atol=1e-3)  # an outer module decides


def test_a_norm_of_ones_can_be_trained_again(split: Split) -> None:
    images = Split(torch.randn(20, 3, 8, 8), torch.randint(10, (20,)))
    net = zoo.build("resnet20:norm=frn,width=0.25")
    coset.fit(net, images, coset.MAP(epochs=1, batch_size=10))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be adam or sgd, not 'lion'"),
        ({"schedule": "linear"}, "schedule must be"),
        ({"precision": "float16"}, "precision must be"),
        ({"rate": 0.0}, "rate must be positive"),
        ({"rate": float("nan")}, "rate must be positive"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"batch_size": -1}, "batch_size must be positive"),
        ({"weight_decay": -1.0}, "weight_decay must be finite and not negative"),
        ({"momentum": 1.0}, "momentum must be in"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        coset.MAP(**settings)  # type: ignore[arg-type]


def test_bad_input(split: Split) -> None:
    net = make()
    with pytest.raises(CosetError, match="replicas must be positive, not 0"):
        coset.fit(net, split, QUICK, replicas=0)
    with pytest.raises(CosetError, match="seed must not be negative"):
        coset.fit(net, split, QUICK, seed=-1)
    with pytest.raises(DataError, match="do not fit outputs of shape"):
        coset.fit(net, (split.inputs, split.targets.float()), QUICK)
    with pytest.raises(DataError, match="but the model has the classes 0 to 2"):
        coset.fit(net, (split.inputs, split.targets + 1), QUICK)
    with pytest.raises(DataError, match="augment needs images"):
        coset.fit(net, split, coset.MAP(augment=True))
    with pytest.raises(CosetError, match=r"diverged in epoch \d+: the loss is"):
        coset.fit(nn.Linear(4, 3), split, coset.MAP("sgd", rate=1e30, epochs=3))


class TestFolder:
    def test_what_is_in_it(self, split: Split, tmp_path: Path) -> None:
        found = coset.fit(make(), split, QUICK, replicas=2, out=tmp_path / "run")
        files = sorted(str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file())
        assert files == [
            *(f"replica-{r}/{name}" for r in (0, 1) for name in ("metrics.jsonl", "solution.safetensors")),
            "settings.json",
        ]
        lines = [json.loads(x) for x in (tmp_path / "run/replica-1/metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == [1, 2, 3, 4] and set(lines[0]) == {
            "epoch",
            "loss",
            "accuracy",
            "seconds",
        }
        states.check(load_state(tmp_path / "run/replica-0/solution.safetensors"), like=found[0].mean)

    def test_out_does_not_change_the_result(self, split: Split, tmp_path: Path) -> None:
        assert same(coset.fit(make(), split, QUICK, out=tmp_path)[0], coset.fit(make(), split, QUICK)[0])

    def test_finished_replicas_are_not_trained_again(self, split: Split, tmp_path: Path) -> None:
        a = coset.fit(make(), split, QUICK, out=tmp_path)
        seen: list[Epoch] = []
        b = coset.fit(make(), split, QUICK, replicas=2, out=tmp_path, progress=coset.on_epoch(seen.append))
        assert same(a[0], b[0]) and {e.replica for e in seen} == {1}
        assert list(b[0].mean) == list(a[0].mean)
        assert same(b[1], coset.fit(make(), split, QUICK, replicas=2)[1])

    @pytest.mark.parametrize("seconds", [0.0, 60.0])
    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_stopped_and_resumed_is_uninterrupted(
        self, split: Split, tmp_path: Path, optimizer: str, seconds: float
    ) -> None:
        method = coset.MAP(optimizer, epochs=6, batch_size=16)  # type: ignore[arg-type]
        (whole,) = coset.fit(make(), split, method)

        def stop(epoch: Epoch) -> None:
            if epoch.epoch == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            coset.fit(make(), split, method, out=tmp_path, progress=coset.on_epoch(stop), checkpoint_seconds=seconds)
        seen: list[Epoch] = []
        (resumed,) = coset.fit(
            make(), split, method, out=tmp_path, progress=coset.on_epoch(seen.append), checkpoint_seconds=seconds
        )
        assert same(resumed, whole)
        assert seen[0].epoch == (4 if seconds == 0 else 1)
        lines = (tmp_path / "replica-0/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4, 5, 6]

    def test_checkpoints_are_so_many_seconds_apart(self, split: Split, tmp_path: Path) -> None:
        def stop(epoch: Epoch) -> None:
            if epoch.epoch == 3:
                raise KeyboardInterrupt

        def seen_after(folder: Path, seconds: float) -> int:
            with pytest.raises(KeyboardInterrupt):
                coset.fit(make(), split, QUICK, out=folder, progress=coset.on_epoch(stop), checkpoint_seconds=seconds)
            seen: list[Epoch] = []
            coset.fit(
                make(), split, QUICK, out=folder, progress=coset.on_epoch(seen.append), checkpoint_seconds=seconds
            )
            return seen[0].epoch

        assert seen_after(tmp_path / "brief", 60.0) == 1
        assert seen_after(tmp_path / "long", 0.0) == 4

    def test_other_settings_are_refused(self, split: Split, tmp_path: Path) -> None:
        coset.fit(make(), split, QUICK, out=tmp_path)
        other = Split(split.inputs + 1, split.targets)
        net = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))
        cases = {
            "rate": (make(), split, coset.MAP(epochs=4, batch_size=16, rate=0.02), 0),
            "seed": (make(), split, QUICK, 1),
            "data": (make(), other, QUICK, 0),
            "tensors": (net, split, QUICK, 0),
        }
        for key, (model, given, method, seed) in cases.items():
            with pytest.raises(CosetError, match=f"holds a run with another {key}"):
                coset.fit(model, given, method, seed=seed, out=tmp_path)
        (tmp_path / "settings.json").write_text("{")
        with pytest.raises(CosetError, match=r"settings\.json is not JSON"):
            coset.fit(make(), split, QUICK, out=tmp_path)

    def test_a_run_that_cannot_start_leaves_nothing(self, split: Split, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="augment needs images"):
            coset.fit(make(), split, coset.MAP(augment=True), out=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_a_damaged_checkpoint_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoint.pt").write_bytes(b"nonsense")
        with pytest.raises(CosetError, match=r"checkpoint\.pt is damaged"):
            Stage(tmp_path).load_checkpoint(torch.device("cpu"), [])

    def test_out_that_cannot_be_written(self, split: Split, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(CosetError, match="cannot be written"):
            coset.fit(make(), split, QUICK, out=tmp_path / "file")


LONG = """
import sys, torch, coset
from torch import nn

def run(out):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    data = x, (x[:, 0] > 0).long()
    return coset.fit(net, data, coset.MAP(epochs=60, batch_size=20), out=out, checkpoint_seconds=0)[0]

if __name__ == "__main__":
    torch.set_num_threads(1)
    run(sys.argv[1])
"""


def test_killed_at_any_moment_and_resumed(tmp_path: Path) -> None:
    namespace: dict[str, Callable[[Path | None], coset.Dirac]] = {}
    exec(LONG, namespace)
    run = namespace["run"]
    metrics = tmp_path / "replica-0/metrics.jsonl"
    process = subprocess.Popen([sys.executable, "-c", LONG, str(tmp_path)])
    limit = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3) and time.monotonic() < limit:
        time.sleep(0.003)
    assert process.poll() is None, "it ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (tmp_path / "replica-0/checkpoint.pt").exists()
    assert same(run(tmp_path), run(None))
    assert len(metrics.read_text().splitlines()) == 60
