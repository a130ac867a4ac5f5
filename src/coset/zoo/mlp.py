"""Multilayer perceptron of any widths (rossi2023 Table 2: 784-512-512-512-10 with ReLU)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from coset.core.errors import ModelError
from coset.zoo.argument_checks import require_choice

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class MLP(nn.Module):
    """Multilayer perceptron `x -> W_L a(... a(W_1 x + b_1) ...) + b_L`.

    `layers.i.weight` has the shape `[sizes[i+1], sizes[i]]`. Torch's default initialisation.

    Args:
        sizes: numbers of inputs, of the units of each hidden layer, and of outputs.
        activation: "relu", "leaky_relu", "gelu", "silu", "tanh" or "sigmoid".
        bias: whether layers have one.

    Raises:
        ModelError: fewer than two sizes, one that is not positive, or no such activation.

    Example:
        >>> coset.zoo.MLP([64, 16, 10])(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, sizes: Sequence[int], activation: str = "relu", bias: bool = True) -> None:
        super().__init__()
        if len(sizes) < 2 or not all(isinstance(n, int) and n > 0 for n in sizes):
            raise ModelError(f"MLP: sizes must be two or more positive integers, got {sizes!r}.")
        require_choice("MLP", "activation", activation, tuple(ACTIVATIONS))
        self.sizes = tuple(sizes)
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias=bias) for inputs, outputs in pairwise(sizes))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """The outputs `[N, sizes[-1]]`.

        Args:
            x: `[N, ...]` with `sizes[0]` features an example; images are flattened.
        """
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        logits: Tensor = self.layers[-1](x)
        return logits

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Standard normal input `[batch, sizes[0]]` on the CPU.

        Args:
            batch: how many examples.
            generator: what they come from; None is torch's own.
        """
        return (torch.randn(batch, self.sizes[0], generator=generator),)
