"""Rotary position embedding (Su et al. 2021), in the half-split layout of GPT-NeoX and Llama."""

import torch
from torch import Tensor, nn


def rope_tables(positions: Tensor, head_dim: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of `positions[t] * base^(-2 i / head_dim)`, both `[T, head_dim / 2]`, float32."""
    # Angles in float64: in float32 a position in the thousands loses three digits of its phase.
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = positions.to(torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pair `(x_i, x_{i + D/2})` of `[..., T, D]` by the angle of its position and frequency.

    Turned queries and keys have scores `q_s . k_t` that depend on the positions only through `s - t`.
    """
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Rope(nn.Module):
    """`rotate` at positions 0 to T-1 for heads `[N, H, T, head_dim]`, `T <= context`; no parameters."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, head_dim: int) -> None:
        super().__init__()
        cos, sin = rope_tables(torch.arange(context), head_dim)
        # Not persistent: constants of the architecture, not part of a network's state.
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[-2]
        # Tables are float32, and a product with them would be.
        return rotate(x, self.cos[:t], self.sin[:t]).to(x.dtype)
