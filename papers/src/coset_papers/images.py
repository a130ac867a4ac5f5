"""The images that networks are trained on: those of `coset.data`, and pairs of digits, which have a hundred classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

import torch

from coset import data
from coset.core.errors import DataError
from coset.data import DataSet, Split, tiny_imagenet
from coset_papers.examples import some

PAIRS = {"digit-pairs": "digits", "mnist-pairs": "mnist"}


@dataclass(frozen=True)
class ImageSet:
    """What a network must know: numbers of pixels with their channels, of channels, classes and training examples."""

    title: str
    pixels: int
    channels: int
    classes: int
    examples: int


IMAGE_SETS = {
    "digits": ImageSet("digits 8x8", 64, 1, 10, 1442),
    "digit-pairs": ImageSet("pairs of digits 8x8", 128, 1, 100, 1442),
    "mnist": ImageSet("MNIST", 784, 1, 10, 60_000),
    "mnist-pairs": ImageSet("pairs of MNIST digits", 1568, 1, 100, 60_000),
    "fashion-mnist": ImageSet("Fashion-MNIST", 784, 1, 10, 60_000),
    "cifar10": ImageSet("CIFAR10", 3072, 3, 10, 50_000),
    "cifar100": ImageSet("CIFAR100", 3072, 3, 100, 50_000),
    "tiny-imagenet": ImageSet("Tiny ImageNet", 12_288, 3, 200, 100_000),
}


@lru_cache(maxsize=2)  # a figure has several networks on the same images
def load(name: str, device: str, examples: int | None = None) -> DataSet:
    """The images on the device; so many of the training examples, all when None."""
    images = data.load(PAIRS.get(name, name), device=device)
    if name in PAIRS:
        images = replace(images, train=pairs(images.train), test=pairs(images.test))
    return images if examples is None else replace(images, train=some(images.train, examples))


def pairs(split: Split) -> Split:
    """Each image beside another one, in the class 10 a + b."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0)).to(split.inputs.device)
    inputs = torch.cat((split.inputs, split.inputs[order]), dim=-1)
    return Split(inputs, 10 * split.targets + split.targets[order])


@cache
def available(name: str) -> bool:
    """Whether the files of a data set are there, or can be downloaded."""
    if name == "tiny-imagenet":  # of which there are too many to try
        return tiny_imagenet.present()
    try:
        data.load(name)
    except DataError:
        return False
    return True
