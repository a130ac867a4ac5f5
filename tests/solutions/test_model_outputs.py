"""States at once give what they give one by one."""

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import zoo
from coset.core import state as states
from coset.solutions import model_outputs as module
from coset.solutions.likelihood import Classification
from coset.solutions.model_outputs import model_outputs, states_at_once
from coset.solutions.weighted_samples import weighted_samples

CPU = torch.device("cpu")


def cloud(net: nn.Module, std: float = 0.1, noise: float | None = None) -> coset.Gaussian:
    return coset.Gaussian(states.of(net), {n: torch.full_like(p, std) for n, p in net.named_parameters()}, noise)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        out: Tensor = self.head(h + self.attention(h, h, h)[0])
        return out


class Looks(nn.Module):
    """Its flow depends on values, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out if float(out.sum()) > 0 else -out


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    visits: list[int] = []
    true = module._call_all

    def spy(model: nn.Module, population: states.State, batch: Tensor) -> Tensor:
        visits.append(states.size(population))
        return true(model, population, batch)

    monkeypatch.setattr(module, "_call_all", spy)
    return visits


@pytest.mark.parametrize("name", ["norm", "tied"])
def test_at_once_is_as_one_by_one(name: str, net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = net if name == "norm" else Tied()
    n = 33
    x = torch.randn(n, 3) if name == "norm" else torch.randint(7, (n, 5))
    y = torch.randint(4, (n,)) if name == "norm" else torch.randint(7, (n, 5))
    q = coset.Mixture([cloud(model), coset.Dirac(states.of(model)), cloud(model, 0.3)], [3, 1, 2])
    visits = calls(monkeypatch)
    fast = coset.evaluate(q, model, (x, y), samples=60, batch_size=8)
    assert max(visits) > 30
    monkeypatch.setattr(module, "_vectorizes", lambda *_: False)
    visits.clear()
    slow = coset.evaluate(q, model, (x, y), samples=60, batch_size=8)
    assert not visits
    for one, other in zip(vars(fast).values(), vars(slow).values(), strict=True):
        assert one == other is None or one == pytest.approx(other, rel=1e-5, abs=1e-7)


def test_values_at_once_are_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    net, x = zoo.build("mlp:2-8-1"), torch.randn(20, 2)
    fast = coset.moments(cloud(net, noise=0.5), net, x, samples=30)
    monkeypatch.setattr(module, "_vectorizes", lambda *_: False)
    slow = coset.moments(cloud(net, noise=0.5), net, x, samples=30)
    assert torch.allclose(fast.mean, slow.mean, atol=1e-6) and torch.allclose(fast.std, slow.std, rtol=1e-5)


def test_models_that_look_at_values_run_one_by_one() -> None:
    torch.manual_seed(3)
    model, x = Looks(), torch.randn(9, 3)
    result = coset.predict(cloud(model, 1.0), model, x, samples=16)
    sample_set = weighted_samples(cloud(model, 1.0), 16).states(0, CPU, 16)
    expected = torch.stack([states.call(model, one, (x,)).softmax(-1) for one in sample_set]).mean(0)
    assert torch.allclose(result.exp().float(), expected, atol=1e-6)


def test_slices_cover_everything_once() -> None:
    net, x = zoo.build("mlp:3-4-2"), torch.randn(11, 3)
    population = states.unstack(cloud(net).sample(7, torch.Generator().manual_seed(0)))
    visits = torch.zeros(7, 11, 2)
    for rows, examples, out in model_outputs(net, population, x, Classification(), at_once=3, batch_size=4, device=CPU):
        visits[rows, examples] += out
    expected = torch.stack([states.call(net, one, (x,)) for one in population])
    assert torch.allclose(visits, expected, atol=1e-6)


def test_how_many_run_at_once() -> None:
    assert states_at_once(zoo.build("mlp:3-4-2"), CPU) > 1000
    assert states_at_once(zoo.build("mlp:784-512-512-512-10"), CPU) == 1
    assert 1 < states_at_once(zoo.build("mlp:64-64-64-10"), CPU) < 128
    assert states_at_once(nn.Sequential(nn.Conv2d(1, 2, 3)), CPU) == 1


def test_the_noise_of_a_state_does_not_depend_on_how_many_are_drawn(gaussian: coset.Gaussian) -> None:
    few, many = (coset.Mixture([gaussian, gaussian], [1 - t, t]) for t in (0.2, 0.6))
    first, second = (weighted_samples(q, 45) for q in (few, many))
    assert first.counts == (36, 9) and second.counts == (18, 27)
    result = [list(draws.states(5, CPU, 64)) for draws in (first, second)]
    for k in range(18):
        assert states.allclose(result[0][k], result[1][k], rtol=0, atol=0)
    for k in range(9):
        assert states.allclose(result[0][36 + k], result[1][18 + k], rtol=0, atol=0)
    assert not states.allclose(result[0][0], result[0][36])
    assert float(first.weights.sum()) == pytest.approx(1)
