"""A module of nets for the commands."""

import sys
from pathlib import Path

import pytest

NETS = """
import torch
from torch import nn

def net(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.out = nn.Linear(6, 3)
    def forward(self, tokens, *, scale):
        return self.out(self.embedding(tokens) * scale)

class Limited(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.last(torch.renorm(self.first(x), 2, 0, 0.5))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `cli_nets.py` in it."""
    (tmp_path / "cli_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_nets", raising=False)
    return tmp_path
