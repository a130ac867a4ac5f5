"""Checkpoints on disk are aligned without loading them: the same element, few tensors at a time, the same refusals."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from alignment_nets import SPECS, State, network, random_state
from torch import Tensor, nn

import coset
from coset import CosetError, Element, Symmetry
from coset.core.checkpoint import LazyState, Shard

FEW = 4  # the tensors of two networks that are compared, and those compared before


def same(g: Element, h: Element) -> bool:
    return g.permutations.keys() == h.permutations.keys() and all(torch.equal(g[name], h[name]) for name in g.sets)


def checkpoints(folder: Path, *states: State) -> list[LazyState]:
    files = [folder / f"{k}.safetensors" for k in range(len(states))]
    for file, state in zip(files, states, strict=True):
        coset.save_state(state, file)
    return [coset.open_state(file) for file in files]


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many of the tensors that were read from files are alive; the most at once."""
    tensors: list[weakref.ref[Tensor]] = []
    most = 0

    def read(self: Shard, name: str) -> Tensor:
        nonlocal most, tensors
        x = whole(self, name)
        tensors = [ref for ref in tensors if ref() is not None] + [weakref.ref(x)]
        most = max(most, len(tensors))
        return x

    whole = Shard.read
    monkeypatch.setattr(Shard, "read", read)
    return lambda: most


@pytest.mark.parametrize("name", SPECS)
def test_the_same_as_of_loaded_states(name: str, tmp_path: Path, alive: Callable[[], int]) -> None:
    model, sym = network(name)
    a, b = random_state(model, 0), random_state(model, 1)
    first, second = checkpoints(tmp_path, a, b)
    loaded, lazy, mixed = (coset.align(*pair, sym, restarts=2) for pair in ((a, b), (first, second), (a, second)))
    assert same(loaded.element, lazy.element) and same(loaded.element, mixed.element)
    assert loaded.objective == lazy.objective == mixed.objective and loaded.objectives == lazy.objectives
    assert len(a) > FEW >= alive() > 0


def test_many_to_a_reference(tmp_path: Path, alive: Callable[[], int]) -> None:
    model, sym = network("resnet")
    members = [random_state(model, k) for k in range(3)]
    lazy = coset.align_many(checkpoints(tmp_path, *members), sym, reference=0)
    assert alive() <= FEW
    loaded = coset.align_many(members, sym, reference=0)
    assert all(same(g, h) for g, h in zip(lazy.elements, loaded.elements, strict=True))


@pytest.mark.parametrize("method", ["activations", coset.Sinkhorn("l2", steps=3), "weights"])
def test_other_methods_and_factors_load(method: str | coset.AlignMethod, tmp_path: Path) -> None:
    model, sym = network("mlp")
    a, b = random_state(model, 0), random_state(model, 1)
    data = torch.randn(20, 6), torch.zeros(20, dtype=torch.long)
    scale = method == "weights"
    loaded, lazy = (
        coset.align(*pair, sym, method, model, data, scale=scale) for pair in ((a, b), checkpoints(tmp_path, a, b))
    )
    assert same(loaded.element, lazy.element) and loaded.objective == lazy.objective


def test_joint_alignment_and_merging_load(tmp_path: Path) -> None:
    model, sym = network("mlp")
    members = [random_state(model, k) for k in range(3)]
    merged = [coset.merge(every, sym).mean for every in (members, checkpoints(tmp_path, *members))]
    assert coset.state.allclose(merged[0], merged[1], 0, 0)


BAD: dict[str, tuple[Callable[[State], State], str]] = {
    "NaN": (
        lambda b: {**b, "layers.1.bias": b["layers.1.bias"] * torch.nan},
        r"'layers.1.bias' in .*1.safetensors.*NaN",
    ),
    "shape": (lambda b: {**b, "layers.1.bias": torch.zeros(3)}, r"'layers.1.bias' in .*1.safetensors has shape \(3,\)"),
    "kind": (lambda b: {**b, "layers.1.bias": b["layers.1.bias"].int()}, r"'layers.1.bias' in .*is torch.int32"),
    "missing": (
        lambda b: {n: x for n, x in b.items() if n != "layers.1.bias"},
        r"Missing 'layers.1.bias' in .*1.safetensors",
    ),
    "unknown": (lambda b: {**b, "more": torch.zeros(3)}, r"Unknown 'more' in .*1.safetensors"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_checkpoints_are_refused_by_file_and_tensor(name: str, tmp_path: Path) -> None:
    spoil, message = BAD[name]
    model, sym = network("mlp")
    first, second = checkpoints(tmp_path, random_state(model, 0), spoil(random_state(model, 1)))
    with pytest.raises(CosetError, match=message):
        coset.align(first, second, sym)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    model, _ = network("mlp")
    other = coset.symmetry(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), (torch.randn(2, 6),))
    a, b = checkpoints(tmp_path, random_state(model, 0), random_state(model, 1))
    with pytest.raises(CosetError, match=r"Missing '0.weight'.* in .*0.safetensors"):
        coset.align(a, b, other)


def test_of_tied_tensors_each_file_may_hold_another(tmp_path: Path) -> None:
    spec = '{"groups": {"u": 5}, "tensors": {"w": ["u", 3], "v": ["u", 3], "o": [2, "u"]}}'
    free = Symmetry.from_json(spec)
    sym = Symmetry(free.sets, free.axes, tied={"v": "w"})
    generator = torch.Generator().manual_seed(0)
    a, b = ({n: torch.randn(x, generator=generator) for n, x in (("w", (5, 3)), ("o", (2, 5)))} for _ in range(2))
    first, second, other = checkpoints(tmp_path, a, b, {"v": b["w"], "o": b["o"]})
    assert coset.align(first, other, sym).objective == coset.align(first, second, sym).objective
