"""The images of the experiments, by name: those of `coset.data`, and pairs of digits, which have a hundred classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from coset import data
from coset.data import Split
from coset_papers.examples import some

PAIRS = {"digit-pairs": "digits", "mnist-pairs": "mnist"}


@dataclass(frozen=True)
class Source:
    """What a network must know: numbers of pixels with their channels, of channels, classes and training examples."""

    title: str
    pixels: int
    channels: int
    classes: int
    examples: int


SOURCES = {
    "digits": Source("digits 8x8", 64, 1, 10, 1442),
    "digit-pairs": Source("pairs of digits 8x8", 128, 1, 100, 1442),
    "mnist": Source("MNIST", 784, 1, 10, 60_000),
    "mnist-pairs": Source("pairs of MNIST digits", 1568, 1, 100, 60_000),
    "fashion-mnist": Source("Fashion-MNIST", 784, 1, 10, 60_000),
    "cifar10": Source("CIFAR10", 3072, 3, 10, 50_000),
    "cifar100": Source("CIFAR100", 3072, 3, 100, 50_000),
}


@dataclass(frozen=True, eq=False)
class Parts:
    """Training and test examples."""

    train: Split
    test: Split


@lru_cache(maxsize=2)  # a figure has several networks on the same images
def load(name: str, device: str, examples: int | None = None) -> Parts:
    """The images on the device; so many of the training examples, all when None."""
    found = data.load(PAIRS.get(name, name), device=device)
    train, test = found.train, found.test
    if name in PAIRS:
        train, test = pairs(train), pairs(test)
    return Parts(train if examples is None else some(train, examples), test)


def pairs(split: Split) -> Split:
    """Each image beside another one, in the class 10 a + b."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0)).to(split.inputs.device)
    inputs = torch.cat((split.inputs, split.inputs[order]), dim=-1)
    return Split(inputs, 10 * split.targets + split.targets[order])
