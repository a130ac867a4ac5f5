"""Schedules, augmentation, random numbers."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from coset.training.augmentation import PADDING, augment
from coset.training.network import Randomness, seeded
from coset.training.optimizers import SCHEDULES

CPU = torch.device("cpu")


@given(st.floats(0, 1))
def test_schedules(done: float) -> None:
    assert SCHEDULES["constant"](done) == 1
    assert SCHEDULES["cosine"](done) == pytest.approx(math.cos(math.pi * done / 2) ** 2, abs=1e-12)
    assert 0 <= SCHEDULES["onecycle"](done) <= 1


def test_one_cycle_goes_up_and_down() -> None:
    cycle = SCHEDULES["onecycle"]
    assert cycle(0) == pytest.approx(1 / 25) and cycle(0.3) == pytest.approx(1) and cycle(1) == pytest.approx(0)
    values = [cycle(k / 100) for k in range(101)]
    assert values[:31] == sorted(values[:31]) and values[30:] == sorted(values[30:], reverse=True)


def test_augmented_images_are_shifted_and_mirrored() -> None:
    images = torch.randn(200, 2, 6, 5)
    found = augment(images, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(images, (PADDING,) * 4, mode="replicate")
    seen = set()
    for image, whole in zip(found, padded, strict=True):
        crops = {(i, j): whole[:, i : i + 6, j : j + 5] for i in range(9) for j in range(9)}
        places = [at for at, crop in crops.items() if torch.equal(crop, image) or torch.equal(crop.flip(2), image)]
        assert places
        seen.add(places[0])
    assert {top for top, _ in seen} == {left for _, left in seen} == set(range(9))
    assert found.shape == images.shape and torch.equal(found, augment(images, torch.Generator().manual_seed(0)))


def test_random_numbers_go_on_where_they_were_and_leave_the_others_alone() -> None:
    torch.manual_seed(1)
    outside = torch.rand(4)
    torch.manual_seed(1)
    own = Randomness(0, [(0,), (1,)], CPU)
    with own.active():
        first = torch.rand(2)
    saved = own.states
    assert torch.equal(torch.rand(2), outside[:2])
    with pytest.raises(RuntimeError), own.active():
        second = torch.rand(2)
        private = torch.rand(2, generator=own.generators[1])
        raise RuntimeError
    assert torch.equal(torch.rand(2), outside[2:])
    again = Randomness(0, [(0,), (1,)], CPU)
    with again.active():
        assert torch.equal(torch.rand(4), torch.cat([first, second]))
    again.states = saved
    assert torch.equal(torch.rand(2, generator=again.generators[1]), private)


def test_a_networks_own_numbers_do_not_depend_on_who_is_beside_it() -> None:
    alone, beside = Randomness(3, [(1,)], CPU), Randomness(3, [(0,), (1,)], CPU)
    assert torch.equal(torch.rand(2, generator=alone.generators[0]), torch.rand(2, generator=beside.generators[1]))


def test_all_seeds_replicas_and_purposes_differ() -> None:
    drawn = set()
    for seed in range(5):
        for replica in range(5):
            numbers = Randomness(seed, [(replica,)], CPU)
            drawn.add(torch.rand((), generator=numbers.generators[0]).item())
            with numbers.active():
                drawn.add(torch.rand(()).item())
            with seeded(seed, (replica,)):
                drawn.add(torch.rand(()).item())
    assert len(drawn) == 75
