"""Dirac, Gaussian and Mixture against scipy, NumPy and their own samples."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import norm
from torch import Tensor, nn

import coset
from coset import Element, Group, Solution, Symmetry
from coset.core import state as states
from coset.core.checkpoint import save_state
from coset.core.errors import CosetError, StateError
from coset.solutions.as_solution import as_solution
from coset.symmetries.group import ScaledAxis, Scaling

laws = settings(max_examples=25, deadline=None)


def flat(state: dict[str, Tensor]) -> np.ndarray:
    return np.concatenate([state[n].double().flatten().numpy() for n in sorted(state) if state[n].is_floating_point()])


def near(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], rtol=1e-5, atol=1e-7) for n in a)


@st.composite
def gaussians(draw: st.DrawFn, count: int) -> list[coset.Gaussian]:
    """Gaussians of one layout; some coordinates fixed, all of one tensor, and an integer tensor."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shapes = draw(st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=1, max_size=3))
    zero = draw(st.booleans())
    result = []
    for _ in range(count):
        mean = {f"w{i}": torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)}
        std = {name: torch.rand(x.shape, generator=generator) + 0.05 for name, x in mean.items()}
        if zero:
            std = {name: torch.where(mean[name] > 0.5, 0.0, s) for name, s in std.items()}
        mean |= {"statistic": torch.ones(2), "steps": torch.tensor(7)}
        result.append(coset.Gaussian(mean, std))
    return result


class TestDirac:
    def test_is_a_point(self, net: nn.Module) -> None:
        state = states.of(net)
        q = coset.Dirac(state)
        assert not q.is_random and near(q.mean, state) and q.state is q.mean
        population = q.sample(3)
        assert states.size(population) == 3 and all(near(one, state) for one in states.unstack(population))
        assert q.log_prob(state) == 0 and q.entropy() == 0 and q.log_prob(state).dtype == torch.float64
        assert q.log_prob(states.scale(state, 1 + 1e-6)) == -math.inf

    def test_integers_are_no_coordinates(self, net: nn.Module) -> None:
        state = states.of(net)
        assert coset.Dirac(state).log_prob({**state, "1.num_batches_tracked": torch.tensor(9)}) == 0

    def test_samples_share_no_memory_with_it(self) -> None:
        q = coset.Dirac({"w": torch.zeros(2)})
        q.sample(2)["w"].fill_(1)
        assert (q.mean["w"] == 0).all()

    def test_nan_is_refused_by_name(self) -> None:
        with pytest.raises(StateError, match="'w' in the state has 1 NaN"):
            coset.Dirac({"w": torch.tensor([1.0, math.nan])})

    def test_gradients_are_cut(self, net: nn.Module) -> None:
        q = coset.Dirac(net.state_dict(keep_vars=True))
        assert not any(x.requires_grad for x in q.mean.values())


class TestGaussian:
    @laws
    @given(gaussians(1), st.integers(0, 1000))
    def test_log_prob_and_entropy_are_scipys(self, qs: list[coset.Gaussian], seed: int) -> None:
        q = qs[0]
        state = states.unstack(q.sample(1, torch.Generator().manual_seed(seed)))[0]
        x, m, s = flat(state), flat(q.mean), flat(q.std)
        random = s > 0
        assert (x[~random] == m[~random]).all()
        assert q.log_prob(state).item() == pytest.approx(norm.logpdf(x[random], m[random], s[random]).sum(), abs=1e-9)
        assert q.entropy().item() == pytest.approx(norm.entropy(m[random], s[random]).sum(), abs=1e-9)

    def test_samples_have_its_moments(self, gaussian: coset.Gaussian, generator: torch.Generator) -> None:
        n = 20_000
        population = gaussian.sample(n, generator)
        for name, s in gaussian.std.items():
            x = population[name].double()
            assert ((x.mean(0) - gaussian.mean[name]).abs() <= 5 * s / math.sqrt(n)).all()
            assert ((x.std(0) - s).abs() <= 5 * s / math.sqrt(2 * n)).all()
        assert (population["1.num_batches_tracked"] == 0).all()

    def test_what_std_does_not_name_is_fixed(self, gaussian: coset.Gaussian) -> None:
        assert (gaussian.std["1.running_var"] == 0).all() and "1.num_batches_tracked" not in gaussian.std
        image = {**gaussian.mean, "1.running_var": gaussian.mean["1.running_var"] + 1e-6}
        assert gaussian.log_prob(image) == -math.inf
        assert gaussian.log_prob(gaussian.mean) > 0

    def test_same_generator_same_samples(self, gaussian: coset.Gaussian) -> None:
        a, b = (gaussian.sample(2, torch.Generator().manual_seed(s)) for s in (1, 1))
        assert near(a, b) and not near(a, gaussian.sample(2, torch.Generator().manual_seed(2)))

    def test_tied_names_are_drawn_and_counted_once(self) -> None:
        w = torch.zeros(3)
        q = coset.Gaussian({"a": w, "b": w}, {"a": torch.ones(3)})
        population = q.sample(2)
        assert torch.equal(population["a"], population["b"])
        assert q.log_prob({"a": w, "b": w}).item() == pytest.approx(3 * norm.logpdf(0))
        assert q.entropy().item() == pytest.approx(3 * norm.entropy())
        with pytest.raises(StateError, match="tied"):
            coset.Gaussian({"a": w, "b": w}, {"a": torch.ones(3), "b": torch.zeros(3)})

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_samples_keep_the_dtype(self, dtype: torch.dtype) -> None:
        q = coset.Gaussian({"w": torch.ones(4, dtype=dtype)}, {"w": torch.full((4,), 0.1)})
        assert q.sample(2)["w"].dtype == dtype and q.sample(2)["w"].shape == (2, 4)

    @pytest.mark.parametrize(
        ("std", "message"),
        [
            ({"w": torch.tensor([0.1, -0.2])}, "'w' in the standard deviations has 1 negative of 2"),
            ({"w": torch.tensor([0.1, math.nan])}, "'w' in the standard deviations has 1 NaN"),
            ({"w": torch.ones(2).to(torch.float8_e4m3fn)}, "'w' has numbers of 8 bits"),
            ({"w": torch.ones(1)}, r"'w' in the standard deviations has shape \(1,\) where \(2,\)"),
            ({"v": torch.ones(2)}, "Unknown 'v' in the standard deviations"),
            ({"n": torch.ones(())}, "Unknown 'n' in the standard deviations"),
        ],
    )
    def test_bad_std_is_refused_by_name(self, std: dict[str, Tensor], message: str) -> None:
        with pytest.raises(StateError, match=message):
            coset.Gaussian({"w": torch.zeros(2), "n": torch.tensor(1)}, std)

    def test_other_layouts_are_refused(self, gaussian: coset.Gaussian) -> None:
        with pytest.raises(StateError, match="Missing"):
            gaussian.log_prob({"0.weight": torch.zeros(5, 3)})
        with pytest.raises(StateError, match="Cannot draw 0"):
            gaussian.sample(0)


def pushed(q: Solution, sym: Symmetry, g: Element) -> tuple[Solution, dict[str, Tensor], dict[str, Tensor]]:
    """The push-forward, and samples of it and of `q` moved one by one, of the same noise moved along."""
    population = q.sample(4000, torch.Generator().manual_seed(3))
    return sym.act(g, q), sym.act(g, q).sample(4000, torch.Generator().manual_seed(4)), sym.act(g, population)


def odd() -> Symmetry:
    """Three units with a free factor on tensors with and without an offset, and a sign."""
    base = coset.symmetry(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), (torch.randn(4, 2),))
    units = base.groups[0].name
    assert isinstance(base.groups[0], Group)
    members = (ScaledAxis("0.weight", 0, 1.0, 1.0), ScaledAxis("0.bias", 0, 1.0), ScaledAxis("2.weight", 1, -1.0))
    flips = (ScaledAxis("0.weight", 0, 1.0), ScaledAxis("0.bias", 0, 1.0))
    return Symmetry(
        base.sets,
        base.axes,
        (Scaling("c", units, 3, members), Scaling("sign", units, 3, flips, kind="sign")),
    )


@pytest.mark.parametrize("seed", range(3))
def test_push_agrees_with_moved_samples(seed: int) -> None:
    sym = odd()
    torch.manual_seed(seed)
    mean = states.of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))
    std = {name: 0.01 + torch.rand(x.shape) for name, x in mean.items()}
    g = sym.random(torch.Generator().manual_seed(seed), scalings=True)
    q = coset.Gaussian(mean, std)
    result, ours, image = pushed(q, sym, g)
    assert near(result.mean, sym.act(g, q.mean))
    for name in mean:
        s = result.std[name]  # type: ignore[attr-defined]
        assert torch.allclose(image[name].std(0), s, rtol=0.06)
        assert torch.allclose(ours[name].std(0), s, rtol=0.06)
        assert ((image[name].mean(0) - result.mean[name]).abs() < 5 * s / math.sqrt(4000)).all()


def test_push_preserves_density_under_permutations(gaussian: coset.Gaussian, net: nn.Module) -> None:
    sym = coset.symmetry(net, (torch.randn(4, 3),))
    g = sym.random(torch.Generator().manual_seed(1))
    state = states.unstack(gaussian.sample(1))[0]
    assert sym.act(g, gaussian).log_prob(sym.act(g, state)).item() == pytest.approx(gaussian.log_prob(state).item())
    assert sym.act(g, gaussian).entropy().item() == pytest.approx(gaussian.entropy().item())
    assert near(sym.act(g, coset.Dirac(state)).mean, sym.act(g, state))
    both = coset.Mixture([gaussian, coset.Dirac(state)], [1, 3])
    assert near(sym.act(g, both).mean, sym.act(g, both.mean))


class TestMixture:
    @laws
    @given(gaussians(3), st.floats(0.01, 5))
    def test_log_prob_is_that_of_the_sum(self, qs: list[coset.Gaussian], weight: float) -> None:
        names = [n for n in qs[0].mean if n.startswith("w")]
        # Parts that fix the same coordinates, and at the same values.
        std = {n: torch.ones_like(qs[0].std[n]) for n in names}
        qs = [coset.Gaussian({**q.mean, "statistic": torch.ones(2)}, std) for q in qs]
        weights = np.array([1.0, weight, 2.0])
        mixture = coset.Mixture(qs, weights.tolist())
        state = states.unstack(mixture.sample(1, torch.Generator().manual_seed(0)))[0]
        x = flat({n: state[n] for n in names})
        density = sum(
            w * np.exp(norm.logpdf(x, flat({n: q.mean[n] for n in names}), 1.0).sum())
            for w, q in zip(weights / weights.sum(), qs, strict=True)
        )
        assert mixture.log_prob(state).item() == pytest.approx(np.log(density), abs=1e-6)

    def test_samples_come_from_the_parts_by_weight(self, generator: torch.Generator) -> None:
        parts = [coset.Dirac({"w": torch.full((2,), float(k)), "n": torch.tensor(0)}) for k in range(3)]
        mixture = coset.Mixture(parts, [1, 0, 3])
        samples = mixture.sample(4000, generator)["w"][:, 0]
        assert abs((samples == 2).double().mean().item() - 0.75) < 0.03 and not (samples == 1).any()
        assert mixture.mean["w"].tolist() == [1.5, 1.5]

    def test_entropy_of_diracs_is_exact(self) -> None:
        parts = [coset.Dirac({"w": torch.tensor(float(k))}) for k in range(3)]
        w = np.array([0.2, 0.3, 0.5])
        assert coset.Mixture(parts, w.tolist()).entropy().item() == pytest.approx(-(w * np.log(w)).sum())

    def test_entropy_of_far_gaussians(self, generator: torch.Generator) -> None:
        parts = [coset.Gaussian({"w": torch.tensor(m)}, {"w": torch.tensor(0.5)}) for m in (0.0, 100.0)]
        expected = norm.entropy(scale=0.5) + np.log(2)
        assert coset.Mixture(parts).entropy(1000, generator).item() == pytest.approx(expected, abs=0.1)

    def test_components_are_taken_apart(self) -> None:
        a, b, c = (coset.Dirac({"w": torch.tensor(float(k))}) for k in range(3))
        nested = coset.Mixture([coset.Mixture([a, b]), c], [1, 3])
        assert nested.components() == [(0.125, a), (0.125, b), (0.75, c)]
        assert not coset.Mixture([a, b], [1, 0]).is_random

    @pytest.mark.parametrize("weights", [[-1, 2], [0, 0], [1, math.nan], [1, math.inf], [1]])
    def test_bad_weights(self, weights: list[float]) -> None:
        q = coset.Dirac({"w": torch.zeros(1)})
        with pytest.raises(StateError, match="weights"):
            coset.Mixture([q, q], weights)

    def test_parts_of_other_layouts(self) -> None:
        with pytest.raises(StateError, match="part 2 of the mixture has shape"):
            coset.Mixture([coset.Dirac({"w": torch.zeros(1)}), coset.Dirac({"w": torch.zeros(2)})])
        with pytest.raises(StateError, match="at least one"):
            coset.Mixture([])


class TestWasserstein:
    @laws
    @given(gaussians(2))
    def test_is_eq_17(self, qs: list[coset.Gaussian]) -> None:
        a, b = qs
        squares = ((flat(a.mean) - flat(b.mean)) ** 2).sum() + ((flat(a.std) - flat(b.std)) ** 2).sum()
        assert coset.wasserstein(a, b).item() == pytest.approx(np.sqrt(squares), rel=1e-9)
        assert coset.wasserstein(a, b).dtype == torch.float64
        assert coset.wasserstein(a, a) == 0

    def test_is_the_cost_of_optimal_transport(self, generator: torch.Generator) -> None:
        """In one dimension the optimal plan sorts, so samples give the distance without the formula."""
        a = coset.Gaussian({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.5])})
        b = coset.Gaussian({"w": torch.tensor([-1.0])}, {"w": torch.tensor([2.0])})
        x, y = (q.sample(200_000, generator)["w"][:, 0].double().sort().values for q in (a, b))
        assert coset.wasserstein(a, b).item() == pytest.approx((x - y).square().mean().sqrt().item(), rel=0.01)

    def test_of_states_is_their_distance(self, net: nn.Module) -> None:
        a = states.of(net)
        b = states.scale(a, 1.1)
        assert coset.wasserstein(a, b).item() == pytest.approx(states.norm(states.sub(a, b)).item(), rel=1e-6)

    def test_refuses_mixtures_and_other_layouts(self, gaussian: coset.Gaussian) -> None:
        with pytest.raises(CosetError, match="no closed form for a Mixture"):
            coset.wasserstein(gaussian, coset.Mixture([gaussian]))
        with pytest.raises(StateError, match=r"Missing .* in the second solution"):
            coset.wasserstein(gaussian, {"0.weight": torch.zeros(5, 3)})


class TestFiles:
    def round_trip(self, q: Solution, path: Path) -> None:
        q.save(path / "q.safetensors")
        result = coset.load(path / "q.safetensors")
        assert type(result) is type(q) and near(result.mean, q.mean) and list(result.mean) == list(q.mean)
        first, second = (s.sample(3, torch.Generator().manual_seed(0)) for s in (q, result))
        assert first.keys() == second.keys()
        assert result.entropy().item() == pytest.approx(q.entropy().item())
        state = states.unstack(q.sample(1))[0]
        assert result.log_prob(state).item() == pytest.approx(q.log_prob(state).item())

    def test_dirac(self, net: nn.Module, tmp_path: Path) -> None:
        self.round_trip(coset.Dirac(states.of(net)), tmp_path)

    def test_gaussian(self, gaussian: coset.Gaussian, tmp_path: Path) -> None:
        self.round_trip(gaussian, tmp_path)
        result = coset.load(tmp_path / "q.safetensors")
        assert isinstance(result, coset.Gaussian) and near(result.std, gaussian.std)

    def test_mixture(self, gaussian: coset.Gaussian, net: nn.Module, tmp_path: Path) -> None:
        diracs = [coset.Dirac(states.scale(states.of(net), c)) for c in (1.0, 2.0)]
        self.round_trip(coset.Mixture([coset.Mixture(diracs, [1, 2]), diracs[0]], [0.3, 0.7]), tmp_path)
        coset.Mixture([gaussian, diracs[0]], [1, 3]).save(tmp_path / "m.safetensors")
        result = coset.load(tmp_path / "m.safetensors")
        assert isinstance(result, coset.Mixture) and result.weights == (0.25, 0.75)
        assert [type(part) for part in result.parts] == [coset.Gaussian, coset.Dirac]

    def test_ties_survive(self, tmp_path: Path) -> None:
        w = torch.ones(3)
        coset.Gaussian({"a": w, "b": w}, {"a": w}).save(tmp_path / "q.safetensors")
        population = coset.load(tmp_path / "q.safetensors").sample(2)
        assert torch.equal(population["a"], population["b"])

    def test_a_plain_checkpoint_is_a_dirac(self, net: nn.Module, tmp_path: Path) -> None:
        save_state(states.of(net), tmp_path / "s.safetensors")
        torch.save(net.state_dict(), tmp_path / "s.pt")
        for name in ("s.safetensors", "s.pt"):
            result = coset.load(tmp_path / name)
            assert isinstance(result, coset.Dirac) and near(result.mean, states.of(net))

    def test_a_dirac_is_a_plain_checkpoint(self, net: nn.Module, tmp_path: Path) -> None:
        from safetensors.torch import load_file

        coset.Dirac(states.of(net)).save(tmp_path / "s.safetensors")
        assert near(load_file(tmp_path / "s.safetensors"), states.of(net))

    def test_unreadable(self, tmp_path: Path) -> None:
        with pytest.raises(StateError, match="no file"):
            coset.load(tmp_path / "none.safetensors")
        for text in ("{", '{"kind": "cauchy", "owners": {}}', "[]", '{"kind": "dirac", "owners": {"v": "v"}}'):
            save_state({"w": torch.ones(1)}, tmp_path / "s.safetensors", {"coset.solution": text})
            with pytest.raises(StateError, match=r"s\.safetensors holds a solution that cannot be read"):
                coset.load(tmp_path / "s.safetensors")
        with pytest.raises(StateError, match=r"must end in \.safetensors"):
            coset.Dirac({"w": torch.ones(1)}).save(tmp_path / "s.pt")


def test_as_solution(gaussian: coset.Gaussian) -> None:
    assert as_solution(gaussian) is gaussian
    assert isinstance(as_solution({"w": torch.ones(1)}), coset.Dirac)
    with pytest.raises(StateError, match="not a int"):
        as_solution(3)  # type: ignore[arg-type]


def test_repr(gaussian: coset.Gaussian) -> None:
    assert repr(gaussian) == "Gaussian(9 tensors, 64 coordinates)"
