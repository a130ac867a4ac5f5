"""Orbits of a Gaussian: the maps against the symmetry's own action, the estimators against brute force."""

import functools
import math
from itertools import permutations, product

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import Symmetry, symmetry, zoo
from coset.core import state as states
from coset.core.errors import CosetError
from coset.solutions.orbit_map import OrbitMap
from coset.solutions.overlap_estimators import Bethe, Exact, ImportanceSampling, InfoNCE, log_densities, pairs

CPU = torch.device("cpu")


@functools.cache
def build(name: str) -> tuple[nn.Module, Symmetry]:
    model = zoo.build(name).eval()
    return model, symmetry(model, zoo.example_input(model, 2))


def orbit_of(name: str) -> OrbitMap:
    model, sym = build(name)
    return OrbitMap(sym, {n: p.shape for n, p in model.named_parameters()}, CPU)


def gaussian(p: int, rows: int, spread: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """w, mean and std (rows, p), w drawn from N(mean, std^2) whose means lie `spread` deviations apart."""
    generator = torch.Generator().manual_seed(seed)
    mean, noise = (torch.randn(rows, p, generator=generator, dtype=torch.float64) for _ in range(2))
    std = 0.5 + torch.rand(rows, p, generator=generator, dtype=torch.float64)
    return spread * mean + std * noise, spread * mean, std


def brute_force(orbit: OrbitMap, w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log sum_g q(g w) / q(w) by moving w with every element in turn."""
    names = [name for name in orbit.sets for _ in range(orbit.copies(name))]
    terms = []
    for choice in product(*(permutations(range(orbit.sets[name].size)) for name in names)):
        g: dict[str, list[Tensor]] = {name: [] for name in orbit.sets}
        for name, p in zip(names, choice, strict=True):
            g[name].append(torch.tensor(p))
        index = orbit.index({name: torch.stack(p).unsqueeze(0) for name, p in g.items()})
        terms.append(log_densities(w[:, index[0]], mean, std))
    return torch.stack(terms).logsumexp(0) - log_densities(w, mean, std)


@pytest.mark.parametrize("name", ["mlp:3-4-5-2", "resnet20:width=0.25,norm=frn", "vit", "gpt"])
def test_index_is_the_action_of_the_symmetry(name: str) -> None:
    model, sym = build(name)
    trained = {n: p.detach() for n, p in model.named_parameters()}
    orbit = OrbitMap(sym, {n: p.shape for n, p in trained.items()}, CPU)
    drawn_elements = orbit.uniform((3,), torch.Generator().manual_seed(0))
    index = orbit.index(drawn_elements)
    flat = torch.randn(orbit.size, dtype=torch.float64)
    parts = dict(zip(trained, torch.split(flat, [p.numel() for p in trained.values()]), strict=True))
    state = {n: x.view(trained[n].shape) for n, x in parts.items()}
    for k in range(3):
        g = sym.element({n: p[k] if sym.sets[n].over else p[k, 0] for n, p in drawn_elements.items()})
        image = sym.act(g, state)
        assert torch.equal(torch.cat([image[n].flatten() for n in trained]), flat[index[k]])
    assert orbit.log_order == pytest.approx(sum(g.log_order for g in sym.groups))
    for n in orbit.sets:
        units = orbit.units(n)
        if units is None:
            continue
        alone = orbit.index({n: drawn_elements[n][:1]})[0]
        for c in range(orbit.copies(n)):
            assert torch.equal(alone[units[c]], units[c][drawn_elements[n][0, c]])


def test_the_sets_of_an_mlp_that_do_not_interfere() -> None:
    orbit = orbit_of("mlp:3-4-5-4-2")
    first, second, third = orbit.sets
    assert sorted(orbit.independent()) == sorted([first, third]) and orbit.sets[second].size == 5
    assert orbit_of("mlp:3-2-9-2-2").independent() == [list(orbit_of("mlp:3-2-9-2-2").sets)[1]]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.last(x + self.inner(x.relu()))
        return out


def test_weights_from_a_set_to_itself_belong_to_two_units() -> None:
    model = Residual()
    sym = symmetry(model, (torch.randn(2, 2),))
    orbit = OrbitMap(sym, {n: p.shape for n, p in model.named_parameters()}, CPU)
    (name,) = orbit.sets
    assert orbit.units(name) is None and orbit.independent() == []
    vectors = gaussian(orbit.size, 3, 1.0)
    assert torch.allclose(Exact(orbit)(*vectors), brute_force(orbit, *vectors), atol=1e-9)
    assert torch.isfinite(ImportanceSampling(orbit, 4)(*vectors, torch.Generator().manual_seed(0))).all()
    assert Bethe(orbit)(*vectors).tolist() == pytest.approx([math.log(6)] * 3)


def test_pairs_are_log_densities() -> None:
    orbit = orbit_of("mlp:3-4-2")
    (name,) = orbit.sets
    units = orbit.units(name)
    assert units is not None
    w, mean, std = gaussian(orbit.size, 2, 1.0)
    result = pairs(w, mean, std, units)
    for r, i, j in product(range(2), range(4), range(4)):
        here, there = units[0, i], units[0, j]
        expected = log_densities(w[r, there], mean[r, here], std[r, here])
        stay = log_densities(w[r, here], mean[r, here], std[r, here])
        assert float(result[r, 0, i, j]) == pytest.approx(float(expected - stay), abs=1e-9)


@pytest.mark.parametrize("name", ["mlp:2-4-1", "mlp:1-3-3-1", "mlp:1-2-3-2-1"])
@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
def test_exact_is_the_sum_over_all_elements(name: str, spread: float) -> None:
    orbit = orbit_of(name)
    vectors = gaussian(orbit.size, 3, spread)
    assert torch.allclose(Exact(orbit)(*vectors), brute_force(orbit, *vectors), atol=1e-9)


@pytest.mark.parametrize("name", ["mlp:2-4-1", "mlp:1-3-3-1", "mlp:1-2-2-3-1"])
@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_sampling_estimators_bound_the_exact_sum(name: str, spread: float) -> None:
    """In expectation over w from q: InfoNCE and importance with the identity above, importance without it below."""
    orbit = orbit_of(name)
    _, mean, std = gaussian(orbit.size, 1, spread)
    rows = 3000
    generator = torch.Generator().manual_seed(1)
    mean, std = mean.expand(rows, -1), std.expand(rows, -1)
    w = mean + std * torch.randn(rows, orbit.size, generator=generator, dtype=torch.float64)
    exact = Exact(orbit)(w, mean, std)
    low, high = ImportanceSampling(orbit, 6).sandwich(w, mean, std, generator)
    uniform = InfoNCE(orbit, 6)(w, mean, std, generator)

    def above(x: Tensor) -> float:
        """The mean difference to the exact sum, in standard errors."""
        return float((x - exact).mean() / (x - exact).std() * math.sqrt(rows))

    assert above(low) < 3 and above(high) > -3 and above(uniform) > -3
    assert (high - low).mean() < (uniform - exact).mean()


@pytest.mark.parametrize("name", ["mlp:2-4-1", "mlp:1-3-3-1"])
def test_permutations_near_the_mode_sum_to_the_same(name: str) -> None:
    """Without the identity the mean of the terms is the exact sum, whatever they are drawn by."""
    orbit = orbit_of(name)
    w, mean, std = (x.expand(2000, -1) for x in gaussian(orbit.size, 1, 0.5))
    result = ImportanceSampling(orbit, 2, "mode").sandwich(w, mean, std, torch.Generator().manual_seed(0))[0].exp()
    exact = Exact(orbit)(w[:1], mean[:1], std[:1]).exp()
    assert float(result.mean()) == pytest.approx(float(exact), abs=4 * float(result.std()) / math.sqrt(2000))


def test_more_elements_come_closer_and_saturate_at_log_k() -> None:
    orbit = orbit_of("mlp:2-6-1")
    vectors = gaussian(orbit.size, 200, 5.0)
    exact = Exact(orbit)(*vectors).mean()
    assert orbit.log_order - exact == pytest.approx(math.log(720), abs=0.05)
    generator = torch.Generator().manual_seed(0)
    for k in (2, 20):
        result = orbit.log_order - InfoNCE(orbit, k)(*vectors, generator).mean()
        assert float(result) == pytest.approx(math.log(k), abs=0.05)
        better = orbit.log_order - ImportanceSampling(orbit, k)(*vectors, generator).mean()
        assert float(better) == pytest.approx(math.log(720), abs=0.05)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_bethe_is_within_its_bounds(spread: float) -> None:
    orbit = orbit_of("mlp:2-6-1")
    vectors = gaussian(orbit.size, 50, spread)
    gap = Exact(orbit)(*vectors) - Bethe(orbit)(*vectors)
    assert gap.min() > -0.05 and gap.max() < 3 * math.log(2)


def test_bethe_holds_the_sets_that_interfere() -> None:
    orbit = orbit_of("mlp:1-3-2-1")
    vectors = gaussian(orbit.size, 4, 3.0)
    (other,) = (name for name in orbit.sets if name not in orbit.independent())
    assert orbit.sets[other].size == 2
    alone = Bethe(orbit).of_set(orbit.independent()[0], *vectors)
    assert torch.allclose(Bethe(orbit)(*vectors), alone + math.log(2))


@pytest.mark.parametrize("kind", ["infonce", "importance", "bethe", "exact"])
def test_gradients(kind: str) -> None:
    """Of the exact sum by finite differences; separate modes leave none, whatever the estimator."""
    from coset.solutions.overlap_estimators import estimator

    orbit = orbit_of("mlp:2-4-1")
    estimate = estimator(kind, orbit, 8)  # type: ignore[arg-type]

    def value(noise: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        return estimate(mean + std * noise, mean, std, torch.Generator().manual_seed(0)).sum()

    w, mean, std = gaussian(orbit.size, 2, 30.0)
    noise = (w - mean) / std
    mean.requires_grad_()
    (far,) = torch.autograd.grad(value(noise, mean, std), mean)
    assert far.abs().max() < 1e-6
    w, mean, std = gaussian(orbit.size, 2, 0.5)
    noise = (w - mean) / std
    if kind == "exact":
        assert torch.autograd.gradcheck(value, (noise, mean.requires_grad_(), std.requires_grad_()))
    else:
        (near,) = torch.autograd.grad(value(noise, mean.requires_grad_(), std), mean)
        assert near.abs().max() > 1e-3


def test_exact_refuses_what_it_cannot_do() -> None:
    with pytest.raises(CosetError, match=r"cannot be exact for a group of 10\^\d+ permutations"):
        Exact(orbit_of("mlp:2-30-1"))


class TestOverlap:
    def posterior(self, name: str, spread: float) -> tuple[coset.Gaussian, Symmetry]:
        model, sym = build(name)
        torch.manual_seed(0)
        mean = {n: spread * torch.randn_like(x) for n, x in states.of(model).items()}
        return coset.Gaussian(mean, {n: torch.ones_like(x) for n, x in mean.items()}), sym

    @pytest.mark.parametrize("entropy", ["infonce", "importance", "bethe", "exact"])
    def test_separate_modes(self, entropy: str) -> None:
        q, sym = self.posterior("mlp:2-8-1", 50.0)
        result = coset.overlap(q, sym, entropy, elements=20)  # type: ignore[arg-type]
        every = math.lgamma(9)
        assert result.information == pytest.approx(math.log(20) if entropy == "infonce" else every, abs=0.02)
        assert result.log_order == pytest.approx(every)
        if entropy in ("importance", "exact"):
            assert "do not overlap" in result.sentence and result.index == pytest.approx(0, abs=1e-3)

    def test_identical_modes(self) -> None:
        q, sym = self.posterior("mlp:2-4-1", 0.0)
        result = coset.overlap(q, sym, "exact")
        assert result.information == pytest.approx(0, abs=1e-9) and result.index == pytest.approx(1)
        assert "largely one" in result.sentence

    @pytest.mark.parametrize("name", ["mlp:1-4-1", "mlp:1-3-3-1"])
    def test_bounds_hold_the_exact_information(self, name: str) -> None:
        q, sym = self.posterior(name, 0.7)
        exact = coset.overlap(q, sym, "exact", samples=400).information
        for entropy in ("infonce", "importance", "bethe"):
            result = coset.overlap(q, sym, entropy, samples=400, elements=10)  # type: ignore[arg-type]
            assert result.lower - 3 * result.error <= exact <= result.upper + 3 * result.error
            assert result.of_sets.keys() == set(result.of_sets) and len(result.of_sets) == len(sym.groups)

    def test_refusals(self) -> None:
        q, sym = self.posterior("mlp:2-4-1", 1.0)
        with pytest.raises(CosetError, match="not a Dirac"):
            coset.overlap(coset.Dirac(q.mean), sym)
        partly = coset.Gaussian(q.mean, {n: s for n, s in q.std.items() if n != "layers.0.bias"})
        with pytest.raises(CosetError, match=r"'layers\.0\.bias' is moved by the symmetry but"):
            coset.overlap(partly, sym)
        with pytest.raises(CosetError, match="entropy must be infonce or importance or bethe or exact, not 'vae'"):
            coset.overlap(q, sym, "vae")  # type: ignore[arg-type]
