"""Random matrices, and mixtures of permutations."""

from __future__ import annotations

import torch
from torch import Tensor


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture(n: int, terms: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(terms, generator=generator, dtype=torch.float64).softmax(0)
    eye = torch.eye(n, dtype=torch.float64)
    return sum((w * eye[torch.randperm(n, generator=generator)] for w in weights), torch.zeros_like(eye))
