"""Muon against torch's, and against singular value decompositions."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from coset.training.optimizers import Muon, orthogonal

SHAPES = [(24, 40), (40,), (40, 24), (24, 40), (8, 40), (), (40, 24), (2, 16, 16)]
RATE = 0.02


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in parts])


def is_matrix(x: Tensor) -> bool:
    return x.dim() == 2 and min(x.shape) >= 16


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
def test_steps_are_those_of_torch() -> None:
    begin = tensors(0)
    ours = flat(begin)
    own = Muon(ours, [x.shape for x in begin])
    theirs = [x.clone().requires_grad_() for x in begin]
    optimizers = [
        torch.optim.Muon([x for x in theirs if is_matrix(x)], lr=RATE, weight_decay=0.0, adjust_lr_fn="original"),
        torch.optim.Adam([x for x in theirs if not is_matrix(x)], lr=RATE / 4),
    ]
    for step in range(1, 6):
        gradients = tensors(step)
        own.step([flat(gradients)], torch.tensor(RATE))
        for x, g in zip(theirs, gradients, strict=True):
            x.grad = g
        for optimizer in optimizers:
            optimizer.step()
    for x, y, start in zip(ours.split([x.numel() for x in begin]), theirs, begin, strict=True):
        moved, expected = x - start.flatten(), (y.detach() - start).flatten()
        # Theirs turns matrices in bfloat16.
        close = 2e-2 if is_matrix(start) else 1e-5
        assert (moved - expected).norm() <= close * expected.norm()


def test_matrices_of_one_shape_do_not_mix() -> None:
    begin, gradients = tensors(0), tensors(1)
    together = flat(begin)
    Muon(together, [x.shape for x in begin]).step([flat(gradients)], torch.tensor(RATE))
    for x, whole, g in zip(begin, together.split([x.numel() for x in begin]), gradients, strict=True):
        alone = x.flatten().clone()
        Muon(alone, [x.shape]).step([g.flatten()], torch.tensor(RATE))
        assert torch.allclose(alone, whole, atol=1e-6)


@given(st.integers(1, 3), st.integers(2, 30), st.integers(2, 30), st.integers(0, 1000), st.floats(1e-6, 1e6))
@settings(max_examples=25, deadline=None)
def test_singular_values_become_one_nearly_and_vectors_stay(k: int, a: int, b: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    u, _, vh = torch.linalg.svd(torch.randn(k, a, b, generator=generator).double(), full_matrices=False)
    # Values down to a twentieth of the norm are brought up; those of zero cannot be.
    values = 0.1 + 0.9 * torch.rand(k, min(a, b), generator=generator).double()
    x = scale * (u * values.unsqueeze(-2)) @ vh
    turned = u.mT @ orthogonal(x) @ vh.mT
    diagonal = turned.diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(turned, torch.diag_embed(diagonal), atol=1e-6)
    assert bool(((diagonal > 0.5) & (diagonal < 1.3)).all())


def test_nothing_moves_without_a_gradient() -> None:
    given = torch.randn(16 * 20)
    after = given.clone()
    Muon(after, [torch.Size((16, 20))]).step([torch.zeros(320)], torch.tensor(RATE))
    assert torch.equal(after, given)


@pytest.mark.parametrize("shape", [(16, 16), (15, 400), (4, 4, 40), (50,)])
def test_what_counts_as_a_matrix(shape: tuple[int, ...]) -> None:
    """One step moves a matrix along its gradient's singular vectors, and all else by as much in each entry."""
    x = torch.zeros(torch.Size(shape).numel())
    Muon(x, [torch.Size(shape)]).step([torch.randn(len(x))], torch.tensor(RATE))
    alike = torch.allclose(x.abs(), torch.tensor(RATE / 4), rtol=1e-3)
    assert alike == (shape != (16, 16))
