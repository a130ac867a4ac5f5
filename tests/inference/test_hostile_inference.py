"""Models, data and folders that are out of the ordinary: they work, or are refused in one sentence."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from inference_problems import clusters, mlp
from torch import Tensor, nn

import coset
from coset import Method
from coset.core import state as states
from coset.core.errors import CosetError, DataError, ModelError
from coset.data import Split

SHORT = coset.MAP(epochs=2, batch_size=20)
METHODS = [
    SHORT,
    coset.VI(epochs=2),
    coset.SymmetrizedVI(epochs=2, entropy="importance", elements=3),
    coset.SymmetrizedVI(epochs=2, entropy="infonce", elements=3),
    coset.SymmetrizedVI(epochs=2, entropy="exact"),
    coset.HMC(chains=2, draws=2, warm_up=2, steps=2),
    coset.SGLD(chains=2, epochs=2, burn_in=0),
    coset.Laplace(SHORT, "full"),
    coset.Laplace(SHORT, "diagonal"),
    coset.Laplace(SHORT, "kron"),
]


def label(method: Method) -> str:
    return "-".join(
        [type(method).__name__, *(str(getattr(method, k)) for k in ("entropy", "hessian") if hasattr(method, k))]
    )


class Scaled(nn.Module):
    """A linear classifier times a scalar, with a parameter that is empty: there is nothing to permute."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.ones(0))
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.scale + self.nothing.sum()
        return y


@pytest.mark.parametrize("method", METHODS, ids=label)
def test_scalar_and_empty_parameters(method: Method) -> None:
    for q in coset.fit(Scaled(), clusters(), method, replicas=2):
        assert q.mean["scale"].shape == () and q.mean["nothing"].shape == (0,)
        assert float(q.mean["scale"]) != 1
        assert math.isfinite(coset.evaluate(q, Scaled(), clusters(), samples=4).nll)


@pytest.mark.parametrize("entropy", ["infonce", "importance", "bethe", "exact"])
def test_without_permutations_symmetrized_vi_is_vi(entropy: str) -> None:
    settings = {"epochs": 3, "batch_size": 20}
    (plain,) = coset.fit(nn.Linear(4, 3), clusters(), coset.VI(**settings))  # type: ignore[arg-type]
    (q,) = coset.fit(nn.Linear(4, 3), clusters(), coset.SymmetrizedVI(**settings, entropy=entropy))  # type: ignore[arg-type]
    assert all(torch.equal(q.mean[n], x) and torch.equal(q.std[n], plain.std[n]) for n, x in plain.mean.items())  # type: ignore[attr-defined]


def test_matrices_without_entries_have_units_that_do_not_move() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nothing = nn.Parameter(torch.ones(6, 0))
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.net(x) + self.nothing.sum()
            return y

    (q,) = coset.fit(Hidden(), clusters(), coset.SymmetrizedVI(epochs=2))
    assert q.mean["nothing"].shape == (6, 0)


def test_complex_parameters_are_refused() -> None:
    class Rotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear((x * self.turn).real)
            return y

    with pytest.raises(ModelError, match=r"'turn' is torch\.complex64, and only real ones can be trained"):
        coset.fit(Rotated(), clusters(), SHORT)


def frozen_backbone() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        net[1].running_mean.fill_(0.5)  # type: ignore[union-attr, operator]
    for p in (*net[0].parameters(), *net[1].parameters()):
        p.requires_grad_(False)
    return net


@pytest.mark.parametrize(
    "method", [SHORT, coset.VI(epochs=2), coset.HMC(chains=2, draws=2, warm_up=2, steps=2)], ids=label
)
def test_frozen_layers_keep_what_they_learned(method: Method) -> None:
    net = frozen_backbone()
    before = {name: x.clone() for name, x in states.of(net).items()}
    for q in coset.fit(net, clusters(), method, replicas=2):
        assert torch.equal(q.mean["0.weight"], before["0.weight"]) and torch.equal(q.mean["0.bias"], before["0.bias"])
        assert not torch.equal(q.mean["3.weight"], before["3.weight"])
        if isinstance(method, coset.HMC):  # training would move statistics, a chain does not
            assert torch.equal(q.mean["1.running_mean"], before["1.running_mean"])
    assert all(torch.equal(x, before[name]) for name, x in states.of(net).items())


def test_statistics_of_norms_are_part_of_a_variational_solution() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    (q,) = coset.fit(net, clusters(), coset.VI(epochs=5, batch_size=20))
    assert isinstance(q, coset.Gaussian)
    assert q.mean["1.running_mean"].any() and not q.std["1.running_mean"].any() and not q.std["1.running_var"].any()
    without = {**q.mean, "1.running_mean": torch.zeros(6), "1.running_var": torch.ones(6)}
    found, other = (coset.evaluate(x, net, clusters()).nll for x in (coset.Dirac(q.mean), coset.Dirac(without)))
    assert found != other


def test_symmetrized_vi_refuses_frozen_units() -> None:
    net = mlp()
    net[0].weight.requires_grad_(False)
    with pytest.raises(CosetError, match=r"'0\.weight' is frozen, .* use coset\.VI"):
        coset.fit(net, clusters(), coset.SymmetrizedVI(epochs=2))


def freeze(net: nn.Sequential) -> nn.Sequential:
    net[0].weight.requires_grad_(False)
    return net


def embedding() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))


def other_frozen_values(net: nn.Sequential) -> nn.Sequential:
    with torch.no_grad():
        net[0].weight.add_(1)  # type: ignore[operator]
    return net


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (lambda: freeze(embedding()), embedding, "frozen"),
        (embedding, lambda: freeze(embedding()), "frozen"),
        (lambda: freeze(embedding()), lambda: other_frozen_values(freeze(embedding())), "frozen"),
        (embedding, lambda: embedding().double(), "dtypes"),
    ],
)
def test_folders_know_what_is_frozen_and_how_wide(
    first: Callable[[], nn.Module], second: Callable[[], nn.Module], what: str, tmp_path: Path
) -> None:
    split = Split(torch.randint(5, (20, 2)), torch.randint(3, (20,)))
    torch.manual_seed(0)
    coset.fit(first(), split, SHORT, out=tmp_path)
    torch.manual_seed(0)
    coset.fit(first(), split, SHORT, out=tmp_path)
    torch.manual_seed(0)
    with pytest.raises(CosetError, match=f"another {what}"):
        coset.fit(second(), split, SHORT, out=tmp_path)


def test_settings_of_ordinary_models_have_no_more_keys(tmp_path: Path) -> None:
    """Folders of earlier versions stay good."""
    coset.fit(mlp(), clusters(), SHORT, out=tmp_path)
    assert not {"frozen", "dtypes"} & json.loads((tmp_path / "settings.json").read_text()).keys()


def test_files_of_others_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(CosetError, match=r"is \[\] and no JSON object: choose another folder"):
        coset.fit(mlp(), clusters(), SHORT, out=tmp_path)
    (tmp_path / "settings.json").unlink()
    (tmp_path / "replica-0").mkdir()
    torch.save({"epoch": 1}, tmp_path / "replica-0" / "checkpoint.pt")
    with pytest.raises(CosetError, match="that is of no run"):
        coset.fit(mlp(), clusters(), SHORT, out=tmp_path)


@pytest.mark.parametrize("method", [SHORT, coset.HMC(chains=1, draws=2, warm_up=2, steps=2)], ids=label)
def test_inputs_that_are_no_numbers_are_named(method: Method) -> None:
    split = clusters()
    split.inputs[3, 1] = math.nan
    with pytest.raises(DataError, match="the inputs have 1 NaN or infinite of 240 values"):
        coset.fit(mlp(), split, method)


def test_wide_starts() -> None:
    """e^s overflows from s = 710 on."""
    (q,) = coset.fit(mlp(), clusters(), coset.VI(epochs=1, initial_std=800.0, rate=1e-6))
    assert isinstance(q, coset.Gaussian)
    assert all(torch.allclose(s, torch.full_like(s, 800.0)) for s in q.std.values())


def line() -> coset.Gaussian:
    mean = {"weight": torch.ones(1, 3), "bias": torch.zeros(1)}
    return coset.Gaussian(mean, {"weight": torch.full((1, 3), 0.1)}, noise=0.3)


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        (torch.zeros(5), r"Targets of shape \(5,\) do not fit outputs of shape \(5, 1\)"),
        (torch.full((5, 1), math.nan), "5 NaN or infinite of 5"),
        (torch.zeros(5, dtype=torch.int64), "This solution has noise"),
    ],
)
def test_elbo_refuses_targets_that_do_not_fit(targets: Tensor, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        coset.elbo(line(), nn.Linear(3, 1), (torch.zeros(5, 3), targets))


def test_elbo_refuses_classes_and_outputs_that_are_none() -> None:
    net = mlp()
    q = coset.Gaussian(states.of(net), {"0.bias": torch.ones(6)})
    with pytest.raises(DataError, match="The targets go from 7 to 7"):
        coset.elbo(q, net, (torch.zeros(5, 4), torch.full((5,), 7)))
    with pytest.raises(ModelError, match="returns NaN"):
        coset.elbo(q, net, (torch.full((5, 4), math.nan), torch.zeros(5, dtype=torch.int64)))


def test_elbo_of_a_mean_alone() -> None:
    net, split = mlp(), clusters()
    bound = coset.elbo(coset.Gaussian(states.of(net), {}), net, split)
    assert bound.error == 0 and bound.divergence == 0
    assert bound.value == pytest.approx(-len(split) * coset.evaluate(states.of(net), net, split).nll)


def test_diagnose_takes_draws() -> None:
    with pytest.raises(CosetError, match="a Gaussian has no draws"):
        coset.convergence(line(), nn.Linear(3, 1), torch.zeros(2, 3), 2)  # type: ignore[arg-type]
