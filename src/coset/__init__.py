"""Work with neural networks modulo their symmetries.

Names are loaded when first used, so that importing coset, and the command line's help, does not load torch. Other
modules than those that Python loads when it starts are not imported here either: `python -m coset` comes here while the
current folder is first on the path, where a file called `typing.py` would be taken for the module.
"""

import importlib

from coset._version import __version__
from coset.errors import CosetError, DataError, ModelError, StateError, SymmetryError

TYPE_CHECKING = False  # as in typing
if TYPE_CHECKING:
    from typing import Any

    # From the files themselves: in an import cycle mypy takes `coset.inference.fit` for the file.
    from coset.alignment.api import align, align_many
    from coset.alignment.merge import merge
    from coset.curves.connect import Connect
    from coset.curves.find import find_curve
    from coset.curves.pam import PAM
    from coset.flow.api import Flow
    from coset.flow.guidance import Guidance
    from coset.flow.matching import Matching
    from coset.inference.adversarial import Adversarial
    from coset.inference.attack import PGD
    from coset.inference.deep_ensemble import DeepEnsemble
    from coset.inference.diagnostics import diagnose, ess, r_hat
    from coset.inference.elbo import elbo
    from coset.inference.fit import fit
    from coset.inference.hmc import HMC
    from coset.inference.laplace import Laplace
    from coset.inference.map import MAP
    from coset.inference.sghmc import SGHMC
    from coset.inference.sgld import SGLD
    from coset.inference.symmetrized_vi import SymmetrizedVI
    from coset.inference.vi import VI
    from coset.orbits.overlap import overlap
    from coset.paths.barrier import barrier
    from coset.paths.bezier import Bezier
    from coset.paths.chain import Chain
    from coset.paths.geodesic import geodesic
    from coset.paths.kinds import load_curve
    from coset.paths.mixture import mixture
    from coset.paths.plane import plane
    from coset.populations.collect import collect
    from coset.populations.collect_settings import Collect
    from coset.populations.population import Population
    from coset.solutions.dirac import Dirac
    from coset.solutions.ensemble import Ensemble
    from coset.solutions.evaluate import evaluate
    from coset.solutions.full import FullGaussian
    from coset.solutions.gaussian import Gaussian
    from coset.solutions.kronecker import KroneckerGaussian
    from coset.solutions.load import load
    from coset.solutions.mixture import Mixture
    from coset.solutions.moments import moments
    from coset.solutions.predict import predict
    from coset.solutions.symmetrized import Symmetrized
    from coset.solutions.wasserstein import wasserstein
    from coset.symmetries import Element, Group, Symmetry, symmetry
    from coset.weightspace.canonical import canonicalize
    from coset.weightspace.graph import neural_graph
    from coset.weightspace.manifold import manifold

__all__ = [
    "HMC",
    "MAP",
    "PAM",
    "PGD",
    "SGHMC",
    "SGLD",
    "VI",
    "Adversarial",
    "Bezier",
    "Chain",
    "Collect",
    "Connect",
    "CosetError",
    "DataError",
    "DeepEnsemble",
    "Dirac",
    "Element",
    "Ensemble",
    "Flow",
    "FullGaussian",
    "Gaussian",
    "Group",
    "Guidance",
    "KroneckerGaussian",
    "Laplace",
    "Matching",
    "Mixture",
    "ModelError",
    "Population",
    "StateError",
    "Symmetrized",
    "SymmetrizedVI",
    "Symmetry",
    "SymmetryError",
    "__version__",
    "align",
    "align_many",
    "barrier",
    "canonicalize",
    "collect",
    "diagnose",
    "elbo",
    "ess",
    "evaluate",
    "find_curve",
    "fit",
    "geodesic",
    "load",
    "load_curve",
    "manifold",
    "merge",
    "mixture",
    "moments",
    "neural_graph",
    "overlap",
    "plane",
    "predict",
    "r_hat",
    "symmetry",
    "wasserstein",
]

_HOMES = {
    "Adversarial": "coset.inference",
    "Bezier": "coset.paths",
    "Chain": "coset.paths",
    "Collect": "coset.populations",
    "Connect": "coset.curves",
    "DeepEnsemble": "coset.inference",
    "Dirac": "coset.solutions",
    "Element": "coset.symmetries",
    "Ensemble": "coset.solutions",
    "Flow": "coset.flow",
    "FullGaussian": "coset.solutions",
    "Gaussian": "coset.solutions",
    "Group": "coset.symmetries",
    "Guidance": "coset.flow",
    "HMC": "coset.inference",
    "KroneckerGaussian": "coset.solutions",
    "Laplace": "coset.inference",
    "MAP": "coset.inference",
    "Matching": "coset.flow",
    "Mixture": "coset.solutions",
    "PAM": "coset.curves",
    "PGD": "coset.inference",
    "Population": "coset.populations",
    "SGHMC": "coset.inference",
    "SGLD": "coset.inference",
    "Symmetrized": "coset.solutions",
    "SymmetrizedVI": "coset.inference",
    "Symmetry": "coset.symmetries",
    "VI": "coset.inference",
    "align": "coset.alignment",
    "align_many": "coset.alignment",
    "barrier": "coset.paths",
    "canonicalize": "coset.weightspace",
    "collect": "coset.populations",
    "diagnose": "coset.inference",
    "elbo": "coset.inference.elbo",
    "ess": "coset.inference",
    "evaluate": "coset.solutions",
    "find_curve": "coset.curves",
    "fit": "coset.inference",
    "geodesic": "coset.paths",
    "load": "coset.solutions",
    "load_curve": "coset.paths",
    "manifold": "coset.weightspace.manifold",
    "merge": "coset.alignment",
    "mixture": "coset.paths",
    "moments": "coset.solutions",
    "neural_graph": "coset.weightspace.graph",
    "overlap": "coset.orbits.overlap",
    "plane": "coset.paths",
    "predict": "coset.solutions",
    "r_hat": "coset.inference",
    "symmetry": "coset.symmetries",
    "wasserstein": "coset.solutions",
}

_PARTS = (
    "alignment",
    "assignment",
    "checkpoint",
    "data",
    "flow",
    "papers",
    "populations",
    "report",
    "state",
    "weightspace",
    "zoo",
)


def __getattr__(name: str) -> "Any":
    if name in _PARTS:
        return importlib.import_module(f"coset.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'coset' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])
