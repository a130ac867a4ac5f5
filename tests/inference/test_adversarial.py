"""Adversarial training: each step against one by hand, what it buys, and being stopped."""

import sys
from pathlib import Path

import pytest
import torch
from inference_problems import problem
from torch import Tensor, nn
from torch.nn import functional as F

import coset
from coset import Epoch, data, zoo
from coset.cli import methods
from coset.core.errors import CosetError, DataError
from coset.data import Split
from coset.training.loop import MinibatchRun

ATTACK = coset.PGD(0.1, 3, 0.05)


def squares(n: int = 60) -> Split:
    """Two features in [0, 1], and three classes."""
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0))
    return Split(x, (3 * x.mean(1)).long().clamp(max=2))


def norms() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def by_hand(net: nn.Module, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """The attack on a network in training mode, with the statistics of the batch."""
    start = x
    x = (x + 0.1 * noise).clamp(0, 1)
    for _ in range(3):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(net(x), y), x)
        x = (start + (x.detach() + 0.05 * gradient.sign() - start).clamp(-0.1, 0.1)).clamp(0, 1)
    return x


def test_a_step_is_one_at_attacked_inputs() -> None:
    """Objective, loss and outputs are those of MAP there, and batch norm counts the batch once."""
    net, split = norms().train(), squares()
    given = problem(net, split)
    run = coset.Adversarial(attack=ATTACK, batch_size=60, weight_decay=0.3).start(given)
    assert isinstance(run, MinibatchRun)
    state = given.randomness.generators[0].get_state()
    objective, loss, outputs = run.objective(split.inputs[None], split.targets[None])
    other = norms().train()
    generator = torch.Generator().manual_seed(0)
    generator.set_state(state)
    noise = torch.empty_like(split.inputs[None])[0].uniform_(-1, 1, generator=generator)
    moved = by_hand(other, split.inputs, split.targets, noise)
    other[1].reset_running_stats()  # type: ignore[operator]
    expected = F.cross_entropy(other(moved), split.targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    squared = sum(float(p.detach().square().sum()) for p in net.parameters())
    assert objective.item() == pytest.approx(expected.item() + 0.15 * squared, rel=1e-5)
    assert torch.allclose(outputs[0], other(moved), atol=1e-5)
    assert isinstance(net[1], nn.BatchNorm1d) and isinstance(other[1], nn.BatchNorm1d)
    assert net[1].num_batches_tracked == 1
    other[1].reset_running_stats()
    other(moved)
    for name, x in net[1].named_buffers():
        assert torch.allclose(x.float(), other[1].get_buffer(name).float(), rtol=1e-5), name
    assert loss.item() > F.cross_entropy(net(split.inputs), split.targets).item()


def test_without_a_ball_it_is_map() -> None:
    still = coset.PGD(epsilon=0.0, steps=1, random_start=False)
    (hard,) = coset.fit(norms(), squares(), coset.Adversarial(epochs=3, attack=still))
    (plain,) = coset.fit(norms(), squares(), coset.MAP(epochs=3))
    assert all(torch.equal(x, plain.mean[name]) for name, x in hard.mean.items())


def test_side_by_side_is_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net, method = zoo.build("mlp:2-6-3"), coset.Adversarial(epochs=3, batch_size=20, attack=ATTACK)
    together = coset.fit(net, squares(), method, replicas=3)
    monkeypatch.setattr(sys.modules["coset.inference.fit"], "batches", lambda *_: False)
    alone = coset.fit(net, squares(), method, replicas=3)
    for a, b in zip(together, alone, strict=True):
        assert all(torch.allclose(x, b.mean[name], rtol=1e-4, atol=1e-5) for name, x in a.mean.items())


@pytest.mark.parametrize("net", [zoo.build("mlp:2-6-3"), norms()], ids=["together", "norms"])
def test_stopped_and_resumed(net: nn.Module, tmp_path: Path) -> None:
    attack = coset.PGD(0.1, 2, 0.05, mean=(0.0,), std=(1.0,))
    method = coset.Adversarial(epochs=4, batch_size=20, attack=attack)

    def stop(epoch: Epoch) -> None:
        if epoch.epoch == 2:
            raise KeyboardInterrupt

    whole = coset.fit(net, squares(), method, replicas=2)
    with pytest.raises(KeyboardInterrupt):
        coset.fit(net, squares(), method, replicas=2, out=tmp_path, progress=coset.on_epoch(stop), checkpoint_seconds=0)
    resumed = coset.fit(net, squares(), method, replicas=2, out=tmp_path)
    for a, b in zip(whole, resumed, strict=True):
        assert isinstance(b, coset.Dirac) and all(torch.equal(x, b.mean[name]) for name, x in a.mean.items())
    with pytest.raises(CosetError, match="another attack"):
        coset.fit(net, squares(), coset.Adversarial(epochs=4, batch_size=20), out=tmp_path)


def test_it_withstands_attacks() -> None:
    """On digits: under attack far more accurate than ordinary training, and what training reports is that."""
    digits = data.load("digits", flatten=True)
    attack = coset.PGD(epsilon=0.2, steps=5, step=0.08).in_units_of(digits)
    net = zoo.build("mlp:64-48-10")
    seen: list[Epoch] = []
    (plain,) = coset.fit(net, digits.train, coset.MAP(rate=5e-3, epochs=15))
    method = coset.Adversarial(rate=5e-3, epochs=15, attack=attack)
    (hard,) = coset.fit(net, digits.train, method, progress=coset.on_epoch(seen.append))
    clean, robust = ([coset.evaluate(q, net, digits.test, attack=a) for q in (plain, hard)] for a in (None, attack))
    assert clean[0].accuracy > 0.9 and clean[1].accuracy > 0.9  # type: ignore[operator]
    assert robust[1].accuracy > robust[0].accuracy + 0.2  # type: ignore[operator]
    trained = coset.evaluate(hard, net, digits.train, attack=attack)
    assert seen[-1].loss == pytest.approx(trained.nll, rel=0.1)
    assert seen[-1].accuracy == pytest.approx(trained.accuracy, abs=0.05)


def test_what_is_refused() -> None:
    net, split = zoo.build("mlp:2-6-3"), squares()
    with pytest.raises(DataError, match="targets are values"):
        coset.fit(zoo.build("mlp:2-6-2"), Split(split.inputs, split.inputs), coset.Adversarial(epochs=1))
    with pytest.raises(DataError, match="raw units"):
        coset.fit(net, Split(split.inputs * 4 - 2, split.targets), coset.Adversarial(epochs=1))
    (q,) = coset.fit(net, split, coset.VI(epochs=1))
    with pytest.raises(CosetError, match="one network, but this solution is a Gaussian: give a Dirac"):
        coset.evaluate(q, net, split, attack=ATTACK)


def test_by_the_command_line() -> None:
    words = ["epochs=2", "attack.epsilon=0.1", "attack.low=none", "attack.mean=0.5,0.25", "attack.std=[1, 2]"]
    attack = coset.PGD(epsilon=0.1, low=None, mean=(0.5, 0.25), std=(1, 2))
    assert methods.build("adversarial", words) == coset.Adversarial(epochs=2, attack=attack)
    assert methods.build("adversarial", ["attack.mean=[]"]) == coset.Adversarial()
    with pytest.raises(CosetError, match=r"attack\.mean must be numbers with commas"):
        methods.build("adversarial", ["attack.mean=a,b"])
