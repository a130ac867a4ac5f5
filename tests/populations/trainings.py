"""Small trainings that several tests of collections begin with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from coset import Epoch, zoo
from coset.data import Split
from coset.populations.chunk import Collect

QUICK = Collect(epochs=3, batch_size=16, chunk=3, rate=0.05)


def clusters(n: int = 70, dtype: torch.dtype = torch.float64) -> Split:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (n,), generator=generator)
    centres = 3 * torch.randn(3, 4, generator=generator)
    return Split((centres[targets] + torch.randn(n, 4, generator=generator)).to(dtype), targets)


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    return zoo.build("mlp:4-6-3").to(dtype)


class KillError(Exception):
    """Stands for a kill."""


def stop_at(chunk: int, epoch: int) -> Callable[[Epoch], None]:
    def progress(done: Epoch) -> None:
        if (done.replica, done.epoch) == (chunk, epoch):
            raise KillError

    return progress
