"""Curves learned by captured steps are those learned step by step. Needs a GPU."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import coset
from coset import PAM, Connect, find_curve
from coset.core import capture
from coset.data import Split
from coset.training import loop as stepping

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

QUICK = Connect(epochs=3, batch_size=50)
CASES: dict[str, tuple[Connect, bool | PAM]] = {
    "bezier": (QUICK, False),
    "chain": (Connect(epochs=3, batch_size=50, curve="chain", bends=3), False),
    "attacked": (Connect(epochs=3, batch_size=50, attack=coset.PGD(low=None, high=None, steps=2)), False),
    "pam": (QUICK, PAM(epochs=2, samples=4)),
}


def split() -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 1, 8, 8, generator=generator)
    return Split(x, (x.flatten(1)[:, 0] > 0).long())


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every step as it is."""
    monkeypatch.setattr(stepping, "captured", lambda step, *rest: step)
    yield


@pytest.mark.parametrize("case", CASES)
def test_the_same_curve_as_step_by_step(
    case: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    settings, pam = CASES[case]
    ends = coset.fit(convolution(), split(), coset.MAP(epochs=2, batch_size=50), replicas=2, device="cuda")

    def middle() -> dict[str, torch.Tensor]:
        return find_curve(*ends, convolution(), split(), pam=pam, method=settings, device="cuda")(0.4).mean

    with caplog.at_level("INFO", logger=capture.__name__):
        fast = middle()
    assert "cannot be captured" not in caplog.text
    request.getfixturevalue("eager")
    slow = middle()
    for name, x in slow.items():
        assert torch.allclose(fast[name].double(), x.double(), rtol=1e-3, atol=1e-4), name
