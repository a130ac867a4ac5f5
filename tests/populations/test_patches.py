"""Convolutions as products of matrices are those of torch."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from coset.populations.population_outputs import by_patches, multiplied

two = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=40, deadline=None)
@given(
    kernel=two, stride=two, padding=st.tuples(st.integers(0, 2), st.integers(0, 2)), dilation=two, biased=st.booleans()
)
def test_outputs_and_gradients_of_many_networks(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], biased: bool
) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = normal(3, 2, 8, 7)
    weights, biases = normal(4, 5, 2, *kernel).requires_grad_(), normal(4, 5).requires_grad_()

    def of_all(convolution: object) -> tuple[Tensor, ...]:
        def two_layers(weight: Tensor, bias: Tensor) -> Tensor:
            how = (bias if biased else None, stride, padding, dilation)
            first: Tensor = convolution(x, weight, *how)  # type: ignore[operator]
            # Once more, of inputs that differ from network to network.
            again: Tensor = convolution(F.pad(first, (6, 6, 6, 6))[:, :2].sin(), weight, *how)  # type: ignore[operator]
            return again

        result = torch.vmap(two_layers)(weights, biases)
        parameters = [weights, biases] if biased else [weights]
        return result, *torch.autograd.grad(result.square().sum(), parameters)

    for ours, theirs in zip(of_all(multiplied), of_all(F.conv2d), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("padding", ["same", 1, (1, 1)])
def test_what_is_left_to_torch(padding: str | int | tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((3, 4, 8, 8), (6, 2, 3, 3)))
    assert torch.equal(by_patches(x, weight, padding=padding, groups=2), F.conv2d(x, weight, padding=padding, groups=2))
