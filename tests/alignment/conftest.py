"""The networks of `alignment_nets` as a fixture."""

from __future__ import annotations

import pytest
import torch
from alignment_nets import SPECS, network

from coset import Symmetry


@pytest.fixture(params=list(SPECS))
def net(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, Symmetry]:
    return network(request.param)
