"""Networks trained at once are those that plain torch trains one by one."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from trainings import QUICK, KillError, clusters, mlp, stop_at

import coset
from coset import zoo
from coset.core import capture, state as states
from coset.core.errors import CosetError, ModelError, StateError
from coset.data import Split
from coset.populations import chunk as collecting_chunk
from coset.populations.chunk import Collect
from coset.populations.collect import collect
from coset.populations.population import Population
from coset.populations.population_outputs import outputs_of_all
from coset.training.network import Randomness


def waves(n: int = 50) -> Split:
    x = torch.linspace(-2, 2, n, dtype=torch.float64)[:, None]
    return Split(x, torch.cat([x.sin(), x.cos()], 1))


def curve() -> nn.Module:
    return zoo.build("mlp:1-5-2").double()


class Odd(nn.Module):
    """A tied weight, a frozen one, a number, a buffer, and inputs with a further dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight
        self.out.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([x, x + self.shift], 1)
        out: Tensor = self.out(torch.tanh(self.b(self.scale * torch.relu(self.a(x))))).mean(1)
        return out


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 5, 2, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 3),
                         nn.Flatten(), nn.GroupNorm(2, 4), nn.Linear(4, 3))  # fmt: skip


def rows(population: Population, run: int) -> Population:
    return population[population.labels["run"] == run]


def plain(
    net: nn.Module, start: dict[str, Tensor], split: Split, settings: Collect, seed: int, chunk: int
) -> list[Any]:
    """The states of one network after each iteration, by torch's own optimizers."""
    net.load_state_dict(start)
    net.train()
    generator = Randomness(seed, [(chunk,)], torch.device("cpu")).generators[0]
    trained = [p for p in net.parameters() if p.requires_grad]
    decay = settings.weight_decay
    rate = settings.rates(1)[0]
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adam":
        optimizer = torch.optim.Adam(trained, rate, weight_decay=decay)
    else:
        optimizer = torch.optim.SGD(trained, rate, settings.momentum, weight_decay=decay)
    steps, result, done = len(split) // settings.batch_size, [], 0
    for _ in range(settings.epochs):
        order = torch.randperm(len(split), generator=generator)
        for at in order[: steps * settings.batch_size].split(settings.batch_size):
            if settings.schedule == "cosine":
                optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * done / steps / settings.epochs)) / 2
            optimizer.zero_grad()
            outputs, targets = net(split.inputs[at]), split.targets[at]
            if targets.is_floating_point():
                # -log N(y; f, s^2) without its constant, summed over outputs
                loss = (outputs - targets).square().sum(1).mean() / (2 * settings.noise**2)
            else:
                loss = F.cross_entropy(outputs, targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
            result.append(states.of(net))
    return result


CASES: dict[str, tuple[Callable[[], nn.Module], Split, Collect]] = {
    "sgd": (mlp, clusters(), Collect(epochs=4, batch_size=16, rate=0.05, weight_decay=0.01)),
    "adam": (mlp, clusters(), Collect("adam", epochs=4, batch_size=16, weight_decay=0.01, schedule="constant")),
    "no decay": (mlp, clusters(), Collect(epochs=2, batch_size=16, rate=0.05, weight_decay=0, momentum=0)),
    "regression": (curve, waves(), Collect(epochs=3, batch_size=10, rate=0.01, noise=0.5)),
    "odd": (lambda: Odd().double(), clusters(), Collect(epochs=3, batch_size=16, rate=0.05)),
    "convolutional": (lambda: convolutional().double(), clusters(), Collect(epochs=2, batch_size=16, rate=0.05)),
    "compiled": (lambda: convolutional().double(), clusters(),
                 Collect(epochs=2, batch_size=16, rate=0.05, compile=True)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_network_is_what_torch_trains_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, split, settings = CASES[case]
    networks = 6 if settings.compile else 5  # each number of networks at once is compiled apart, for seconds
    if not settings.compile:
        monkeypatch.setattr(collecting_chunk, "group_size", lambda *_: 2)
    result = collect(make(), split, networks, Collect(**{**settings.__dict__, "chunk": 3}), seed=7)
    assert result.labels["run"].tolist() == list(range(networks)) and result.starts is not None
    for k in range(networks):
        start = {name: x[k] for name, x in result.starts.items()}
        end = plain(make(), start, split, settings, 7, k // 3)[-1]
        for name, x in end.items():
            assert torch.allclose(result.states[name][k].double(), x.double(), rtol=1e-10, atol=1e-10), name


def test_labels_are_those_of_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting_chunk, "group_size", lambda *_: 2)
    split, net = clusters(), mlp()
    result = collect(net, split, 4, QUICK)
    for k, state in enumerate(states.unstack(result.states)):
        expected = coset.evaluate(state, net, split)
        assert math.isclose(result.labels["loss"][k], expected.nll, rel_tol=1e-6)
        assert math.isclose(result.labels["accuracy"][k], expected.accuracy or 0, rel_tol=1e-6)
    net, split = curve(), waves()
    result = collect(net, split, 1, Collect(epochs=2, batch_size=10, rate=0.01, noise=0.5))
    value = coset.evaluate(coset.Dirac(states.unstack(result.states)[0], 0.5), net, split).nll
    assert "accuracy" not in result.labels and math.isclose(result.labels["loss"][0], value, rel_tol=1e-6)


def test_defaults_learn() -> None:
    result = collect(mlp(torch.float32), clusters(dtype=torch.float32), 20)
    assert result.labels["accuracy"].min() > 0.9 and result.labels["loss"].max() < 0.3
    assert result.about["seed"] == 0 and result.about["runs"] == 20 and result.about["settings"]["epochs"] == 25


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_precisions(precision: Any) -> None:
    split = clusters(dtype=torch.float32)
    result = collect(mlp(torch.float32), split, 5, Collect(precision=precision))
    exact = collect(mlp(torch.float32), split, 5)
    assert result.labels["accuracy"].min() > 0.9 and result.states["layers.0.weight"].dtype == torch.float32
    assert states.allclose(result.states, exact.states, 0, 0.3) and torch.get_float32_matmul_precision() == "highest"


def test_starts_are_drawn_anew_and_others_do_not_matter() -> None:
    net, split = mlp(), clusters()
    three, five = (collect(net, split, n, QUICK, seed=3) for n in (3, 5))
    assert all(torch.equal(x, five.states[name][:3]) for name, x in three.states.items())  # a whole chunk
    four = collect(mlp(), split, 4, QUICK, seed=3)
    assert all(torch.allclose(x, five.states[name][:4], rtol=1e-12, atol=1e-12) for name, x in four.states.items())
    weights = five.starts["layers.0.weight"] if five.starts else torch.empty(0)
    assert len(weights.flatten(1).unique(dim=0)) == 5 and weights.abs().max() <= 0.5  # 1 / sqrt(inputs)
    other = collect(net, split, 3, QUICK, seed=4)
    assert not torch.allclose(other.states["layers.0.weight"], three.states["layers.0.weight"])


def test_nothing_outside_is_changed() -> None:
    net, split = mlp().eval(), clusters()
    before = states.of(net)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    collect(net, split, 2, QUICK)
    assert torch.equal(torch.rand(3), expected) and not net.training
    assert states.allclose(states.of(net), before, 0, 0) and all(p.grad is None for p in net.parameters())


def test_starts_of_ones_own() -> None:
    net, split = mlp(), clusters()

    def draw(n: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: 0.1 * torch.randn(n, *x.shape, generator=generator) for name, x in states.of(net).items()}

    result = collect(net, split, 5, QUICK, draw=draw)
    again = collect(net, split, 5, QUICK, draw=draw)
    assert result.starts is not None and result.starts["layers.0.weight"].dtype == torch.float64
    assert states.allclose(result.states, again.states, 0, 0)
    assert 0.05 < result.starts["layers.0.bias"].std() < 0.2
    one = plain(mlp(), {name: x[4] for name, x in result.starts.items()}, split, QUICK, 0, 1)[-1]
    assert states.allclose({name: x[4] for name, x in result.states.items()}, one, 1e-9, 1e-9)


def test_kept_iterations() -> None:
    net, split = mlp(), clusters()  # 4 iterations an epoch
    settings = Collect(epochs=5, batch_size=16, rate=0.05, chunk=2, every=3, skip=2)
    result = collect(net, split, 3, settings, seed=1)
    assert len(result) == 3 * 4 and result.labels["run"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert result.labels["iteration"].tolist() == [11, 14, 17, 20] * 3 and result.starts is not None
    for run in range(3):
        part = rows(result, run)
        assert part.starts is not None
        start = {name: x[0] for name, x in part.starts.items()}
        assert all(torch.equal(x, x[:1].expand_as(x)) for x in part.starts.values())
        path = plain(mlp(), start, split, settings, 1, run // 2)
        for k, state in enumerate(states.unstack(part.states)):
            assert states.allclose(state, path[int(part.labels["iteration"][k]) - 1], 1e-9, 1e-9)
            assert math.isclose(part.labels["loss"][k], coset.evaluate(state, net, split).nll, rel_tol=1e-6)
    last = collect(net, split, 3, Collect(epochs=5, batch_size=16, rate=0.05, chunk=2), seed=1)
    ends = result[result.labels["iteration"] == 20]
    assert all(torch.equal(x, last.states[name]) for name, x in ends.states.items())


def test_the_first_layers_are_one_product() -> None:
    """Forward and for the gradient; a product for each network, the inputs repeated, would count as bmm."""
    n, m, net = 7, 16, zoo.build("mlp:30-5-3")
    population = {name: torch.randn(n, *x.shape, requires_grad=True) for name, x in states.of(net).items()}
    inputs = torch.randn(m, 30)
    with FlopCounterMode(display=False) as count:
        outputs = outputs_of_all(net, population, inputs)
        torch.autograd.grad(outputs.square().sum(), list(population.values()))
    flops = count.get_flop_counts()["Global"]
    assert flops == {torch.ops.aten.mm: 2 * (2 * n * 5 * 30 * m), torch.ops.aten.bmm: 3 * (2 * n * 3 * 5 * m)}
    one_by_one = [states.call(net, state, (inputs,)) for state in states.unstack(population)]
    assert torch.allclose(outputs, torch.stack(one_by_one), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("values", [False, True])
def test_captured_steps_are_the_same(
    values: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, split = (curve(), waves()) if values else (mlp(), clusters())
    settings = Collect("adam", epochs=3, batch_size=16, chunk=3, every=2)
    with caplog.at_level(logging.INFO, logger=capture.__name__):
        fast = collect(net, split, 5, settings, device="cuda")
    assert "cannot be captured" not in caplog.text and fast.states["layers.0.weight"].is_cuda
    with pytest.raises(KillError):
        collect(
            net,
            split,
            5,
            settings,
            device="cuda",
            out=tmp_path,
            progress=coset.on_epoch(stop_at(1, 2)),
            checkpoint_seconds=0,
        )
    resumed = collect(net, split, 5, settings, device="cuda", out=tmp_path)
    assert states.allclose(resumed.states, fast.states, 1e-4, 1e-5)
    monkeypatch.setattr(collecting_chunk, "captured", lambda step, *rest: step)
    assert states.allclose(collect(net, split, 5, settings, device="cuda").states, fast.states, 1e-3, 1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_compiled_convolutions_are_the_same(caplog: pytest.LogCaptureFixture) -> None:
    net, split, settings = convolutional().double(), clusters(), Collect(epochs=2, batch_size=16, rate=0.05)
    with caplog.at_level(logging.INFO, logger=capture.__name__):
        fast, slow = (collect(net, split, 5, replace(settings, compile=c), device="cuda") for c in (True, False))
    assert "cannot be captured" not in caplog.text
    assert states.allclose(fast.states, slow.states, 1e-9, 1e-9)


def test_diverged_networks_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    net, split = mlp(), clusters()

    def draw(n: int, generator: torch.Generator) -> dict[str, Tensor]:
        starts = {name: torch.randn(n, *x.shape, generator=generator) for name, x in states.of(net).items()}
        starts["layers.0.weight"][1] = 1e30
        return starts

    settings = Collect(epochs=2, batch_size=16, rate=0.05, chunk=4, every=4)
    with caplog.at_level(logging.WARNING, logger="coset.populations.collect"):
        result = collect(net, split, 4, settings, draw=draw)
    assert result.labels["run"].tolist() == [0, 0, 2, 2, 3, 3] and "1 of 4 networks diverged" in caplog.text
    assert result.starts is not None
    for run in (0, 2, 3):  # a network that is infinite does no harm to the others
        part = rows(result, run)
        start = {name: x[0] for name, x in (part.starts or {}).items()}
        assert states.allclose(
            states.unstack(part.states)[-1], plain(mlp(), start, split, settings, 0, 0)[-1], 1e-9, 1e-9
        )
    with pytest.raises(CosetError, match="All of 4 networks diverged"):
        collect(net, split, 4, Collect(epochs=2, batch_size=16, rate=1e200, chunk=2))


def layers(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *inner, nn.Linear(6, 3)).double()


class Looks(nn.Module):
    """Reads a value, which vmap does not allow."""

    def forward(self, x: Tensor) -> Tensor:
        return x if bool((x > 0).any()) else -x


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (layers(nn.Dropout(0.1)), "Sequential cannot be trained at once: it draws random numbers, as dropout does"),
        (
            layers(nn.BatchNorm1d(6)),
            r"changes '1.running_mean' in training, as batch norm does; train it with coset.fit",
        ),
        (layers(Looks()), "Sequential cannot be trained at once: .*vmap"),
        (layers().requires_grad_(False), "no parameters to train"),
    ],
)
def test_models_that_cannot_be_trained_at_once(net: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises((CosetError, ModelError), match=message):
        collect(net, clusters(), 2, QUICK, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be adam or sgd"),
        ({"rate": -1.0}, "rate must be positive"),
        ({"chunk": 0}, "chunk must be positive"),
        ({"momentum": 1.0}, "momentum"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"every": -1}, "every must not be negative"),
        ({"every": 1, "epochs": 3, "skip": 3}, "skip be from 0 to epochs - 1"),
        ({"skip": 1}, "give every, too"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        Collect(**settings)


def test_other_mistakes() -> None:
    net, split = mlp(), clusters()
    with pytest.raises(CosetError, match="runs must be positive"):
        collect(net, split, 0)
    with pytest.raises(CosetError, match="keeps none of 8 iterations"):
        collect(net, split, 1, Collect(epochs=3, batch_size=16, every=9, skip=1))
    with pytest.raises(StateError, match=r"'layers.0.weight' in the drawn starts has shape \(6, 4\) where \(2, 6, 4\)"):
        collect(net, split, 2, QUICK, draw=lambda n, generator: states.of(mlp()))
    with pytest.raises(StateError, match="Missing"):
        collect(net, split, 2, QUICK, draw=lambda n, generator: {})
