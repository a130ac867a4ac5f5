"""Solutions show themselves, and take modules and each other wherever a state will do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import zoo
from coset.core.errors import StateError
from coset.core.show import LINES, WIDTH

MODEL = zoo.build("mlp:4-3-2")
DATA = torch.randn(20, 4), torch.randint(2, (20,))
STD = {name: torch.full_like(x, 0.1) for name, x in coset.state.of(MODEL).items()}
SYM = coset.symmetry(MODEL, (DATA[0],))
GAUSSIAN = coset.Gaussian(MODEL, STD)

SHOWN = {
    "Dirac": coset.Dirac(MODEL, noise=0.1),
    "Gaussian": GAUSSIAN,
    "FullGaussian": coset.FullGaussian(MODEL, 0.01 * torch.eye(23)),
    "KroneckerGaussian": coset.KroneckerGaussian(MODEL, {"layers.0.weight": (torch.eye(3), torch.eye(4))}),
    "Ensemble": coset.Ensemble([MODEL, coset.Dirac(MODEL)]),
    "Mixture": coset.Mixture([MODEL, GAUSSIAN], [1, 3]),
    "Symmetrized": coset.Symmetrized(GAUSSIAN, SYM),
}


@pytest.mark.parametrize("name", SHOWN)
def test_solutions_show_themselves(name: str) -> None:
    q = SHOWN[name]
    assert repr(q).startswith(f"{name}(4 tensors, 23 coordinates")
    assert "\n" not in repr(q) and len(repr(q)) <= WIDTH
    html = q._repr_html_()
    assert html.startswith("<table>") and "float32" in html and "cpu" in html


def test_tables_say_what_kind_it_is() -> None:
    assert "median std" in GAUSSIAN._repr_html_() and "of full rank" in SHOWN["FullGaussian"]._repr_html_()
    assert "0.75" in SHOWN["Mixture"]._repr_html_() and "10^0.8" in SHOWN["Symmetrized"]._repr_html_()
    assert "layers.0.weight 3 x 4" in SHOWN["KroneckerGaussian"]._repr_html_()


def test_measurements_show_themselves() -> None:
    evaluation = coset.evaluate(GAUSSIAN, MODEL, DATA, samples=3)
    overlap = coset.overlap(GAUSSIAN, SYM, samples=4)
    moments = coset.moments(coset.Dirac(MODEL, noise=0.1), MODEL, DATA[0])
    for view, words in (
        (evaluation, ["Evaluation", "nll", "accuracy", "ece", "brier"]),
        (overlap, ["Overlap", "index", "nats", "bounds", "of layers.0 alone"]),
        (moments, ["Moments of 2 values at 20 inputs", "epistemic"]),
    ):
        lines = repr(view).splitlines()
        assert 1 < len(lines) <= LINES and max(map(len, lines)) <= WIDTH
        assert all(word in repr(view) and word in view._repr_html_() for word in words)
    assert "rmse" not in repr(evaluation)


def test_a_module_is_a_solution() -> None:
    state, x = coset.state.of(MODEL), DATA[0]
    assert torch.equal(coset.predict(MODEL, MODEL, x), coset.predict(state, MODEL, x))
    assert coset.evaluate(MODEL, MODEL, DATA) == coset.evaluate(state, MODEL, DATA)
    assert float(coset.wasserstein(MODEL, state)) == 0
    assert float(coset.Dirac(state).log_prob(MODEL)) == 0
    assert torch.equal(GAUSSIAN.log_prob(MODEL), GAUSSIAN.log_prob(state))
    assert coset.state.allclose(coset.Symmetrized(MODEL, SYM).q.mean, state)


def test_a_solution_of_a_module_keeps_its_weights() -> None:
    model = zoo.build("mlp:4-3-2")
    q = coset.Dirac(model)
    before: dict[str, Tensor] = {name: x.clone() for name, x in q.mean.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(torch.equal(x, before[name]) for name, x in q.mean.items())


@pytest.mark.parametrize("one", [nn.Sequential(nn.Linear(2, 2)), coset.Dirac(MODEL)])
def test_one_network_is_no_ensemble(one: nn.Module | coset.Solution) -> None:
    with pytest.raises(StateError, match="An ensemble is of several networks, and this is one"):
        coset.Ensemble(one)  # type: ignore[arg-type]
