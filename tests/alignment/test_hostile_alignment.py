"""Alignment as strangers use it: odd dtypes, models and settings. Known failures are marked, each with its cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from alignment_nets import network, random_state
from torch import Tensor, nn

import coset
from coset import Activations, ManyMatch, PopulationMatch, Sinkhorn
from coset.core import state as states
from coset.core.errors import CosetError
from coset.symmetries.comparison import generic
from coset.training.initialise import fresh

State = dict[str, Tensor]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(state: State, seed: int, std: float = 0.1) -> coset.Gaussian:
    noise = seeded(seed)
    return coset.Gaussian(state, {k: std * (0.2 + torch.rand(x.shape, generator=noise)) for k, x in state.items()})


def examples(n: int = 30) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6, generator=seeded(0)), torch.randint(4, (n,), generator=seeded(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(x)[0][:, -1])
        return out


class ComplexNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8, dtype=torch.complex64), nn.Linear(8, 4, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x.to(torch.complex64))
        out: Tensor = self.b(h * h).abs()
        return out


# What holds.


def test_kl_objective_is_minus_the_divergence() -> None:
    model, sym = network("mlp")
    p, q = (gaussian(random_state(model, k), k) for k in (1, 2))

    def divergence(g: Any) -> float:
        image, total = sym.act(g, q), 0.0
        for name in p.std:
            s, r = image.std[name].double(), p.std[name].double()
            apart = (image.mean[name].double() - p.mean[name].double()).square()
            total += float((r.log() - s.log() + (s.square() + apart) / (2 * r.square()) - 0.5).sum())
        return total

    match = coset.align(p, q, sym, method="kl")
    gained = divergence(sym.identity()) - divergence(match.element)
    assert match.objective - match.identity_objective == pytest.approx(gained, rel=1e-4)


@pytest.mark.parametrize("method", ["weights", "activations", Sinkhorn(steps=10)])
def test_model_is_left_as_it_was(method: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 4))
    sym = coset.symmetry(model, (torch.randn(3, 6),))
    before, outside = states.of(model.train()), torch.get_rng_state()
    coset.align(random_state(model, 1), random_state(model, 2), sym, method, model, examples())
    assert model.training and all(module.training for module in model.modules())
    assert all(torch.equal(x, before[name]) for name, x in states.of(model).items())
    assert torch.equal(torch.get_rng_state(), outside)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float16, torch.float64)])
def test_states_of_two_dtypes(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    model, sym = network("mlp")
    a, b = random_state(model, 1), random_state(model, 2)
    match = coset.align(states.to(a, dtype=dtypes[0]), states.to(b, dtype=dtypes[1]), sym)
    assert match.objective == pytest.approx(coset.align(a, b, sym).objective, rel=1e-2)


# What does not.


def test_complex_states_are_aligned() -> None:
    torch.manual_seed(0)
    model = ComplexNet()
    sym = coset.symmetry(model, (torch.randn(3, 6),))
    a = {name: 1j * x.real for name, x in states.of(model).items()}
    b = sym.act(sym.random(seeded(3)), a)
    assert states.allclose(sym.act(coset.align(a, b, sym).element, b), a)


def test_complex_states_are_averaged() -> None:
    torch.manual_seed(0)
    model = ComplexNet()
    sym = coset.symmetry(model, (torch.randn(3, 6),))
    a = states.of(model)
    assert states.allclose(coset.merge([a, a], sym).mean, a)


def test_a_population_ends_no_lower_than_it_began() -> None:
    model, sym = network("mlp")
    a = random_state(model, 0)
    noise = seeded(1)
    near = [{k: x + 0.9 * x.std() * torch.randn(x.shape, generator=noise) for k, x in a.items()} for _ in range(400)]
    match = coset.align_many(states.stack(near), sym, reference=a)
    assert isinstance(match, PopulationMatch)
    assert bool((match.objective >= match.identity_objective - 1e-6).all())


def test_joint_kl_is_refused() -> None:
    """It is not the same both ways, so the sum over pairs has no such ascent."""
    model, sym = network("mlp")
    with pytest.raises(CosetError, match="aligned jointly by"):
        coset.align_many([gaussian(random_state(model, k), k) for k in range(4)], sym, method="kl")


def test_joint_leaves_the_global_generator_alone() -> None:
    model, sym = network("mlp")
    outside = torch.get_rng_state()
    coset.align_many([random_state(model, k) for k in range(3)], sym)
    assert torch.equal(torch.get_rng_state(), outside)


def test_joint_objective_in_bfloat16() -> None:
    model, sym = network("mlp")
    members = [states.to(random_state(model, k), dtype=torch.bfloat16) for k in range(4)]
    match = coset.align_many(members, sym)
    assert isinstance(match, ManyMatch)
    images = [states.to(sym.act(g, s), dtype=torch.float64) for g, s in zip(match.elements, members, strict=True)]
    exact = sum(float(states.inner(images[i], images[j])) for i in range(4) for j in range(i))
    assert match.objective == pytest.approx(exact, rel=1e-4)


def test_scale_does_not_move_apart() -> None:
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
    sym = coset.symmetry(model, (torch.randn(2, 16),))
    a, b = random_state(model, 1), random_state(model, 2)
    c = torch.exp(1.5 * torch.randn(12, generator=seeded(0)))
    a = {**a, "0.weight": a["0.weight"] * c[:, None], "0.bias": a["0.bias"] * c, "2.weight": a["2.weight"] / c}
    after = sym.act(coset.align(a, b, sym, scale=True).element, b)
    assert states.norm(states.sub(a, after)) <= states.norm(states.sub(a, b))


def test_scale_reports_the_objective_of_its_element() -> None:
    model, sym = network("mlp")
    a, b = random_state(model, 1), random_state(model, 2)
    match = coset.align(a, b, sym, scale=True)
    assert match.objective == pytest.approx(float(states.inner(a, sym.act(match.element, b))), rel=1e-3)


def test_merge_of_a_net_with_nothing_to_repair() -> None:
    model = Recurrent()
    sym = coset.symmetry(model, (torch.randn(2, 3, 5),))
    data = torch.randn(20, 3, 5), torch.zeros(20, dtype=torch.long)
    coset.merge([random_state(model, 1), random_state(model, 2)], sym, model=model, data=data)


def test_merge_of_large_weights() -> None:
    model, sym = network("mlp")
    a = random_state(model, 1)
    assert states.allclose(coset.merge([a, a], sym, weights=[1e308, 1e308]).mean, a)


@pytest.mark.parametrize(
    "settings",
    [
        {"measure": "cosine"},
        {"kind": "after"},
    ],
)
def test_unknown_settings_of_activations_are_refused(settings: dict[str, Any]) -> None:
    model, sym = network("mlp")
    with pytest.raises(CosetError):
        method = Activations(**settings)
        coset.align(random_state(model, 1), random_state(model, 2), sym, method, model, examples())


def test_nan_data_is_refused() -> None:
    model, sym = network("mlp")
    inputs, targets = examples()
    with pytest.raises(CosetError):
        coset.align(random_state(model, 1), random_state(model, 2), sym, "activations", model, (inputs / 0, targets))


def test_float8_states() -> None:
    model = nn.Sequential(*[part for _ in range(5) for part in (nn.Linear(48, 48), nn.ReLU())], nn.Linear(48, 4))
    sym = coset.symmetry(model, (torch.randn(3, 48),))
    a, b = (states.to(random_state(model, k), dtype=torch.float8_e4m3fn) for k in range(2))
    coset.align(a, b, sym)
    element = sym.random(torch.Generator().manual_seed(0))
    moved, exact = sym.act(element, b), sym.act(element, states.to(b, dtype=torch.float32))
    assert all(torch.equal(x.float(), exact[name]) and x.dtype == b[name].dtype for name, x in moved.items())


def _population_of_another_width(sym: Any, a: State, b: State) -> object:
    return coset.align_many(states.stack([a, b]), sym, reference={k: x[..., :1] for k, x in a.items()})


@pytest.mark.parametrize(
    "misuse",
    [
        lambda sym, a, b: coset.align(a, b, sym, device="nonsense"),
        lambda sym, a, b: coset.align(a, b, sym, restarts=-3),
        lambda sym, a, b: coset.align_many({}, sym),
        _population_of_another_width,
    ],
)
def test_misuse_is_refused(misuse: Callable[..., object]) -> None:
    model, sym = network("mlp")
    with pytest.raises(CosetError):
        misuse(sym, random_state(model, 1), random_state(model, 2))


def test_a_population_has_no_other_method() -> None:
    model, sym = network("mlp")
    with pytest.raises(CosetError):
        coset.align_many(states.stack([random_state(model, k) for k in range(2)]), sym, method="nonsense")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("method", ["activations", "sinkhorn"])
def test_methods_that_run_the_model_at_other_dtypes(method: str, dtype: torch.dtype) -> None:
    model, sym = network("mlp")
    a, b = (states.to(random_state(model, k), dtype=dtype) for k in (1, 2))
    coset.align(a, b, sym, method, model, examples())


# Training.


def test_fit_does_not_return_the_solution_of_another_model(tmp_path: Path) -> None:
    method = coset.MAP(epochs=2)
    relu = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    tanh = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    coset.fit(relu, examples(), method, out=tmp_path)
    expected = coset.fit(tanh, examples(), method)[0].mean
    try:
        result = coset.fit(tanh, examples(), method, out=tmp_path)[0].mean
    except CosetError:
        return
    assert states.allclose(result, expected)


def test_parametrized_layers_are_drawn_anew() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 4))
    name = "0.parametrizations.weight.original1"
    torch.manual_seed(1)
    assert not torch.equal(states.of(fresh(model))[name], states.of(model)[name])


@pytest.mark.parametrize(
    "call",
    [
        lambda net, out: coset.fit(net, examples(), coset.MAP(epochs=1, rate=float("inf")), out=out),
        lambda net, out: coset.fit(net, (torch.randn(9, 7), torch.zeros(9).long()), coset.MAP(epochs=1)),
        lambda net, out: coset.fit(net.requires_grad_(False), examples(), coset.MAP(epochs=1)),
    ],
)
def test_bad_training_is_refused(call: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(CosetError):
        call(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), tmp_path / "run")


def test_inputs_that_do_not_fit_are_refused() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with pytest.raises(CosetError):
        coset.evaluate(states.of(net), net, (torch.randn(9, 7), torch.zeros(9, dtype=torch.long)))


def test_a_barrier_of_infinite_loss_has_json() -> None:
    model = nn.Sequential(nn.Linear(1, 2))
    state = {"0.weight": torch.tensor([[2e38], [-2e38]]), "0.bias": torch.zeros(2)}
    data = torch.ones(2, 1), torch.ones(2, dtype=torch.long)
    coset.barrier(coset.geodesic(state, state), model, data, points=2).to_json()


def test_resuming_changes_nothing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))
    method = coset.MAP(epochs=4, batch_size=7)
    whole = coset.fit(model, examples(), method, replicas=2, seed=3)

    def stop(epoch: Any) -> None:
        if (epoch.replica, epoch.epoch) == (1, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coset.fit(
            model,
            examples(),
            method,
            replicas=2,
            seed=3,
            out=tmp_path,
            progress=coset.on_epoch(stop),
            checkpoint_seconds=0,
        )
    again = coset.fit(model, examples(), method, replicas=2, seed=3, out=tmp_path)
    for x, y in zip(whole, again, strict=True):
        assert all(torch.equal(x.mean[name], y.mean[name]) for name in x.mean)


def test_repair_matches_the_ends() -> None:
    model, sym = network("mlp")
    inputs, targets = examples(200)
    members = [generic(states.of(model), seeded(k)) for k in (1, 2)]
    match = coset.align_many(members, sym)
    assert isinstance(match, ManyMatch)
    merged = coset.merge(members, sym, model=model, data=(inputs, targets)).mean
    weight, bias = list(merged)[:2]

    def moments(state: State) -> Tensor:
        hidden = inputs @ state[weight].T + state[bias]
        return torch.stack([hidden.mean(0), hidden.std(0, correction=0)])

    ends = [moments(sym.act(g, s)) for g, s in zip(match.elements, members, strict=True)]
    torch.testing.assert_close(moments(merged), torch.stack(ends).mean(0), rtol=1e-4, atol=1e-5)
