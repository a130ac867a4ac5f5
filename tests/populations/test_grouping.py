"""Groups of networks have as many weights and outputs as there is room for."""

import pytest
import torch
from torch import nn

from coset.populations import chunk as grouping
from coset.populations.chunk import group_size


def test_weights_and_outputs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(27, 5)))
    inputs = torch.randn(7, 1, 4, 4)
    weights, outputs = 3 * 4 + 3 + 27 * 5 + 5, 27 + 27 + 27 + 5
    state = dict(net.state_dict())
    one = weights + 7 * outputs
    for room, networks in ((1, 1), (one, 1), (4 * one - 1, 2), (4 * one, 4), (7 * one, 4)):
        monkeypatch.setitem(grouping.CAPACITY, "cpu", room)
        assert group_size(net, state, inputs) == networks
    assert not net[0]._forward_hooks
