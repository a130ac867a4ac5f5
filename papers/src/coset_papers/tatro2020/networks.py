"""The networks of the paper at each scale (tatro2020 Section 4), and how they are measured: all numbers to change.

The paper trains networks and curves for 250 epochs each, with a rate that is halved every 20; here it falls along a
cosine, to zero, in fewer. For curves it takes 0.01 (0.1 for CIFAR100); 0.03 makes up for fewer epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coset import MAP, PAM, PGD, Connect
from coset_papers.images import IMAGE_SETS, available
from coset_papers.tatro2020.curve_losses import CurveMeasurement
from coset_papers.tatro2020.study import CurvePlan, CurveStudy

SMALL, TINYTEN, RESNET, GOOGLENET = "Small", "TinyTen", "ResNet32", "GoogLeNet"
EPOCHS = 250  # of the paper


@dataclass(frozen=True)
class CurveSizes:
    """Of one scale.

    images: what there is a column for; the first is always used, and others if their files are there. plans: by
    network, of which the first is in every figure. robust: adversarial training, of the first network. grid_rates,
    grid_batches, grid_epochs: of Table 3. examples: of training, all when None.
    """

    images: tuple[str, ...]
    plans: Mapping[str, CurvePlan]
    robust: CurvePlan
    grid_rates: tuple[float, ...]
    grid_batches: tuple[int, ...]
    grid_epochs: int
    measure: CurveMeasurement
    plane: CurveMeasurement
    examples: int | None = None


BRIEF = MAP("sgd", 0.1, epochs=4, batch_size=64)
BRIEF_CURVE = Connect("sgd", 0.03, epochs=2, batch_size=64)
LONG = MAP("sgd", 0.1, epochs=30, augment=True, precision="tf32")
LONG_CURVE = Connect("sgd", 0.03, epochs=30, augment=True, precision="tf32")
SIZES = {
    "smoke": CurveSizes(
        images=("digits",),
        plans={
            SMALL: CurvePlan(
                "coset_papers.tatro2020.three_conv_net:ThreeConvNet",
                1,
                BRIEF,
                BRIEF_CURVE,
                PAM(epochs=1, terms=2, samples=2),
            )
        },
        robust=CurvePlan(
            "coset_papers.tatro2020.three_conv_net:ThreeConvNet",
            1,
            replace(BRIEF, epochs=3),
            replace(BRIEF_CURVE, epochs=1),
            attack=PGD(steps=2, step=4 / 255),
        ),
        grid_rates=(0.01, 0.1),
        grid_batches=(64,),
        grid_epochs=1,
        measure=CurveMeasurement(points=7, examples=300, repair=300),
        plane=CurveMeasurement(points=7, examples=100, repair=100),
        examples=700,
    ),
    "short": CurveSizes(
        images=("cifar10",),
        plans={
            TINYTEN: CurvePlan(
                "tinyten",
                1,
                MAP("sgd", 0.1, epochs=10, augment=True),
                Connect("sgd", 0.03, epochs=10, augment=True),
                PAM(epochs=3, samples=4),
            )
        },
        robust=CurvePlan(
            "tinyten",
            1,
            MAP("sgd", 0.1, epochs=6, augment=True),
            Connect("sgd", 0.03, epochs=4, augment=True),
            attack=PGD(steps=2, step=4 / 255),
        ),
        grid_rates=(0.01, 0.1, 0.5),
        grid_batches=(64, 256),
        grid_epochs=4,
        measure=CurveMeasurement(points=11, examples=2000, repair=1000),
        plane=CurveMeasurement(points=11, examples=500, repair=500),
        examples=5000,
    ),
    "paper": CurveSizes(
        images=("cifar10", "cifar100", "tiny-imagenet"),
        plans={
            TINYTEN: CurvePlan("tinyten", 3, LONG, LONG_CURVE, PAM(epochs=5)),
            RESNET: CurvePlan("resnet32", 1, LONG, replace(LONG_CURVE, epochs=20), PAM(epochs=4)),
            GOOGLENET: CurvePlan(
                "googlenet",
                1,
                replace(LONG, epochs=6, precision="bfloat16"),
                replace(LONG_CURVE, epochs=4, precision="bfloat16"),
            ),
        },
        robust=CurvePlan(
            "tinyten",
            1,
            replace(LONG, epochs=10),
            replace(LONG_CURVE, epochs=6),
            attack=PGD(epsilon=8 / 255, steps=7, step=2 / 255),
        ),
        grid_rates=(0.01, 0.1, 0.5),
        grid_batches=(64, 128, 256),
        grid_epochs=10,
        measure=CurveMeasurement(points=15, examples=10_000, repair=5000),
        plane=CurveMeasurement(points=15, examples=2000, repair=2000),
    ),
}


def present(scale: str) -> tuple[str, ...]:
    """The images of a scale whose files are there."""
    first, *others = SIZES[scale].images
    return first, *(name for name in others if available(name))


def study(scale: str, images: str, network: str | None = None) -> CurveStudy:
    """A network, the first when None, on the images that are wanted, or on the first if those are not there."""
    sizes, names = SIZES[scale], present(scale)
    network = network or next(iter(sizes.plans))
    return CurveStudy(network, images if images in names else names[0], sizes.plans[network], sizes.examples)


def robust(scale: str, images: str) -> CurveStudy:
    """The network that is trained under attack."""
    return replace(study(scale, images), plan=SIZES[scale].robust)


def single(scale: str, images: str, network: str | None = None) -> CurveStudy:
    """One pair, for figures of one curve."""
    whole = study(scale, images, network)
    return replace(whole, plan=replace(whole.plan, pairs=1))


def absent(used: str, published: str) -> str:
    """A sentence on images that the paper has here and this scale has not; empty if it has."""
    if used == published:
        return ""
    titles = IMAGE_SETS[used].title, IMAGE_SETS[published].title
    return f"{titles[0]} stands for {titles[1]}."


def shorter(study: CurveStudy) -> str:
    """A sentence on how long ours were trained."""
    plan = study.plan
    return (
        f"{study.title}: ours are {plan.ends.epochs} epochs for networks and {plan.curves.epochs} for curves, "
        f"{plan.pairs} {'pair' if plan.pairs == 1 else 'pairs'}; the paper's {EPOCHS} and {EPOCHS}, 3 pairs."
    )
