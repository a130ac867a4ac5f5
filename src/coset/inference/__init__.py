"""Methods that find solutions, and `fit`, which runs them."""

from coset.inference.adversarial import Adversarial
from coset.inference.deep_ensemble import DeepEnsemble
from coset.inference.diagnostics import Diagnosis, diagnose, ess, r_hat
from coset.inference.elbo import Elbo, elbo
from coset.inference.fit import fit
from coset.inference.hmc import HMC
from coset.inference.laplace import Laplace
from coset.inference.map import MAP
from coset.inference.sghmc import SGHMC
from coset.inference.sgld import SGLD
from coset.inference.symmetrized_vi import SymmetrizedVI
from coset.inference.vi import VI

__all__ = [
    "HMC",
    "MAP",
    "SGHMC",
    "SGLD",
    "VI",
    "Adversarial",
    "DeepEnsemble",
    "Diagnosis",
    "Elbo",
    "Laplace",
    "SymmetrizedVI",
    "diagnose",
    "elbo",
    "ess",
    "fit",
    "r_hat",
]
