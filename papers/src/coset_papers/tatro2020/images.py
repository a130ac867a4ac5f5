"""The images of the experiments, by their names in `coset.data`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

from coset import data
from coset.core.errors import DataError
from coset.data import DataSet, tiny_imagenet
from coset_papers.examples import some


@dataclass(frozen=True)
class Source:
    """What a network must know."""

    title: str
    channels: int
    classes: int


SOURCES = {
    "digits": Source("digits 8x8", 1, 10),
    "cifar10": Source("CIFAR10", 3, 10),
    "cifar100": Source("CIFAR100", 3, 100),
    "tiny-imagenet": Source("Tiny ImageNet", 3, 200),
}


@lru_cache(maxsize=2)  # a table has several networks on the same images
def load(name: str, device: str, examples: int | None = None) -> DataSet:
    """The images on the device; so many of the training examples, all when None."""
    found = data.load(name, device=device)
    return found if examples is None else replace(found, train=some(found.train, examples))


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
