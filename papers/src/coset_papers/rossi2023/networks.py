"""The networks of the paper at each scale (rossi2023 Tables 1 to 3), and how they are measured.

The paper trains 1000 epochs; here are as many as take minutes. Its learning rate of 1e-6 is for the sum over n
training examples; ours is for their mean, hence 1e-6 n = 0.06 for MNIST and 0.05 for CIFAR10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coset import VI
from coset_papers.images import IMAGE_SETS
from coset_papers.rossi2023.barriers import PathMeasurement
from coset_papers.rossi2023.study import PosteriorStudy


@dataclass(frozen=True)
class NetworkSizes:
    """Of one scale: the images that stand for others, and for either network training, width and measurement.

    examples: of the residual networks' training, all when None. mlp_sweep, resnet_sweep: epochs in figures that train
    many networks.
    """

    images: Mapping[str, str]
    mlp: VI
    mlp_width: int
    mlp_measure: PathMeasurement
    mlp_sweep: int
    resnet: VI
    resnet_width: float
    resnet_measure: PathMeasurement
    resnet_sweep: int
    examples: int | None = None


SMALL = {"mnist": "digits", "fashion-mnist": "digits", "cifar10": "digits", "cifar100": "digit-pairs"}
SIZES = {
    "smoke": NetworkSizes(
        images=SMALL,
        mlp=VI("sgd", 0.1, epochs=30, batch_size=100, prior_variance=0.1),
        mlp_width=32,
        mlp_measure=PathMeasurement(points=9, samples=16, examples=200),
        mlp_sweep=15,
        resnet=VI("adam", 0.02, epochs=5, batch_size=50, prior_variance=0.1),
        resnet_width=0.25,
        resnet_measure=PathMeasurement(points=3, samples=2, examples=50),
        resnet_sweep=5,
        examples=700,
    ),
    "short": NetworkSizes(
        images={"cifar100": "mnist-pairs"},
        mlp=VI("sgd", 0.06, epochs=10, batch_size=250, prior_variance=0.0025),
        mlp_width=128,
        mlp_measure=PathMeasurement(points=9, samples=16, examples=2000),
        mlp_sweep=5,
        resnet=VI("sgd", 0.05, epochs=10, batch_size=100, prior_variance=0.05),
        resnet_width=0.5,
        resnet_measure=PathMeasurement(points=5, samples=4, examples=500),
        resnet_sweep=10,
        examples=5000,
    ),
    "paper": NetworkSizes(
        images={},
        mlp=VI("sgd", 0.06, epochs=300, batch_size=500, prior_variance=0.0025, precision="tf32"),
        mlp_width=512,
        mlp_measure=PathMeasurement(points=25, samples=128, examples=10_000, batch_size=10_000),
        mlp_sweep=100,
        resnet=VI("sgd", 0.05, epochs=100, batch_size=500, prior_variance=0.01, precision="bfloat16", compile=True),
        resnet_width=2,
        resnet_measure=PathMeasurement(points=25, samples=8, examples=2000, batch_size=2000),
        resnet_sweep=20,
    ),
}
PUBLISHED = "The paper trains 1000 epochs and draws 128 networks; its number is a curve in a plot."


def mlp(scale: str, data: str, width: int | None = None, replicas: int = 2, **changes: Any) -> PosteriorStudy:
    """Three hidden layers of the same width (Table 2); `changes` are those of `VI`."""
    sizes = SIZES[scale]
    name = sizes.images.get(data, data)
    source, n = IMAGE_SETS[name], width or sizes.mlp_width
    model = f"mlp:{source.pixels}-{n}-{n}-{n}-{source.classes}"
    return PosteriorStudy(name, model, replace(sizes.mlp, **changes), replicas)


def resnet(
    scale: str, data: str, width: float | None = None, norm: str = "frn", replicas: int = 2, **changes: Any
) -> PosteriorStudy:
    """ResNet20 with so many times 16 channels (Table 3)."""
    sizes = SIZES[scale]
    name = sizes.images.get(data, data)
    source, times = IMAGE_SETS[name], sizes.resnet_width if width is None else width
    options = f"width={times:g},norm={norm},in_channels={source.channels},classes={source.classes}"
    return PosteriorStudy(name, f"resnet20:{options}", replace(sizes.resnet, **changes), replicas, sizes.examples)


def measure_of(scale: str, study: PosteriorStudy) -> PathMeasurement:
    """How a study is measured."""
    sizes = SIZES[scale]
    return sizes.mlp_measure if study.model.startswith("mlp") else sizes.resnet_measure
