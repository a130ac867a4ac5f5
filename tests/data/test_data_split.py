import dataclasses

import pytest
import torch
from torch import Tensor

from coset.core.errors import DataError
from coset.data import Split


def numbered(n: int) -> Split:
    """Example i has the input (i, -i) and the target 10 i."""
    i = torch.arange(n)
    return Split(torch.stack([i, -i], dim=1).float(), 10 * i)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def targets_of(batches: list[tuple[Tensor, Tensor]]) -> list[int]:
    return torch.cat([y for _, y in batches]).tolist()


def test_unpacks_as_inputs_and_targets() -> None:
    split = numbered(4)
    inputs, targets = split
    assert inputs is split.inputs
    assert targets is split.targets
    assert len(split) == 4
    assert repr(split) == "Split((4, 2) float32 -> (4,) int64, cpu)"


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        numbered(3).inputs = torch.zeros(3)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (torch.zeros(3, 2), torch.zeros(4), r"\(3, 2\).*\(4,\).*same number"),
        (torch.zeros(3), torch.tensor(1.0), "same number"),
        (torch.zeros(0, 2), torch.zeros(0), "no example"),
        (torch.zeros(3, device="meta"), torch.zeros(3), "meta and cpu"),
    ],
)
def test_refuses_tensors_that_do_not_belong_together(inputs: Tensor, targets: Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Split(inputs, targets)


def test_moves_both_tensors() -> None:
    image = numbered(3).to("meta")
    assert image.inputs.device.type == image.targets.device.type == "meta"


@pytest.mark.parametrize(("n", "size", "lengths"), [(10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 5, [3]), (1, 1, [1])])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_each_example_once(n: int, size: int, lengths: list[int], shuffle: bool) -> None:
    batches = list(numbered(n).minibatches(size, seeded(0), shuffle=shuffle))
    assert [len(y) for _, y in batches] == lengths
    assert sorted(targets_of(batches)) == list(range(0, 10 * n, 10))
    for x, y in batches:
        assert torch.equal(10 * x[:, 0], y.float())
        assert torch.equal(x[:, 0], -x[:, 1])


@pytest.mark.parametrize("shuffle", [True, False])
def test_drop_last_keeps_whole_batches_only(shuffle: bool) -> None:
    batches = list(numbered(10).minibatches(4, seeded(0), shuffle=shuffle, drop_last=True))
    assert [len(x) for x, _ in batches] == [4, 4]
    assert len(set(targets_of(batches))) == 8


def test_without_shuffle_the_order_is_kept() -> None:
    assert targets_of(list(numbered(5).minibatches(2, shuffle=False))) == [0, 10, 20, 30, 40]


def test_the_order_comes_from_the_generator_alone() -> None:
    split = numbered(50)
    before = torch.get_rng_state()
    first = targets_of(list(split.minibatches(7, seeded(1))))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert targets_of(list(split.minibatches(7, seeded(1)))) == first
    assert targets_of(list(split.minibatches(7, seeded(2)))) != first
    one = seeded(1)
    epochs = [targets_of(list(split.minibatches(7, one))) for _ in range(2)]
    assert epochs[0] == first != epochs[1]


def test_the_order_is_drawn_at_the_call() -> None:
    split = numbered(50)
    generator = seeded(1)
    waiting = split.minibatches(7, generator)
    torch.rand(3, generator=generator)
    assert targets_of(list(waiting)) == targets_of(list(split.minibatches(7, seeded(1))))


def test_refuses_epochs_that_cannot_be() -> None:
    split = numbered(3)
    with pytest.raises(DataError, match="0 is not positive"):
        split.minibatches(0, seeded(0))
    with pytest.raises(DataError, match="leave nothing"):
        split.minibatches(4, seeded(0), drop_last=True)
    with pytest.raises(DataError, match=r"needs a torch\.Generator"):
        split.minibatches(2)


def test_a_subset_is_different_examples_in_random_order() -> None:
    split = numbered(100)
    part = split.subset(30, seeded(3))
    assert len(part) == len(set(part.targets.tolist())) == 30
    assert torch.equal(10 * part.inputs[:, 0], part.targets.float())
    assert torch.equal(part.targets, split.subset(30, seeded(3)).targets)
    assert not torch.equal(part.targets, split.subset(30, seeded(4)).targets)
    assert sorted(split.subset(100, seeded(0)).targets.tolist()) == split.targets.tolist()


@pytest.mark.parametrize("n", [0, -1, 101])
def test_refuses_impossible_subsets(n: int) -> None:
    with pytest.raises(DataError, match=f"{n} different examples from a split of 100"):
        numbered(100).subset(n, seeded(0))
