"""Which posteriors are sampled, by scale, and how."""

from __future__ import annotations

from dataclasses import dataclass

from coset.flow.architecture import Architecture
from coset.flow.matching import Matching
from coset.flow.plan import Plan
from coset.flow.space import Geometry
from coset.inference import HMC, MAP, VI, DeepEnsemble
from coset.papers.weightflow.posterior_evidence import Annealing
from coset.papers.weightflow.posterior_problem import Problem, Recipe

NOISE = 0.3  # of standardized targets, as in bench/hmc.py
EUCLIDEAN, GEOMETRIC = "Euclidean flow", "geometric flow"


@dataclass(frozen=True)
class Case:
    """A posterior, flows of it by name, what they are compared with, and how many draws are measured.

    samples: networks that predict, and that distances are measured with. weighed: networks whose densities are
    computed, in so many steps.
    """

    problem: Problem
    flows: dict[str, Recipe]
    vi: VI
    ensemble: DeepEnsemble
    annealing: Annealing
    samples: int = 1024
    steps: int = 16
    weighed: int = 512
    weighed_steps: int = 12


def _small(chains: int, draws: int, steps: int, source: str = "snelson", thin: int = 6) -> Problem:
    hmc = HMC(chains, draws, draws, steps, noise=NOISE)
    return Problem("1-3-1 tanh, few points", "mlp:1-3-1,activation=tanh", source, hmc, thin)


def _wide(chains: int, draws: int, steps: int) -> Problem:
    return Problem("1-50-1 ReLU", "mlp:1-50-1", "snelson", HMC(chains, draws, draws, steps, noise=NOISE))


def _vi(epochs: int) -> VI:
    return VI(rate=0.02, epochs=epochs, batch_size=200, noise=NOISE)


def _ensemble(members: int, epochs: int) -> DeepEnsemble:
    return DeepEnsemble(members, MAP(rate=0.02, epochs=epochs, noise=NOISE))


def _flow(
    geometry: Geometry, width: int, epochs: int, batch: int, group: int = 64, function: float = 1.0, rate: float = 2e-3
) -> Recipe:
    plan = Plan(geometry, "ot", Architecture(width=width, depth=3, heads=4), group=group)
    return Recipe(plan, Matching(epochs, batch, rate, "adam", warm_up=100, average=0.995, function=function))


CASES = {
    "smoke": [
        Case(
            _small(8, 40, 8, "sine", 4),
            {EUCLIDEAN: _flow("euclidean", 16, 10, 32, 16)},
            _vi(200),
            _ensemble(3, 200),
            Annealing(32, 30, 4, pilot=16),
            samples=64,
            steps=4,
            weighed=32,
            weighed_steps=4,
        )
    ],
    "short": [
        Case(
            _small(32, 100, 32),
            {EUCLIDEAN: _flow("euclidean", 32, 40, 128)},
            _vi(1000),
            _ensemble(10, 1000),
            Annealing(64, 200, 8),
            samples=512,
            weighed=256,
            weighed_steps=8,
        )
    ],
    "paper": [
        Case(
            _small(64, 200, 64),
            {EUCLIDEAN: _flow("euclidean", 32, 120, 256)},
            _vi(3000),
            _ensemble(20, 2000),
            Annealing(256, 1000, 8),
            weighed=1024,
        ),
        Case(
            _wide(64, 300, 64),
            {
                EUCLIDEAN: _flow("euclidean", 64, 200, 64, 8, 10.0, 1e-3),
                GEOMETRIC: _flow("geometric", 64, 200, 64, 8, 10.0, 1e-3),
            },
            _vi(3000),
            _ensemble(20, 2000),
            Annealing(64, 2000, 8),
            weighed=64,
            weighed_steps=8,
        ),
    ],
}
