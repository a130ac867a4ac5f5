"""Which posteriors are sampled, by scale, and how."""

from __future__ import annotations

from dataclasses import dataclass

from coset import HMC, MAP, VI, DeepEnsemble
from coset.flow.coordinates import Geometry
from coset.flow.matching import FlowPlan, Matching
from coset.flow.velocity_network import Architecture
from coset_papers.weightflow.posterior.annealing import Annealing
from coset_papers.weightflow.posterior.regression import BayesianRegression, ChainFlowRecipe

NOISE = 0.3  # of standardized targets, as in `python -m bench hmc`
EUCLIDEAN, GEOMETRIC = "Euclidean flow", "geometric flow"


@dataclass(frozen=True)
class PosteriorCase:
    """A posterior, flows of it by name, what they are compared with, and how many draws are measured.

    samples: networks that predict, and that distances are measured with. weighed: networks whose densities are
    computed, in so many steps. trajectories: how many of these, of `leaps` gradients each, draws of a flow go on for.
    """

    problem: BayesianRegression
    flows: dict[str, ChainFlowRecipe]
    vi: VI
    ensemble: DeepEnsemble
    annealing: Annealing
    samples: int = 1024
    steps: int = 16
    weighed: int = 512
    weighed_steps: int = 12
    trajectories: tuple[int, ...] = (8, 32, 128)
    leaps: int = 8


def _small(
    chains: int, draws: int, warm_up: int, steps: int, source: str = "snelson", thin: int = 6
) -> BayesianRegression:
    hmc = HMC(chains, draws, warm_up, steps, noise=NOISE)
    return BayesianRegression("1-3-1 tanh, few points", "mlp:1-3-1,activation=tanh", source, hmc, thin)


def _wide(chains: int, draws: int, warm_up: int, steps: int) -> BayesianRegression:
    return BayesianRegression("1-50-1 ReLU", "mlp:1-50-1", "snelson", HMC(chains, draws, warm_up, steps, noise=NOISE))


def _vi(epochs: int) -> VI:
    return VI(rate=0.02, epochs=epochs, batch_size=200, noise=NOISE)


def _ensemble(members: int, epochs: int) -> DeepEnsemble:
    return DeepEnsemble(members, MAP(rate=0.02, epochs=epochs, noise=NOISE))


def _flow(geometry: Geometry, width: int, epochs: int, batch: int, group: int) -> ChainFlowRecipe:
    """Of a few units."""
    plan = FlowPlan(geometry, "ot", Architecture(width=width, depth=3, heads=4), group=group)
    return ChainFlowRecipe(plan, Matching(epochs, batch, 2e-3, "adam", warm_up=100, average=0.995, function=1.0))


def _wide_flow(geometry: Geometry) -> ChainFlowRecipe:
    """Of many units, whose outputs must add up: errors of outputs count more. Each start has its units matched."""
    plan = FlowPlan(geometry, "ot", Architecture(width=128, depth=4, heads=4), group=1)
    return ChainFlowRecipe(plan, Matching(120, 512, 0.01, average=0.998, function=10.0, precision="tf32"))


CASES = {
    "smoke": [
        PosteriorCase(
            _small(8, 40, 40, 8, "sine", 4),
            {EUCLIDEAN: _flow("euclidean", 16, 10, 32, 16)},
            _vi(200),
            _ensemble(3, 200),
            Annealing(32, 30, 4, pilot=16),
            samples=64,
            steps=4,
            weighed=32,
            weighed_steps=4,
            trajectories=(2, 4),
        )
    ],
    "short": [
        PosteriorCase(
            _small(64, 200, 200, 32),
            {EUCLIDEAN: _flow("euclidean", 32, 200, 256, 16)},
            _vi(1000),
            _ensemble(10, 1000),
            Annealing(256, 300, 8),
            samples=512,
        )
    ],
    "paper": [
        PosteriorCase(
            _small(512, 64, 200, 64),
            {EUCLIDEAN: _flow("euclidean", 64, 200, 512, 64)},
            _vi(3000),
            _ensemble(20, 2000),
            Annealing(1024, 1000, 8),
            weighed=1024,
        ),
        PosteriorCase(
            _wide(1024, 64, 300, 64),
            {EUCLIDEAN: _wide_flow("euclidean"), GEOMETRIC: _wide_flow("geometric")},
            _vi(3000),
            _ensemble(20, 2000),
            Annealing(1024, 2000, 8),
            weighed=256,
        ),
    ],
}
