from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coset
from coset.core import state as S


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("count", torch.tensor(2))


class Once(Mapping[str, Tensor]):
    """Reads each tensor anew."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state, self.reads = state, 0

    def __getitem__(self, name: str) -> Tensor:
        self.reads += 1
        return self.state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)


def test_a_mapping_stays_what_it_is_and_is_not_read() -> None:
    lazy = Once({"w": torch.ones(2)})
    assert S.as_state(lazy) is lazy and lazy.reads == 0


def test_a_module_gives_its_state_with_ties() -> None:
    net = Tied()
    state = S.as_state(net)
    assert list(state) == list(net.state_dict()) and state["a.weight"] is state["b.weight"]
    assert state["a.weight"] is not net.a.weight and torch.equal(state["a.weight"], net.a.weight)


def test_a_solution_gives_its_state_unless_it_is_random() -> None:
    state = S.of(Tied())
    dirac = coset.Dirac(state)
    assert S.as_state(dirac) is dirac.mean
    cloud = coset.Gaussian(state, {"a.bias": torch.ones(3)})
    with pytest.raises(coset.StateError, match=r"^A Gaussian, which is random, was given as model A: give its mean"):
        S.as_state(cloud, "model A")
    assert S.as_state(cloud, mean=True) is cloud.mean
    assert S.allclose(coset.Ensemble([state]), state)


@pytest.mark.parametrize("other", [3, "net.pt", [torch.ones(1)], torch.ones(2), None])
def test_what_is_no_network_is_refused_by_its_class(other: Any) -> None:
    with pytest.raises(coset.StateError, match=f"^A {type(other).__name__} was given as the state: give a mapping"):
        S.as_state(other)
    with pytest.raises(coset.StateError, match="was given as the second state"):
        S.add({"w": torch.ones(1)}, other)


def test_arithmetic_takes_states_modules_and_solutions(tmp_path: Path) -> None:
    net, other = Tied(), Tied()
    a, b = S.of(net), coset.Dirac(S.of(other))
    expected = S.lerp(a, b.mean, 0.25)
    for x in (net, coset.Dirac(a), a):
        assert S.allclose(S.lerp(x, b, 0.25), expected)
        assert torch.equal(S.inner(x, b), S.inner(a, b.mean)) and torch.equal(S.norm(x), S.norm(a))
        assert S.allclose(S.add(x, b), S.add(a, b.mean)) and S.allclose(S.sub(x, b), S.sub(a, b.mean))
        assert S.allclose(S.scale(x, 2), S.scale(a, 2)) and S.allclose(x, a)
        assert S.to(x, dtype=torch.float64)["a.bias"].dtype == torch.float64
        assert S.check(x, like=other).keys() == a.keys()
        coset.save_state(x, tmp_path / "x.safetensors")
        assert S.allclose(coset.load_state(tmp_path / "x.safetensors"), a)
    assert S.size(S.stack([net, b, a])) == 3


def test_a_model_is_called_at_a_module_or_a_solution() -> None:
    net, other, x = nn.Linear(3, 2), nn.Linear(3, 2), torch.randn(4, 3)
    for point in (other, coset.Dirac(S.of(other)), S.of(other)):
        assert torch.equal(S.call(net, point, x), other(x))
