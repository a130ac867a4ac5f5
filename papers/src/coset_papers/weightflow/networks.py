"""The networks and flows of the image exhibits at each scale: all numbers to change.

The thesis learns from iterations of 50 runs; ours from tens of thousands of independent runs, each coupled with its own
start, with a transformer of one token a unit, and errors of velocities also count by what they do to outputs. A step on
1024 networks 784-10-10 of the transformer of width 512 and depth 8, which has 39 million weights, is 1.8 TFLOP.

Networks with weights between hidden units decay more as they are trained, at scale paper briefly and at a lower rate,
which is warmed up to. Then an end has less of the noise of its start, and depends on it more smoothly: see
docs/flows.md, "How to learn faster". And there are more of them, since a flow knows few by heart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coset import Collect
from coset.flow.matching import FlowPlan, Matching
from coset.flow.velocity_network import Architecture
from coset_papers.weightflow.published import FLOWS
from coset_papers.weightflow.study import FlowRecipe, Subject

GEOMETRIC, EUCLIDEAN = "Geometric", "Euclidean"
TITLES = {"digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}


@dataclass(frozen=True)
class Ablation:
    """Flows that are learned more briefly than `FlowSizes.ours`, each for about the same time.

    base: what the others differ from in one thing. populations: numbers of networks that are fewer. trajectories: of
    the thesis's runs. relational, transport: take longer for each network, so they see fewer. widths: of the
    transformer, up to that of `base`. decay: a larger weight decay for the networks.
    """

    base: FlowRecipe
    populations: tuple[int, ...]
    trajectories: FlowRecipe
    relational: FlowRecipe
    transport: FlowRecipe
    widths: tuple[int, ...]
    decay: float


@dataclass(frozen=True)
class Steering:
    """strengths, factors: of guidance, relative to the velocity and of the gradient as it is, by each number of
    `gradients`, on `examples`. rates: of gradient descent, for `steps` steps on batches of `batch`, seen every `every`
    of them.
    """

    strengths: tuple[float, ...]
    factors: tuple[float, ...]
    gradients: tuple[int, ...]
    examples: int
    rates: tuple[float, ...]
    batch: int
    steps: int
    every: int


STEERING = Steering(
    strengths=(1.0, 2.0, 4.0, 8.0, 16.0),
    factors=(3.0, 10.0, 30.0),
    gradients=(64, 256),
    examples=128,
    rates=(0.03, 0.1, 0.3, 1.0),
    batch=128,
    steps=256,
    every=8,
)
FINISH = Steering(
    strengths=(0.1, 0.3),
    factors=(),
    gradients=(64,),
    examples=256,
    rates=(0.03, 0.1, 0.3, 1.0),
    batch=256,
    steps=64,
    every=64,
)


@dataclass(frozen=True)
class Widths:
    """flow: learned from `networks` of each of `several`, the first of which is that of Table 2, and sampled for
    `sampled` hidden units, of which the last is the one that was published.
    """

    flow: FlowRecipe
    several: tuple[Subject, ...]
    sampled: tuple[Subject, ...]


@dataclass(frozen=True)
class FlowSizes:
    """Of one scale.

    subject, ours: the networks of Table 2 and our flows, the first being the one of the other exhibits. thesis, theirs:
    those of the thesis, as it learned them. other: images that the flow is guided on. deep, cnn: other networks, and
    their flows. finish: gradients of their own loss that samples of those are given. count: samples that are measured;
    near: those whose nearest training network is looked for. steps: of Heun's method. fewer_steps: those of flows that
    are compared with one another only, and of the thesis's, whose networks take long. solvers: others that are compared
    with Heun's.
    """

    subject: Subject
    ours: Mapping[str, FlowRecipe]
    thesis: Subject
    theirs: Mapping[str, FlowRecipe]
    ablation: Ablation
    other: str
    steering: Steering
    widths: Widths
    deep: tuple[Subject, FlowRecipe]
    cnn: tuple[Subject, FlowRecipe]
    finish: Steering
    count: int
    near: int
    steps: int
    fewer_steps: int
    solvers: tuple[tuple[str, int], ...]


def title(subject: Subject) -> str:
    """Network and data in words."""
    name = "CNN" if subject.model.endswith(":TwoConvNet") else subject.model.removeprefix("mlp:")
    return f"{name}, {TITLES[subject.data]}"


def absent(subject: Subject) -> str:
    """A sentence on images that stand for those of the thesis, whose numbers then say nothing; empty if they do."""
    return "Digits stand for MNIST, so the published number is no measure." if subject.data == "digits" else ""


def hidden(subject: Subject) -> int:
    """The number of hidden units of an MLP with one hidden layer."""
    return int(subject.model.split("-")[1])


def _ours(architecture: Architecture, matching: Matching, briefer: Matching) -> dict[str, FlowRecipe]:
    """The Euclidean one is learned more briefly at scale paper; `Ablation` compares geometries at an equal budget."""
    return {
        GEOMETRIC: FlowRecipe(FlowPlan("geometric", "training", architecture), matching),
        EUCLIDEAN: FlowRecipe(FlowPlan("euclidean", "training", architecture), briefer),
    }


def _theirs(architecture: Architecture, matching: Matching, longer: int) -> dict[str, FlowRecipe]:
    """End points are predicted, at times of Beta(1, 2), with noise on the path. longer: epochs of the best one."""
    plain = replace(matching, times="beta", noise=1e-3, function=0.0)
    plans = {
        "Euclidean, OT": FlowPlan("euclidean", "ot", architecture, "endpoint"),
        "Normalized": FlowPlan("normalized", "independent", architecture, "endpoint"),
        "Geometric, OT": FlowPlan("geometric", "ot", architecture, "endpoint"),
    }
    best = max(FLOWS, key=FLOWS.__getitem__)
    epochs = {name: longer if name == best else matching.epochs for name in plans}
    return {name: FlowRecipe(plan, replace(plain, epochs=epochs[name]), outputs=False) for name, plan in plans.items()}


def _ablation(
    base: FlowRecipe,
    populations: tuple[int, ...],
    trajectories: int,
    relational: tuple[Architecture, int, int],
    transport: int,
    widths: tuple[int, ...],
    decay: float,
) -> Ablation:
    """Numbers are epochs; of the relational network those and the batch size."""

    def longer(epochs: int) -> FlowRecipe:
        return replace(base, matching=replace(base.matching, epochs=epochs))

    architecture, epochs, batch = relational
    return Ablation(
        base,
        populations,
        longer(trajectories),
        replace(
            base,
            plan=replace(base.plan, architecture=architecture),
            matching=replace(base.matching, epochs=epochs, batch_size=batch, compile=False),
        ),
        replace(longer(transport), plan=replace(base.plan, coupling="ot")),
        widths,
        decay,
    )


def _several(recipe: FlowRecipe, networks: int) -> FlowRecipe:
    """Errors of outputs are those of one model, and each width would be compiled for itself."""
    return replace(recipe, outputs=False, networks=networks, matching=replace(recipe.matching, compile=False))


def _widths(subject: Subject, recipe: FlowRecipe, networks: int, several: tuple[int, ...], wider: int) -> Widths:
    def wide(units: int) -> Subject:
        ends = subject.model.split("-")
        return replace(subject, model=f"{ends[0]}-{units}-{ends[2]}", runs=networks, fresh=min(subject.fresh, 256))

    return Widths(
        _several(recipe, networks),
        (subject, *map(wide, several)),
        tuple(sorted((subject, *map(wide, (*several, wider))), key=hidden)),
    )


def _smoke() -> FlowSizes:
    training = Collect(epochs=8, chunk=256)
    subject = Subject("mlp:64-10-10", "digits", 256, training, fresh=64)
    units = Architecture("units", 32, 2, 4)
    brief = Matching(epochs=24, batch_size=64, optimizer="adam", rate=3e-3, warm_up=10, average=0.9)
    base = FlowRecipe(FlowPlan("geometric", "training", units), replace(brief, epochs=3))
    return FlowSizes(
        subject=subject,
        ours=_ours(units, brief, brief),
        thesis=Subject(
            "mlp:64-10-10",
            "digits",
            4,
            Collect(epochs=3, weight_decay=0.0, every=4, skip=1),
            fresh=64,
            deviation=0.1,
        ),
        theirs=_theirs(Architecture("relational", 8, 2), replace(brief, epochs=3, batch_size=16), 3),
        ablation=_ablation(base, (64,), 3, (Architecture("relational", 8, 1), 1, 64), 1, (16, 32), 0.01),
        other="digits",
        steering=Steering(
            strengths=(2.0, 8.0),
            factors=(10.0,),
            gradients=(8, 16),
            examples=32,
            rates=(0.3,),
            batch=32,
            steps=24,
            every=8,
        ),
        widths=_widths(subject, base, 64, (8,), 16),
        deep=(replace(subject, model="mlp:64-8-8-10", runs=64), base),
        cnn=(
            replace(
                subject,
                model="coset_papers.weightflow.two_conv_net:TwoConvNet",
                runs=64,
                training=replace(training, epochs=2),
            ),
            base,
        ),
        finish=Steering(
            strengths=(0.3,), factors=(), gradients=(4,), examples=32, rates=(0.1,), batch=32, steps=4, every=4
        ),
        count=64,
        near=64,
        steps=4,
        fewer_steps=2,
        solvers=(("heun", 2), ("euler", 4)),
    )


def _short() -> FlowSizes:
    training = Collect(chunk=2048)
    subject = Subject("mlp:64-10-10", "digits", 2048, training, fresh=256)
    units = Architecture("units", 128, 4)
    brief = Matching(epochs=40, optimizer="adam", rate=1e-3, warm_up=50)
    base = FlowRecipe(FlowPlan("geometric", "training", units), replace(brief, epochs=30))
    # Weights between hidden units: 4,600 and 3,600 steps, more than a wider transformer could take in this time.
    inner = replace(brief, batch_size=64, optimizer="muon", rate=0.02, level=True)
    narrow = FlowRecipe(FlowPlan("geometric", "training", Architecture("units", 64, 4)), inner)
    forgetting = replace(training, weight_decay=0.01)
    return FlowSizes(
        subject=subject,
        ours=_ours(units, brief, brief),
        thesis=Subject(
            "mlp:64-10-10",
            "digits",
            50,
            Collect(weight_decay=0.0, every=10, skip=5),
            fresh=256,
            deviation=0.1,
        ),
        theirs=_theirs(Architecture("relational", 16, 3), replace(brief, epochs=8, batch_size=64), 8),
        ablation=_ablation(base, (256, 1024), 55, (Architecture("relational", 16, 3), 20, 64), 24, (32, 64, 128), 0.01),
        other="digits",
        steering=STEERING,
        widths=_widths(subject, base, 1024, (8, 16), 32),
        deep=(
            replace(subject, model="mlp:64-16-16-10", runs=8192, training=replace(forgetting, chunk=8192)),
            replace(narrow, matching=replace(inner, epochs=36)),
        ),
        cnn=(
            replace(
                subject,
                model="coset_papers.weightflow.two_conv_net:TwoConvNet",
                runs=4096,
                training=replace(
                    forgetting, weight_decay=0.02, schedule="onecycle", epochs=8, batch_size=32, chunk=4096
                ),
            ),
            replace(narrow, matching=replace(inner, epochs=56)),
        ),
        finish=FINISH,
        count=256,
        near=256,
        steps=32,
        fewer_steps=32,
        solvers=(("heun", 8), ("heun", 100), ("euler", 32), ("euler", 100)),
    )


def _paper() -> FlowSizes:
    training = Collect(precision="tf32", chunk=8192)
    subject = Subject("mlp:784-10-10", "mnist", 24576, training, fresh=1024)
    units = Architecture("units", 512, 8, heads=4)
    # 48 steps in an epoch: 38,000 of them.
    long = Matching(epochs=800, batch_size=512, optimizer="adam", precision="bfloat16", compile=True)
    # Weights between hidden units: 38,000 and 21,000 steps.
    slowly = replace(training, rate=0.03, weight_decay=0.005, schedule="onecycle")
    inner = replace(long, batch_size=256, optimizer="muon", rate=0.01, level=True, unseen=256)
    # 4,000 steps.
    smaller = FlowPlan("geometric", "training", Architecture("units", 256, 6, heads=4))
    base = FlowRecipe(smaller, replace(long, epochs=84))
    relational = Architecture("relational", 32, 5)
    return FlowSizes(
        subject=subject,
        ours=_ours(units, long, replace(long, epochs=80)),
        # Unsaid in the thesis: schedule and weight decay. Its starts are N(0, 0.1 I). Only with a falling rate and 0.1
        # as the deviation are networks as accurate as its 0.933; with the variance they are at 0.87.
        thesis=Subject(
            "mlp:784-10-10",
            "mnist",
            50,
            Collect(weight_decay=0.0, every=10, skip=5),
            fresh=1024,
            deviation=0.1,
        ),
        theirs=_theirs(relational, replace(long, epochs=1, batch_size=64, rate=1e-3, warm_up=100, compile=False), 3),
        ablation=_ablation(base, (2048, 8192), 44, (relational, 2, 256), 6, (64, 128, 256), 0.002),
        other="fashion-mnist",
        steering=replace(
            STEERING, factors=(1.0, 3.0, 10.0), examples=512, rates=(0.01, 0.03, 0.1, 0.3), steps=512, every=32
        ),
        widths=_widths(subject, base, 8192, (8, 16), 32),
        deep=(
            replace(
                subject,
                model="mlp:784-32-32-10",
                runs=49152,
                training=replace(slowly, weight_decay=0.006, epochs=8, chunk=49152),
                fresh=512,
            ),
            FlowRecipe(smaller, replace(inner, epochs=200)),
        ),
        cnn=(
            Subject(
                "coset_papers.weightflow.two_conv_net:TwoConvNet",
                "fashion-mnist",
                49152,
                replace(slowly, rate=0.04, weight_decay=0.004, epochs=1, batch_size=32, chunk=49152, compile=True),
                fresh=256,
            ),
            FlowRecipe(smaller, replace(inner, epochs=110)),
        ),
        finish=FINISH,
        count=1024,
        near=256,
        steps=100,
        fewer_steps=16,
        solvers=(("heun", 8), ("heun", 32), ("euler", 32), ("euler", 100)),
    )


SIZES = {"smoke": _smoke(), "short": _short(), "paper": _paper()}
