"""One small rule per op family; importing this package registers them all."""

from coset.symmetries.rules import (
    attention,
    blocks,
    constants,
    convolution,
    elementwise,
    indexing,
    linear,
    norm,
    recurrent,
    reduction,
    reshape,
    spatial,
    windows,
)

__all__ = [
    "attention",
    "blocks",
    "constants",
    "convolution",
    "elementwise",
    "indexing",
    "linear",
    "norm",
    "recurrent",
    "reduction",
    "reshape",
    "spatial",
    "windows",
]
