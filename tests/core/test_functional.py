"""Models in which one module has several names keep their weights, whoever calls them with others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coset
from coset.core import state
from coset.core.errors import ModelError
from coset.core.functional import functional_call
from coset.data import Split


class Twice(nn.Module):
    """`second` is `first`, which may have a norm with buffers."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)) if norm else nn.Linear(6, 6)
        self.second = self.first
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Through the same weights twice."""
        outputs: Tensor = self.head(self.second(self.first(x).relu()).relu())
        return outputs


INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
SPLIT = Split(INPUTS, torch.arange(8) % 3)


def zeros(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(x) for name, x in state.of(model).items()}


def symmetry(model: nn.Module) -> None:
    coset.symmetry(model, (INPUTS,))


def called(model: nn.Module) -> None:
    state.call(model, zeros(model), INPUTS)


def mapped(model: nn.Module) -> None:
    population = {name: torch.stack([x, x]) for name, x in state.untie(model, zeros(model)).items()}
    torch.vmap(lambda one: functional_call(model, one, (INPUTS,)))(population)


def refused(model: nn.Module) -> None:
    with pytest.raises(ModelError):
        state.call(model, zeros(model), INPUTS[:, :2])


def collected(model: nn.Module) -> None:
    coset.collect(model, SPLIT, 3, coset.Collect(epochs=1))


def fitted(model: nn.Module) -> None:
    coset.fit(model, SPLIT, coset.MAP(epochs=2))


@pytest.mark.parametrize("use", [symmetry, called, mapped, refused, collected, fitted])
@pytest.mark.parametrize("build", [Twice, lambda: nn.Sequential(*[nn.Linear(6, 6)] * 2, nn.ReLU(), nn.Linear(6, 3))])
def test_weights_stay(use: Callable[[nn.Module], None], build: Callable[[], nn.Module]) -> None:
    model = build()
    own = dict(model.named_parameters(remove_duplicate=False))
    before = {name: x.detach().clone() for name, x in own.items()}
    use(model)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert after.keys() == own.keys() and all(x is own[name] for name, x in after.items())
    assert all(x.equal(before[name]) for name, x in after.items())


@pytest.mark.parametrize("names", [{"first", "second", "head"}, {"second", "head"}])
def test_both_names_are_called_with_what_is_given(names: set[str]) -> None:
    model, other = Twice(), Twice()
    part: dict[str, Any] = {name: x for name, x in state.of(other).items() if name.split(".")[0] in names}
    assert torch.equal(state.call(model, part, INPUTS), other(INPUTS))


def test_buffers_stay() -> None:
    model = Twice(norm=True)
    buffers = dict(model.named_buffers(remove_duplicate=False))
    before = {name: x.clone() for name, x in buffers.items()}
    coset.symmetry(model.eval(), (INPUTS,))
    called(model.train())
    after = dict(model.named_buffers(remove_duplicate=False))
    assert all(x is buffers[name] and x.equal(before[name]) for name, x in after.items())


def test_they_are_not_compiled() -> None:
    with pytest.raises(ModelError, match="'first' and 'second' are one module, which cannot be compiled"):
        coset.collect(Twice(), SPLIT, 3, coset.Collect(epochs=1, compile=True))
