"""The nets here are tiny: threads cost more than they give, on a busy machine several times more."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("symmetry", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
settings.load_profile("symmetry")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
