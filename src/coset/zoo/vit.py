"""Small vision transformer (Dosovitskiy et al. 2021), pre-norm, with one fused projection for q, k, v."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.core.errors import ModelError
from coset.zoo.argument_checks import require_choice, require_multiple, require_positive


class FusedAttention(nn.Module):
    """Multi-head self-attention `[N, T, dim] -> [N, T, dim]`; the rows of `qkv` are all q, all k, all v."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, t, dim = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(n, t, dim))
        return out


class ViTBlock(nn.Module):
    """`x + attention(norm(x))`, then `x + W_2 gelu(W_1 norm(x))`; `[N, T, dim]`."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = FusedAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class ViT(nn.Module):
    """Vision transformer (Dosovitskiy et al. 2021): patches, learned positions, pre-norm blocks, linear.

    Images `[N, in_channels, image_size, image_size]`, logits `[N, classes]`. Embeddings start at N(0, 0.02^2), the
    rest at torch's defaults.

    Args:
        dim: width of the tokens, a multiple of `heads`.
        depth: how many blocks.
        heads: of the attention.
        patch: side of a patch, which divides `image_size`.
        image_size: side of the images.
        in_channels: of the images.
        classes: how many.
        pool: what the logits are read from, a class token ("cls") or the mean of all tokens ("mean").
        hidden: units of each MLP; None is four times `dim`.

    Raises:
        ModelError: a number is not positive, does not divide, or there is no such pool.

    Example:
        >>> coset.zoo.ViT(depth=1, image_size=8)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        dim: int = 64,
        depth: int = 4,
        heads: int = 4,
        patch: int = 4,
        image_size: int = 32,
        in_channels: int = 3,
        classes: int = 10,
        pool: str = "cls",
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        hidden = 4 * dim if hidden is None else hidden
        require_positive("ViT", dim=dim, depth=depth, heads=heads, patch=patch, image_size=image_size)
        require_positive("ViT", in_channels=in_channels, classes=classes, hidden=hidden)
        require_multiple("ViT", "dim", dim, "heads", heads)
        require_multiple("ViT", "image_size", image_size, "patch", patch)
        require_choice("ViT", "pool", pool, ("cls", "mean"))
        self.input_shape = (in_channels, image_size, image_size)
        self.patches = nn.Conv2d(in_channels, dim, patch, patch)
        self.cls = nn.Parameter(torch.empty(1, 1, dim)) if pool == "cls" else None
        tokens = (image_size // patch) ** 2 + (pool == "cls")
        self.positions = nn.Parameter(torch.empty(1, tokens, dim))
        self.blocks = nn.Sequential(*(ViTBlock(dim, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the class token and the positions anew; the inner modules have a method of this name themselves."""
        for p in (self.cls, self.positions):
            if p is not None:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """The logits `[N, classes]`.

        Args:
            x: images `[N, in_channels, image_size, image_size]`.
        """
        if x.shape[1:] != self.input_shape:
            raise ModelError(f"ViT: expected images of shape {self.input_shape}, got {tuple(x.shape[1:])}.")
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
        x = self.norm(self.blocks(x + self.positions))
        logits: Tensor = self.head(x.mean(1) if self.cls is None else x[:, 0])
        return logits

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Standard normal images `[batch, in_channels, image_size, image_size]` on the CPU.

        Args:
            batch: how many.
            generator: what they come from; None is torch's own.
        """
        return (torch.randn(batch, *self.input_shape, generator=generator),)
