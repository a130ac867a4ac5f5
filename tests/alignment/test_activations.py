"""Scores of units by their activations: against numpy on captured activations, and on permuted copies."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import coset
from coset import ModelError, Symmetry
from coset.alignment.activation_sites import SiteKind
from coset.alignment.activations import constrained, cross_statistics
from coset.alignment.objective import moved_scores
from coset.assignment import solve
from coset.core import state as states
from coset.data import Split
from coset.zoo import build, example_input


@functools.cache
def symmetry(spec: str) -> Symmetry:
    model = build(spec)
    return coset.symmetry(model, example_input(model), verify=False)


def pair(spec: str, examples: int = 64) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor], Split]:
    """A model, two states of it and data."""
    torch.manual_seed(0)
    model, other = build(spec).eval(), build(spec)
    (inputs,) = example_input(model, examples)
    inputs = inputs[..., :16, :16] if spec.startswith("resnet") else inputs
    return model, states.of(model), states.of(other), Split(inputs, torch.zeros(examples))


def captured(model: nn.Module, state: dict[str, Tensor], split: Split, kind: SiteKind = "post") -> list[np.ndarray]:
    """[samples, units] at every call of an activation module."""
    rows: list[np.ndarray] = []

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0] if kind == "pre" else output
        rows.append(x.movedim(1, -1).flatten(0, -2).double().numpy())

    modules = [m for m in model.modules() if isinstance(m, nn.ReLU)]
    handles = [m.register_forward_hook(hook) for m in modules]
    with torch.no_grad():
        states.call(model, state, split.inputs)
    for handle in handles:
        handle.remove()
    return rows


def correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    full: np.ndarray = np.corrcoef(x, y, rowvar=False)
    return full[: x.shape[1], x.shape[1] :]


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_correlation_is_that_of_numpy(kind: SiteKind) -> None:
    model, a, b, split = pair("mlp:6-9-7-4")
    sym = symmetry("mlp:6-9-7-4")
    model, split = model.double(), Split(split.inputs.double(), split.targets)
    a, b = states.to(a, dtype=torch.float64), states.to(b, dtype=torch.float64)
    a["layers.0.bias"] += 100  # far from zero, where sums of squares cancel
    scores = cross_statistics(a, b, sym, model, split, kind, batch_size=10)
    assert scores.keys() == {"layers.0", "layers.1"}
    pairs = zip(captured(model, a, split, kind), captured(model, b, split, kind), strict=True)
    for name, (x, y) in zip(scores, pairs, strict=True):
        live = np.outer(x.std(0) > 0, y.std(0) > 0)
        assert live.mean() > 0.3
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = np.where(live, correlation(x, y), 0.0)
        np.testing.assert_allclose(scores[name].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_l2_is_the_mean_square_distance(kind: SiteKind) -> None:
    model, a, b, split = pair("mlp:6-9-7-4")
    sym = symmetry("mlp:6-9-7-4")
    scores = cross_statistics(a, b, sym, model, split, kind, "l2")
    x, y = captured(model, a, split, kind)[1], captured(model, b, split, kind)[1]
    expected = -((x[:, :, None] - y[:, None, :]) ** 2).mean(0)
    np.testing.assert_allclose(scores["layers.1"].numpy(), expected, rtol=1e-6)


def test_convolutions_count_positions_and_residual_streams_average() -> None:
    model, a, b, split = pair("resnet20:width=0.25", examples=6)
    sym = symmetry("resnet20:width=0.25")
    scores = cross_statistics(a, b, sym, model, split, batch_size=4)
    x, y = captured(model, a, split), captured(model, b, split)
    assert scores.keys() == sym.sets.keys()
    inner = correlation(x[1], y[1])
    np.testing.assert_allclose(scores["stages.0.0.conv1"].numpy(), inner, atol=1e-6)
    stream = np.mean([correlation(x[k], y[k]) for k in (0, 2, 4, 6)], 0)
    np.testing.assert_allclose(scores["stem"].numpy(), stream, atol=1e-6)


def test_other_ops_count_only_for_units_that_meet_no_activation_function() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 5), nn.Linear(3, 4), nn.Linear(9, 2)
            self.relu = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(torch.cat([self.relu(self.a(x)), self.b(x)], 1) ** 2)
            return out

    torch.manual_seed(0)
    model, other, inputs = Net(), Net(), torch.randn(50, 3)
    split = Split(inputs, torch.zeros(50))
    a, b = states.of(model), states.of(other)
    scores = cross_statistics(a, b, coset.symmetry(model, (inputs,)), model, split)
    (x,), (y,) = captured(model, a, split), captured(model, b, split)
    np.testing.assert_allclose(scores["a"].numpy(), correlation(x, y), atol=1e-6)
    first, second = (net.b(inputs).detach().double().numpy() for net in (model, other))
    # Its layer, the concatenation and the square.
    expected = (2 * correlation(first, second) + correlation(first**2, second**2)) / 3
    np.testing.assert_allclose(scores["b"].numpy(), expected, atol=1e-6)


def test_a_constant_unit_matches_nothing() -> None:
    model, a, b, split = pair("mlp:6-9-4")
    sym = symmetry("mlp:6-9-4")
    a["layers.0.weight"][2] = 0.0
    a["layers.0.bias"][2] = 0.3
    b["layers.0.bias"][5] = -100.0
    scores = cross_statistics(a, b, sym, model, split)["layers.0"]
    assert not scores[2].any() and not scores[:, 5].any()
    assert scores.isfinite().all() and scores.abs().max() <= 1 + 1e-12


@pytest.mark.parametrize("spec", ["mlp:6-9-7-4", "vit:dim=16,depth=1,heads=2,patch=16"])
@pytest.mark.parametrize("measure", ["correlation", "l2"])
def test_streaming_equals_one_batch(spec: str, measure: str) -> None:
    model, a, b, split = pair(spec, 20)
    sym = symmetry(spec)
    texts: list[str] = []
    whole = cross_statistics(a, b, sym, model, split, measure=measure)
    parts = cross_statistics(
        a, b, sym, model, split, measure=measure, batch_size=7, progress=lambda event: texts.append(event.text)
    )
    loader = DataLoader(TensorDataset(*split), batch_size=6)
    loaded = cross_statistics(a, b, sym, model, loader, measure=measure)
    assert texts == [f"activations of {n} of 20 examples" for n in (7, 14, 20)]
    assert whole.keys() == parts.keys() == loaded.keys()
    for name, scores in whole.items():
        assert scores.dtype == torch.float64
        torch.testing.assert_close(parts[name], scores, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(loaded[name], scores, rtol=1e-5, atol=1e-6)


SPECS = [
    "mlp:6-9-7-4,activation=tanh",
    "resnet20:width=0.25",
    "vit:dim=16,depth=1,heads=2,patch=16",
    "gpt:dim=24,rope=true,kv_heads=2,swiglu=true,norm=rms",
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_permuted_copy_is_recovered(spec: str) -> None:
    """B = act(g, A): the inverse of g matches each unit with itself, and no other match is as good."""
    model, a, _, split = pair(spec, 8)
    sym = symmetry(spec).without_matrices()
    g = sym.random(torch.Generator().manual_seed(1))
    home = g.inverse()
    scores = cross_statistics(a, sym.act(g, a), sym, model, split)
    unseen = {name for name, group in sym.sets.items() if group.movable} - scores.keys()
    assert unseen == ({"blocks.0.attention.qkv[0]"} if spec.startswith("vit") else set())
    for name, matrix in scores.items():
        n, over = sym.sets[name].size, sym.sets[name].over
        assert matrix.shape == ((len(home[name]), len(home[name]), n, n) if over else (n, n))
        matched = moved_scores(home, name, matrix).reshape(-1, n, n)
        torch.testing.assert_close(matched.diagonal(dim1=1, dim2=2), torch.ones(len(matched), n).double())
        within = matrix[torch.arange(len(matrix)), home.source_copy(name)] if over else matrix[None]
        best = [solve(one).permutation for one in within]
        assert torch.equal(torch.stack(best), home[name].reshape(len(best), n))


def test_pairs_of_copies_are_compared() -> None:
    """[copies, copies, n, n] holds the correlation of any two inner units of any two heads."""
    model, a, b, split = pair("vit:dim=16,depth=1,heads=2,patch=16", 8)
    sym = symmetry("vit:dim=16,depth=1,heads=2,patch=16").without_matrices()
    scores = cross_statistics(a, b, sym, model, split)

    outputs: list[np.ndarray] = []
    qkv = model.get_submodule("blocks.0.attention.qkv")
    handle = qkv.register_forward_hook(lambda _, __, y: outputs.append(y.flatten(0, 1).double().numpy()))
    with torch.no_grad():
        for state in (a, b):
            states.call(model, state, split.inputs)
    handle.remove()
    full = correlation(*outputs).reshape(3, 2, 8, 3, 2, 8)
    values = full[2, :, :, 2].transpose(0, 2, 1, 3)
    np.testing.assert_allclose(scores["blocks.0.attention.qkv[2]"].numpy(), values, atol=1e-6)
    # Queries and keys share their units: two places, averaged.
    queries_and_keys = (full[0, :, :, 0] + full[1, :, :, 1]).transpose(0, 2, 1, 3) / 2
    np.testing.assert_allclose(scores["blocks.0.attention.qkv[1]"].numpy(), queries_and_keys, atol=1e-6)


def test_model_and_states_are_left_alone() -> None:
    model, a, b, split = pair("resnet20:width=0.25", 4)
    sym = symmetry("resnet20:width=0.25")
    model.train()
    own, before = states.of(model), [{name: x.clone() for name, x in state.items()} for state in (a, b)]
    cross_statistics(a, b, sym, model, split, device="cpu")
    cross_statistics(a, b, sym, model, split)
    assert all(module.training for module in model.modules())
    for state, copy in zip([states.of(model), a, b], [own, *before], strict=True):
        assert states.allclose(state, copy, 0, 0)


def test_a_pass_that_depends_on_the_batch_is_refused() -> None:
    class Fickle(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = super().forward(x if len(x) == 8 else x + 0)
            return out

    model = Fickle(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    data = (torch.randn(12, 3), torch.zeros(12))
    sym = coset.symmetry(model, (data[0][:8],))
    state = states.of(model)
    with pytest.raises(ModelError, match="Fickle runs other ops"):
        cross_statistics(state, state, sym, model, data, batch_size=8)


# --- the constrained match ---------------------------------------------------------------------------------


def value(scores: Tensor, p: Tensor) -> float:
    return float(scores.double()[torch.arange(len(p)), p].sum())


def feasible(pre: Tensor) -> Callable[[Tensor], bool]:
    bound = float(pre.double().trace())
    return lambda p: value(pre, p) >= bound - 1e-9


def test_constrained_is_feasible_and_optimal_where_the_constraint_is_free() -> None:
    generator = torch.Generator().manual_seed(0)
    free = optimal = trials = 0
    for n in (2, 3, 4, 5, 6):
        every = [torch.tensor(p) for p in itertools.permutations(range(n))]
        for _ in range(30):
            post = torch.randn(n, n, generator=generator, dtype=torch.float64)
            distance = torch.rand(n, n, generator=generator, dtype=torch.float64) - torch.eye(n) * 0.4
            p = constrained(post, -distance)
            allowed = [q for q in every if feasible(-distance)(q)]
            best = max(value(post, q) for q in allowed)
            assert p.sort().values.tolist() == list(range(n)) and feasible(-distance)(p)
            assert float(post.trace()) - 1e-9 <= value(post, p) <= best + 1e-9
            unbound = max(value(post, q) for q in every)
            trials += 1
            optimal += value(post, p) > best - 1e-9
            if best > unbound - 1e-9:
                free += 1
                assert value(post, p) == pytest.approx(best)
    # Both cases occur, and the duality gap is rare.
    assert 20 < free < trials - 20 and optimal > 0.85 * trials


def test_constrained_prices_the_constraint() -> None:
    """Swapping 0, 1 pays but moves pre-activations apart; swapping 2, 3 costs less than it brings them together."""
    post = torch.tensor([[0.0, 1.0, -9, -9], [1.0, 0.0, -9, -9], [-9, -9, 0.0, -0.5], [-9, -9, -0.5, 0.0]])
    distance = torch.tensor([[2.0, 2.5, 9, 9], [2.5, 2.0, 9, 9], [9, 9, 2.0, 0.5], [9, 9, 0.5, 2.0]])
    assert solve(post).permutation.tolist() == [1, 0, 2, 3]
    assert constrained(post, -distance).tolist() == [1, 0, 3, 2]


def test_constrained_takes_the_scores_of_one_network_to_the_identity() -> None:
    model, a, _, split = pair("mlp:6-9-7-4,activation=tanh")
    sym = symmetry("mlp:6-9-7-4,activation=tanh")
    post = cross_statistics(a, a, sym, model, split)
    pre = cross_statistics(a, a, sym, model, split, "pre", "l2")
    for name in post:
        assert constrained(post[name], pre[name]).tolist() == list(range(len(post[name])))
