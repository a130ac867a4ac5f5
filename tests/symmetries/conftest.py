"""The nets here are tiny: threads cost more than they give, on a busy machine several times more."""

import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("symmetry", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
settings.load_profile("symmetry")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads, often = torch.get_num_threads(), gc.get_threshold()
    torch.set_num_threads(1)
    # Tracing makes much short-lived garbage, and looking for it takes a fifth of the time.
    gc.set_threshold(200_000, 20, 50)
    yield
    gc.set_threshold(*often)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
