"""The symmetry group of a model that coset has never seen, and networks that it takes for the same."""

import torch
from torch import nn

import coset


class Block(nn.Module):
    """A layer of a transformer without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, num_heads=4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and an MLP, each added to what comes in."""
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return torch.add(x, self.mlp(x))


model, tokens = Block(), torch.randn(2, 10, 32)
sym = coset.symmetry(model, (tokens,))
for group in sym.groups:
    print(f"{group.name}: {group.size} units in each of {group.copies}")

element = sym.random()
image = sym.act(element, model)  # other weights
change = (coset.state.call(model, image, (tokens,)) - model(tokens)).abs().max()
print(f"other weights, the same function: outputs change by {change.item():.0e}")
