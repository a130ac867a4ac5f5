"""Methods of inference by the names that the command line has for them."""

from __future__ import annotations

from collections.abc import Sequence

from coset.cli import settings
from coset.core.errors import CosetError
from coset.inference.adversarial import Adversarial
from coset.inference.deep_ensemble import DeepEnsemble
from coset.inference.hmc import HMC
from coset.inference.laplace import Laplace
from coset.inference.map import MAP
from coset.inference.sghmc import SGHMC
from coset.inference.sgld import SGLD
from coset.inference.symmetrized_vi import SymmetrizedVI
from coset.inference.vi import VI
from coset.training.loop import Method

METHODS: dict[str, type[Method]] = {
    "map": MAP,
    "vi": VI,
    "symmetrized-vi": SymmetrizedVI,
    "laplace": Laplace,
    "sgld": SGLD,
    "sghmc": SGHMC,
    "hmc": HMC,
    "deep-ensemble": DeepEnsemble,
    "adversarial": Adversarial,
}


def build(name: str, words: Sequence[str]) -> Method:
    """The method `name` with settings NAME=VALUE; those of a method within another are `base.NAME`, and
    those of an attack `attack.NAME`.
    """
    if name not in METHODS:
        raise CosetError(
            f"There is no method {name!r}{settings.suggestion(name, METHODS)}: choose {', '.join(METHODS)}."
        )
    return settings.build(METHODS[name], settings.read(METHODS[name], name, words))
