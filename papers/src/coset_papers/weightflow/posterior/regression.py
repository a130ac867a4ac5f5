"""A network whose posterior is sampled by Markov chains: its data, the chains, and flows that learn from them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coset import HMC, Ensemble, Epoch, Symmetry, data, fit, on_epoch, symmetry, zoo
from coset.core.state import State
from coset.data import Split
from coset.flow.flow import Flow
from coset.flow.matching import FlowPlan, Matching
from coset.weightspace.canonical_scales import exact_scalings, signs
from coset_papers.ledger import seconds_of
from coset_papers.rossi2023.snelson import sine
from coset_papers.settings import Settings

FOLDS = 5  # one in so many points is held out where a set has no test targets
SAID = 5  # times that chains or a flow are heard of


@dataclass(frozen=True)
class BayesianRegression:
    """A regression y = f(x; w) + noise e with w ~ N(0, prior_variance), noise and prior of `hmc`.

    model: of the zoo. source: a data set, or "sine", which needs no file. thin: one in so many points is trained on.
    """

    title: str
    model: str
    source: str
    hmc: HMC
    thin: int = 1

    @property
    def noise(self) -> float:
        assert self.hmc.noise is not None
        return self.hmc.noise

    @property
    def prior_std(self) -> float:
        return math.sqrt(self.hmc.prior_variance)

    @cached_property
    def sym(self) -> Symmetry:
        """The symmetry of the model."""
        model = self.build()
        return symmetry(model, zoo.example_input(model))

    @property
    def odd_units(self) -> int:
        """How many units have a free sign."""
        return sum(one.copies * one.size for one in exact_scalings(self.sym, "sign"))

    def build(self) -> nn.Module:
        """The model; its own weights do not count."""
        return zoo.build(self.model)

    def splits(self, settings: Settings) -> tuple[Split, Split]:
        """Training and test examples on the device."""
        if self.source == "sine":
            whole, test = sine(), None
        else:
            sets = data.load(self.source)
            whole, test = sets.train, None if sets.test.targets.isnan().any() else sets.test
        if test is None:
            is_test = torch.arange(len(whole)) % FOLDS == FOLDS // 2
            whole, test = (Split(whole.inputs[at], whole.targets[at]) for at in (~is_test, is_test))
        train = Split(whole.inputs[:: self.thin], whole.targets[:: self.thin])
        return train.to(settings.device), test.to(settings.device)

    def chains(self, settings: Settings) -> tuple[Ensemble, float]:
        """All draws, chain after chain, and the seconds that they took; those that were drawn before are read."""
        folder = settings.folder("weightflow-posterior-hmc", **self.key())

        def text(epoch: Epoch) -> str | None:
            return f"{self.title}: chains, draw {epoch.epoch} of {epoch.epochs}" if epoch.copy == 0 else None

        spent = settings.working(folder)
        (q,) = fit(
            self.build(),
            self.splits(settings)[0],
            self.hmc,
            1,
            settings.seed,
            settings.device,
            out=folder,
            progress=on_epoch(settings.listener(text, SAID)),
        )
        assert isinstance(q, Ensemble)
        seconds = seconds_of(folder)
        spent(seconds)
        return q, seconds

    def halves(self, settings: Settings) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The draws of the first half of the chains, which flows learn from, and of the others."""
        q, _ = self.chains(settings)
        middle = len(q) // self.hmc.chains * (self.hmc.chains // 2)
        first, second = (
            {name: x[at] for name, x in q.population.items()} for at in (slice(middle), slice(middle, None))
        )
        return first, second

    def canonical_signs(self, population: State) -> dict[str, Tensor]:
        """The networks with the signs that `coset.canonicalize` gives them."""
        return self.sym.act(signs(population, self.sym), population)

    def key(self) -> dict[str, object]:
        """All that the chains depend on."""
        return {key: value for key, value in asdict(self).items() if key != "title"}


@dataclass(frozen=True)
class ChainFlowRecipe:
    """A flow and how it is learned; errors of outputs count as much as `matching` says."""

    plan: FlowPlan
    matching: Matching

    def flow(self, settings: Settings, problem: BayesianRegression) -> tuple[Flow, float]:
        """The flow of the first half of the chains, and the seconds that it took; one that is kept is read.

        Units of an odd activation get canonical signs, since the field knows the order of units but not their signs.
        """
        folder = settings.folder("weightflow-posterior-flow", problem=problem.key(), recipe=asdict(self))
        file = folder / "flow.safetensors"
        if file.exists():
            return Flow.load(file, settings.device), seconds_of(folder)
        draws = problem.canonical_signs(problem.halves(settings)[0])
        train, _ = problem.splits(settings)
        about = f"{problem.title}: {self.plan.geometry} flow"

        def text(epoch: Epoch) -> str:
            return f"{about}, epoch {epoch.epoch} of {epoch.epochs}, loss {epoch.loss:.4f}"

        spent = settings.working(folder)
        flow = Flow.of(problem.sym, self.plan).fit(
            draws,
            self.matching,
            model=problem.build(),
            data=train,
            seed=settings.seed,
            device=settings.device,
            out=folder,
            progress=on_epoch(settings.listener(text, SAID)),
        )
        seconds = seconds_of(folder)
        spent(seconds)
        flow.save(file)
        return flow, seconds
