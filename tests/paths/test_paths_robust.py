"""The barrier under attack, against attacking and evaluating each point by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coset
from coset.alignment.repair import recompute_norms
from coset.core import state as states
from coset.core.errors import CosetError, DataError
from coset.data import Split

ATTACK = coset.PGD(0.1, 4, 0.04)


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


@pytest.fixture
def split() -> Split:
    generator = torch.Generator().manual_seed(1)
    return Split(torch.rand(30, 1, 4, 4, generator=generator), torch.randint(3, (30,), generator=generator))


@pytest.fixture
def ends(net: nn.Sequential) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)

    def shifted(x: Tensor) -> Tensor:
        return torch.rand(x.shape, generator=generator) + 0.1 if x.is_floating_point() else x

    return [{name: shifted(x) for name, x in states.of(net).items()} for _ in range(2)]


@pytest.mark.parametrize("repaired", [True, False])
def test_as_by_hand(repaired: bool, net: nn.Sequential, split: Split, ends: list[dict[str, Tensor]]) -> None:
    """Norms are repaired first, and that very state is attacked and measured."""
    net.train()
    path, events = coset.geodesic(*ends), list[tuple[int, int]]()
    result = coset.barrier(
        path,
        net,
        split,
        4,
        attack=ATTACK,
        repair=split if repaired else None,
        progress=lambda event: events.append((event.done, event.total)),
    )
    start = torch.empty(1, *split.inputs.shape)[0]
    # Without a generator the seed is 0, from which comes that of the random starts.
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(0)))
    start.uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
    for k, t in enumerate(result.t):
        state = recompute_norms(net, path(t).mean, split) if repaired else path(t).mean
        plain = nn.Sequential(*net)
        plain.load_state_dict(state)
        plain.eval()
        x = (split.inputs + 0.1 * start).clamp(0, 1)
        for _ in range(4):
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(plain(x), split.targets), x)
            x = (x.detach() + 0.04 * gradient.sign()).clamp(split.inputs - 0.1, split.inputs + 0.1).clamp(0, 1)
        with torch.no_grad():
            outputs = plain(x)
            clean = F.cross_entropy(plain(split.inputs), split.targets)
        assert result.loss[k] == pytest.approx(F.cross_entropy(outputs, split.targets).item(), rel=1e-4)
        assert result.accuracy is not None
        assert result.accuracy[k] == pytest.approx((outputs.argmax(1) == split.targets).float().mean().item())
        assert result.loss[k] > clean.item()
    assert result.loss_error == (0.0,) * 4 and len(events) == 4


def test_it_is_what_evaluate_says(net: nn.Sequential, split: Split, ends: list[dict[str, Tensor]]) -> None:
    path = coset.geodesic(*ends)

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    result = coset.barrier(path, net, split, 3, batch_size=7, attack=ATTACK, generator=generator())
    again = coset.barrier(path, net, split, 3, batch_size=7, attack=ATTACK, generator=generator())
    assert result == again
    assert result != coset.barrier(path, net, split, 3, batch_size=7, attack=ATTACK)
    for k, t in enumerate(result.t):
        seed = int(torch.randint(2**62, (), generator=generator()))
        same = torch.Generator().manual_seed(seed)
        scores = coset.evaluate(path(t), net, split, batch_size=7, attack=ATTACK, generator=same)
        assert (result.loss[k], result.accuracy[k]) == (scores.nll, scores.accuracy)  # type: ignore[index]


def test_the_same_starts_at_every_point(net: nn.Sequential, split: Split, ends: list[dict[str, Tensor]]) -> None:
    q = coset.Dirac(ends[0])
    result = coset.barrier(lambda t: q, net, split, 4, attack=coset.PGD(0.1, 1, 0.01))
    assert len({*result.loss}) == 1 and result.height == pytest.approx(0, abs=1e-12)


def test_what_is_refused(net: nn.Sequential, split: Split, ends: list[dict[str, Tensor]]) -> None:
    with pytest.raises(CosetError, match="one network, but this solution is a Mixture"):
        coset.barrier(coset.mixture(*ends), net, split, 3, attack=ATTACK)
    values = Split(split.inputs, torch.rand(30, 3))
    with pytest.raises(DataError, match="targets are values"):
        coset.barrier(coset.geodesic(*(coset.Dirac(e, noise=0.1) for e in ends)), net, values, 3, attack=ATTACK)
