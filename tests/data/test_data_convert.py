from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from coset.core.errors import DataError
from coset.data import Split, as_split, load

INPUTS, TARGETS = torch.arange(20.0).reshape(10, 2), torch.arange(10)


def test_tensors_and_splits_are_kept() -> None:
    split = as_split((INPUTS, TARGETS))
    assert split.inputs is INPUTS
    assert split.targets is TARGETS
    assert as_split(split) is split


def test_a_loader_is_read_in_its_order() -> None:
    split = as_split(DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=3))
    assert torch.equal(split.inputs, INPUTS)
    assert torch.equal(split.targets, TARGETS)


def test_a_loader_keeps_its_own_choice_of_examples() -> None:
    data = TensorDataset(INPUTS, TARGETS)
    assert as_split(DataLoader(data, sampler=[4, 1, 4])).targets.tolist() == [4, 1, 4]
    assert len(as_split(DataLoader(data, batch_size=3, drop_last=True))) == 9


def test_a_shuffling_loader_gives_the_same_split_and_leaves_the_global_generator_alone() -> None:
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=3, shuffle=True)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = as_split(loader)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(as_split(loader).targets, first.targets)
    assert sorted(first.targets.tolist()) == TARGETS.tolist()
    assert torch.equal(first.inputs, INPUTS[first.targets])


def test_a_data_set_is_not_a_split() -> None:
    with pytest.raises(DataError, match=r"breast-cancer holds two splits: pass its \.train"):
        as_split(load("breast-cancer"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("mnist", "not a str"),
        (INPUTS, "not a Tensor"),
        ((INPUTS, np.arange(10)), "not a tuple of Tensor, ndarray"),
        ((INPUTS, TARGETS, TARGETS), "not a tuple of Tensor, Tensor, Tensor"),
        ((), "not a tuple of nothing"),
        (DataLoader(TensorDataset(INPUTS)), "a batch of the DataLoader .* not a list of Tensor"),
        (DataLoader(TensorDataset(INPUTS, TARGETS), sampler=[]), "no batch"),
        (DataLoader([(INPUTS[:, :1], TARGETS), (INPUTS, TARGETS)], batch_size=None), "do not fit together"),
    ],
)
def test_anything_else_is_refused(data: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        as_split(data)


def test_lengths_are_compared() -> None:
    with pytest.raises(DataError, match="same number"):
        as_split((INPUTS, TARGETS[:-1]))
    assert isinstance(as_split((INPUTS, TARGETS)), Split)
