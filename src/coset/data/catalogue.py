"""Data sets by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable

import torch

from coset.core.errors import DataError
from coset.data.dataset import DataSet
from coset.data.regression import UCI_HASHES

LOADERS = {
    "digits": "scikit_learn:digits",
    "mnist": "mnist:mnist",
    "fashion-mnist": "mnist:fashion_mnist",
    "cifar10": "cifar:cifar10",
    "tiny-imagenet": "tiny_imagenet:tiny_imagenet",
    "cifar100": "cifar:cifar100",
    "tinyshakespeare": "tiny_shakespeare:tiny_shakespeare",
    "breast-cancer": "scikit_learn:breast_cancer",
    "snelson": "regression:snelson",
    **dict.fromkeys(UCI_HASHES, "regression:uci"),
}
"""Name -> file of this folder and the function in it, which may take the options of `load`."""

CONTEXT = 256  # characters in a window


def names() -> tuple[str, ...]:
    """Every name that `coset.data.load` knows.

    Returns:
        The names, such as "digits" and "uci/boston".

    Example:
        >>> "digits" in coset.data.names()
        True
    """
    return tuple(LOADERS)


def load(
    name: str,
    split: int | None = None,
    device: torch.device | str = "cpu",
    *,
    flatten: bool = False,
    coarse: bool = False,
    context: int | None = None,
) -> DataSet:
    """A data set by name, standardized by its training statistics.

    Files are sought in $COSET_DATA, ~/.cache/coset and /usr/share/datasets, and downloaded to the second if they are
    in none; each must have its published hash. Tiny ImageNet has none, and must be put there.

    Args:
        name: one of `coset.data.names()`.
        split: which of the standard splits of a UCI set, the first by default.
        device: where all tensors lie.
        flatten: images as rows of pixels, (n, pixels), and not (n, channels, height, width).
        coarse: CIFAR-100's 20 groups in place of its classes.
        context: characters in a window of a text, 256 by default.

    Returns:
        The training and the test split. Images are float32, normalized by the training set's published mean and
        deviation of each channel; tables are float32 (n, features). Targets are int64 (n,) classes or float32 (n, 1)
        values. Texts are int64 (n, context) characters, and their targets those that follow, of the same shape.

    Raises:
        DataError: there is no such name or no such option of it, a file is absent or damaged, or the device cannot be
            used.

    Example:
        >>> digits = coset.data.load("digits", flatten=True)
        >>> digits.train
        Split((1442, 64) float32 -> (1442,) int64, cpu)
    """
    if name not in LOADERS:
        raise DataError(f"there is no data set {name!r}, only {', '.join(names())}")
    file, _, function = LOADERS[name].partition(":")
    loader: Callable[..., DataSet] = getattr(importlib.import_module(f"coset.data.{file}"), function)
    options = inspect.signature(loader).parameters
    if split is not None and "split" not in options:
        raise DataError(f"{name} has one split only, so split={split} cannot be chosen")
    if coarse and "coarse" not in options:
        raise DataError(f"{name} has no coarse labels, only cifar100 has")
    if context is not None and "context" not in options:
        raise DataError(f"{name} is no text, so context={context} cannot be chosen")
    _require_device(device)
    arguments = {"name": name, "split": split or 0, "flatten": flatten, "coarse": coarse}
    arguments["context"] = CONTEXT if context is None else context
    return loader(**{option: arguments[option] for option in options}).to(device)


def _require_device(device: torch.device | str) -> None:
    """Find out before reading half a gigabyte that it has nowhere to go."""
    try:
        torch.empty(0, device=device)
    # A build without CUDA says so with an AssertionError.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"the device {str(device)!r} cannot be used: {reason}") from error
