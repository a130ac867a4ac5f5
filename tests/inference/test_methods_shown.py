"""What methods and their measures show of themselves."""

from dataclasses import fields

import pytest
import torch

import coset
from coset.core.show import LINES, WIDTH

METHODS = [coset.MAP, coset.VI, coset.SymmetrizedVI, coset.Adversarial, coset.DeepEnsemble, coset.Laplace]
METHODS += [coset.SWAG, coset.SGLD, coset.SGHMC, coset.HMC]
SETTINGS = [*METHODS, coset.Connect, coset.PAM, coset.Collect, coset.Matching]


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_settings_are_shown_as_they_are_written(kind: type) -> None:
    assert repr(kind()) == f"{kind.__name__}()"
    assert kind()._repr_html_().count("<tr>") == len(fields(kind()))


def test_settings_within_settings() -> None:
    method = coset.DeepEnsemble(3, coset.MAP("sgd", epochs=4))
    assert repr(method) == "DeepEnsemble(members=3, base=MAP(optimizer='sgd', epochs=4))"
    assert eval(repr(method), vars(coset)) == method
    every = coset.MAP("sgd", 0.1, 0.5, 1, 2, "constant", True, "bfloat16", 0.1, True, 0.2)
    assert "\n" not in repr(every) and len(repr(every)) <= WIDTH


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (coset.Elbo(-10.0, 5.0, 0.1, 100, None), ("100 examples", "-15", "+- 0.1")),
        (coset.Convergence(torch.ones(5, 3), 40 * torch.ones(5, 3)), ("15 predictions", "40")),
    ],
    ids=["Elbo", "Convergence"],
)
def test_measures(thing: object, words: tuple[str, ...]) -> None:
    lines = repr(thing).splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH and all(word in repr(thing) for word in words)
    assert "<table>" in thing._repr_html_()  # type: ignore[attr-defined]
