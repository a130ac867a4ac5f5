"""What all methods share: optimizers, networks side by side, kinds of parameters, a learned noise, being killed."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from inference_problems import clusters, line, mlp
from torch import Tensor, nn

import coset
from coset import Epoch, Method, Solution
from coset.core.resume import Stage
from coset.data import Split
from coset.training.network import Network, batches
from coset.training.optimizers import SGD, Adam

METHODS: list[Method] = [
    coset.MAP("adam", epochs=4, batch_size=20),
    coset.MAP("sgd", epochs=4, batch_size=20),
    coset.VI("adam", epochs=4, batch_size=20, samples=2),
    coset.VI("sgd", epochs=4, batch_size=20),
    coset.SWAG(epochs=4, batch_size=20, burn_in=1, rank=2),
]


def label(method: Method) -> str:
    return f"{type(method).__name__}-{getattr(method, 'optimizer', '')}"


def equal(a: Solution, b: Solution) -> bool:
    x, y = a.pack()[1], b.pack()[1]
    return x.keys() == y.keys() and all(torch.equal(t, y[name]) for name, t in x.items())


def close(a: Solution, b: Solution) -> bool:
    x, y = a.pack()[1], b.pack()[1]
    return x.keys() == y.keys() and all(torch.allclose(t, y[name], rtol=1e-4, atol=1e-5) for name, t in x.items())


class TestOptimizers:
    @pytest.mark.parametrize("name", ["adam", "sgd"])
    def test_the_same_steps_as_torch(self, name: str) -> None:
        """Each row is stepped as if it were alone, for a rate that changes."""
        generator = torch.Generator().manual_seed(0)
        start, target = (torch.randn((3, 5), generator=generator, dtype=torch.float64) for _ in range(2))
        curvature = torch.rand((3, 5), generator=generator, dtype=torch.float64) * 10
        rates = [0.1 / (1 + k) for k in range(20)]
        ours = start.clone()
        own = Adam([ours]) if name == "adam" else SGD([ours], 0.9)
        for rate in rates:
            own.step([curvature * (ours - target)], torch.tensor(rate, dtype=torch.float64))
        for row in range(3):
            w = nn.Parameter(start[row].clone())
            theirs = torch.optim.Adam([w]) if name == "adam" else torch.optim.SGD([w], momentum=0.9)
            for rate in rates:
                theirs.param_groups[0]["lr"] = rate
                w.grad = curvature[row] * (w.detach() - target[row])
                theirs.step()
            assert torch.allclose(ours[row], w.detach(), rtol=1e-11, atol=1e-12)

    def test_float32_rates(self) -> None:
        ours, w = torch.ones(4), nn.Parameter(torch.ones(4))
        own, theirs = Adam([ours]), torch.optim.Adam([w], lr=0.01)
        for k in range(20):
            gradient = torch.tensor([1.0, -0.1, 1e-4, 0.0]) * (1 + k % 3)
            own.step([gradient], torch.tensor(0.01))
            w.grad = gradient
            theirs.step()
        assert torch.allclose(ours, w.detach(), rtol=1e-5)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unsqueeze(1) * torch.eye(4)
        out: Tensor = self.out(self.mix(tokens, tokens, tokens)[0].mean(1))
        return out


class Reading(nn.Module):
    """Reads a number from its parameters, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out * float(self.linear.weight.detach().abs().max())


class Counting(nn.Module):
    """Changes a buffer by which vmap is not stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.linear(x)
        return out


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (mlp(), True),
        (nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)), True),
        (Attention(), True),
        (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), False),
        (nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.1), nn.Linear(6, 3)), False),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()), False),
        (Reading(), False),
        (Counting(), False),
    ],
    ids=["mlp", "layer norm", "attention", "batch norm", "dropout", "conv", "reading", "counting"],
)
def test_which_networks_are_trained_at_once(net: nn.Module, expected: bool) -> None:
    """All can be trained; those side by side take their epochs in turn."""
    assert batches(copy.deepcopy(net).train(), clusters().inputs) is expected
    seen: list[Epoch] = []
    coset.fit(net, clusters(), coset.MAP(epochs=2), replicas=2, progress=coset.on_epoch(seen.append))
    assert [e.replica for e in seen] == ([0, 1, 0, 1] if expected else [0, 0, 1, 1])


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=label)
def test_side_by_side_is_as_one_by_one(method: Method, regression: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    split = clusters()
    if regression:
        split = Split(split.inputs, split.inputs[:, :3].sin())
    together = coset.fit(mlp(), split, method, replicas=3)
    monkeypatch.setattr(sys.modules["coset.inference.fit"], "batches", lambda *_: False)
    alone = coset.fit(mlp(), split, method, replicas=3)
    assert all(close(a, b) for a, b in zip(together, alone, strict=True))
    assert not close(together[0], together[1])
    if regression:
        assert [q.noise for q in together] == pytest.approx([q.noise for q in alone], rel=1e-4)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.outer(torch.tanh(self.inner(x))))
        return out


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("method", METHODS[::2], ids=label)
def test_tied_parameters_are_one(method: Method, replicas: int, tmp_path: Path) -> None:
    found = coset.fit(Tied(), clusters(), method, replicas=replicas, out=tmp_path)
    for q in [*found, *coset.fit(Tied(), clusters(), method, replicas=replicas, out=tmp_path)]:
        assert list(q.mean) == list(Tied().state_dict())
        assert q.mean["inner.weight"] is q.mean["outer.weight"]
        drawn = q.sample(1)
        assert torch.equal(drawn["inner.weight"], drawn["outer.weight"])
    assert Network(Tied()).size == 16 + 4 + 4 + 15


@pytest.mark.parametrize("method", METHODS[::2], ids=label)
def test_frozen_parameters_stay(method: Method) -> None:
    net = mlp()
    for p in net[0].parameters():
        nn.init.constant_(p, 0.25)
        p.requires_grad_(False)
    net[0].reset_parameters = lambda: None  # type: ignore[method-assign, operator]
    for q in coset.fit(net, clusters(), method, replicas=2):
        assert torch.equal(q.mean["0.weight"], torch.full((6, 4), 0.25))
        assert not torch.equal(q.mean["2.bias"], net[2].bias)
        if isinstance(q, coset.Gaussian):
            assert not q.std["0.weight"].any() and not q.std["0.bias"].any() and q.std["2.weight"].all()


@pytest.mark.parametrize("method", [*METHODS[::2], coset.VI(epochs=4, reparameterization="local")], ids=label)
def test_float64(method: Method) -> None:
    split = clusters()
    wide = Split(split.inputs.double(), split.targets)
    for q in coset.fit(mlp().double(), wide, method, replicas=2):
        assert all(x.dtype == torch.float64 for x in q.mean.values())
        # More digits than float32 has.
        assert any(not torch.equal(x, x.float().double()) for x in q.mean.values())


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize("make", [coset.MAP, coset.VI])
def test_precisions(make: Callable[..., Method], precision: str) -> None:
    """16 bits change what is found a little; on a CPU there is no tf32, so that it changes nothing."""
    outside = torch.get_float32_matmul_precision()
    settings = {"epochs": 10, "batch_size": 20, "rate": 0.01}
    found = coset.fit(mlp(), clusters(), make(precision=precision, **settings), replicas=2)
    for q, plain in zip(found, coset.fit(mlp(), clusters(), make(**settings), replicas=2), strict=True):
        assert all(x.dtype == torch.float32 for x in q.mean.values())
        assert coset.wasserstein(q, plain) < 0.1 * coset.wasserstein(found[0], found[1])
        assert equal(q, plain) == (precision == "tf32")
    assert torch.get_float32_matmul_precision() == outside


@pytest.mark.parametrize("noise", [0.1, 1.2])
def test_a_learned_noise_is_the_residuals(noise: float) -> None:
    """Its maximum of likelihood, sqrt(mean (y - f)^2), for targets of any scale; a given one stays."""
    split = line(noise=noise)
    net = nn.Linear(3, 1, bias=False).double()
    (q,) = coset.fit(net, split, coset.MAP(rate=0.1, epochs=250, batch_size=64, weight_decay=0.0))
    left = split.targets - split.inputs @ q.mean["weight"].T
    assert q.noise == pytest.approx(float(left.square().mean().sqrt()), rel=0.02)
    (given,) = coset.fit(net, split, coset.MAP(epochs=1, noise=0.125))
    assert given.noise == pytest.approx(0.125)


class TestStopped:
    @pytest.mark.parametrize("method", METHODS, ids=label)
    def test_side_by_side_and_resumed(self, method: Method, tmp_path: Path) -> None:
        def stop(epoch: Epoch) -> None:
            if epoch.epoch == 2:
                raise KeyboardInterrupt

        whole = coset.fit(mlp(), clusters(), method, replicas=2)
        with pytest.raises(KeyboardInterrupt):
            coset.fit(
                mlp(), clusters(), method, replicas=2, out=tmp_path, progress=coset.on_epoch(stop), checkpoint_seconds=0
            )
        assert (tmp_path / "replica-0/checkpoint.pt").exists() and not (tmp_path / "replica-1/checkpoint.pt").exists()
        resumed = coset.fit(mlp(), clusters(), method, replicas=3, out=tmp_path)
        assert equal(resumed[0], whole[0]) and equal(resumed[1], whole[1])

    @pytest.mark.parametrize("asked", [1, 2, 3])
    def test_while_solutions_are_written(self, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One of two is there, or fewer or more are asked for: those of the checkpoint go on together."""
        method = METHODS[2]
        whole = coset.fit(mlp(), clusters(), method, replicas=2)
        finish = Stage.finish

        def once(self: Stage, write: Callable[[Path], object]) -> None:
            finish(self, write)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Stage, "finish", once)
            coset.fit(mlp(), clusters(), method, replicas=2, out=tmp_path, checkpoint_seconds=0)
        assert [(tmp_path / f"replica-{r}/solution.safetensors").exists() for r in (0, 1)] == [False, True]
        found = coset.fit(mlp(), clusters(), method, replicas=asked, out=tmp_path)
        assert len(found) == asked and all(equal(a, b) for a, b in zip(found, whole, strict=False))

    def test_more_replicas_keep_the_finished_ones(self, tmp_path: Path) -> None:
        method = METHODS[2]
        first = coset.fit(mlp(), clusters(), method, replicas=2, out=tmp_path)
        files = [tmp_path / f"replica-{r}/solution.safetensors" for r in (0, 1)]
        before = [path.read_bytes() for path in files]
        seen: list[Epoch] = []
        more = coset.fit(mlp(), clusters(), method, replicas=4, out=tmp_path, progress=coset.on_epoch(seen.append))
        assert {e.replica for e in seen} == {2, 3} and [path.read_bytes() for path in files] == before
        assert equal(first[0], more[0]) and equal(first[1], more[1]) and not close(more[2], more[3])
        assert close(more[3], coset.fit(mlp(), clusters(), method, replicas=4)[3])


KILLED = """
import os, signal, sys, time
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
import coset
from inference_problems import clusters, mlp

torch.set_num_threads(1)
out = Path(sys.argv[1])
metrics = out / "run/replica-1/metrics.jsonl"
method = coset.VI(epochs=40, batch_size=10)

def lines():
    return metrics.read_text().count("\\n") if metrics.exists() else 0

for _ in range(3):
    goal = lines() + 4
    child = os.fork()
    if not child:
        coset.fit(mlp(), clusters(), method, replicas=2, out=out / "run", checkpoint_seconds=0)
        os._exit(0)
    while lines() < goal:
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it ended before it was killed"
coset.fit(mlp(), clusters(), method, replicas=2, out=out / "run", checkpoint_seconds=0)
coset.fit(mlp(), clusters(), method, replicas=2, out=out / "whole")
"""


def test_killed_three_times_and_resumed(tmp_path: Path) -> None:
    """Two networks side by side end bit for bit where those that ran through do."""
    script = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parents[1] / "inference")]
    subprocess.run(script, check=True, timeout=120)
    for replica in range(2):
        ran, whole = (tmp_path / run / f"replica-{replica}" for run in ("run", "whole"))
        assert equal(coset.load(ran / "solution.safetensors"), coset.load(whole / "solution.safetensors"))
        assert len((ran / "metrics.jsonl").read_text().splitlines()) == 40
        assert not (ran / "checkpoint.pt").exists()
