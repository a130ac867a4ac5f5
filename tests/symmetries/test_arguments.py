"""What a model is called with: a tuple, a list, or a lone tensor, which is not its rows."""

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import CosetError


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


class Two(nn.Module):
    """A model with two arguments, which two rows of one would be taken for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        out: Tensor = self.net(x if y is None else x + y)
        return out


@pytest.mark.parametrize("model", [net(), Two()])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_lone_tensor_is_one_argument(model: nn.Module, rows: int) -> None:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    lone, tupled = coset.symmetry(model, x), coset.symmetry(model, (x,))
    assert lone.to_json() == tupled.to_json() and [g.size for g in lone.groups] == [5]
    assert lone.verify(model, x) == lone.verify(model, (x,)) < 1e-5


def test_a_lone_tensor_keeps_its_dimensions() -> None:
    """An image of a batch of one is not an image without a batch."""
    ranks: list[int] = []

    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            ranks.append(x.ndim)
            out: Tensor = self.b(self.a(x).relu())
            return out

    coset.symmetry(Image(), torch.randn(1, 1, 5, 5))
    assert set(ranks) == {4}


def test_a_list_is_as_good_as_a_tuple() -> None:
    x = torch.randn(2, 3)
    assert coset.symmetry(net(), [x]).groups == coset.symmetry(net(), (x,)).groups  # type: ignore[arg-type]


def test_anything_else_is_refused() -> None:
    with pytest.raises(CosetError, match="is a dict: give a tuple of its arguments, or a tensor"):
        coset.symmetry(net(), {"x": torch.randn(2, 3)})  # type: ignore[arg-type]
