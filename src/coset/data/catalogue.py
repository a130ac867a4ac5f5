"""Data sets by name."""

from __future__ import annotations

import torch

from coset.core.errors import DataError
from coset.data import cifar, embedded, idx, regression, tiny_imagenet
from coset.data.dataset import DataSet

_IMAGES = {
    "digits": embedded.digits,
    "mnist": idx.mnist,
    "fashion-mnist": idx.fashion_mnist,
    "cifar10": cifar.cifar10,
    "tiny-imagenet": tiny_imagenet.tiny_imagenet,
}
_TABLES = {"breast-cancer": embedded.breast_cancer, "snelson": regression.snelson}
_UCI = {f"uci/{name}": name for name in regression.UCI_HASHES}


def names() -> tuple[str, ...]:
    """Every name that `load` knows."""
    return (*_IMAGES, "cifar100", *_TABLES, *_UCI)


def load(
    name: str,
    split: int | None = None,
    device: torch.device | str = "cpu",
    *,
    flatten: bool = False,
    coarse: bool = False,
) -> DataSet:
    """The data set `name` (see `names`) on `device`, standardized by its training statistics.

    Images are float32 (n, channels, height, width), normalized by the training set's published mean
    and deviation of each channel; `flatten` makes them (n, pixels). Tables are float32 (n, features).
    Targets are int64 (n,) classes or float32 (n, 1) values. `split` chooses one of the standard splits
    of a UCI set, the first by default; `coarse` chooses CIFAR-100's 20 groups instead of its classes.

    Files are sought in $COSET_DATA, ~/.cache/coset and /usr/share/datasets, and downloaded to the
    second if they are in none; each must have its published hash. Tiny ImageNet has none, and must be
    put there.
    """
    if name not in names():
        raise DataError(f"there is no data set {name!r}, only {', '.join(names())}")
    if split is not None and name not in _UCI:
        raise DataError(f"{name} has one split only, so split={split} cannot be chosen")
    if coarse and name != "cifar100":
        raise DataError(f"{name} has no coarse labels, only cifar100 has")
    _require(device)
    return _build(name, split or 0, flatten, coarse).to(device)


def _build(name: str, split: int, flatten: bool, coarse: bool) -> DataSet:
    if name in _UCI:
        return regression.uci(_UCI[name], split)
    if name in _TABLES:
        return _TABLES[name]()
    if name == "cifar100":
        return cifar.cifar100(flatten=flatten, coarse=coarse)
    return _IMAGES[name](flatten=flatten)


def _require(device: torch.device | str) -> None:
    """Find out before reading half a gigabyte that it has nowhere to go."""
    try:
        torch.empty(0, device=device)
    # A build without CUDA says so with an AssertionError.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"the device {str(device)!r} cannot be used: {reason}") from error
