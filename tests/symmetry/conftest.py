"""The nets here are tiny: threads cost more than they give, on a busy machine several times more."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("symmetry", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
settings.load_profile("symmetry")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
