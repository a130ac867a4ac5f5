"""Random crops and flips of images, drawn on their device."""

import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 4


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (n, channels, height, width) shifted by up to four pixels either way, and mirrored or not.

    What comes into view is the edge repeated, since after normalization zero is not black.
    """
    n, _, height, width = images.shape
    padded = F.pad(images, (PADDING,) * 4, mode="replicate")
    device = images.device
    top, left = torch.randint(2 * PADDING + 1, (2, n, 1), generator=generator, device=device)
    rows = top + torch.arange(height, device=device)
    columns = left + torch.arange(width, device=device)
    mirrored = torch.rand((n, 1), generator=generator, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(n, device=device)
    # Indices around a slice move it to the end: (n, height, width, channels).
    return padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
