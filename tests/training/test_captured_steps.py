"""Steps captured into a CUDA graph do what they do one by one. Needs a GPU."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import coset
from coset import zoo
from coset.core import capture
from coset.data import Split
from coset.training import loop as stepping
from coset.training.loop import Method

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


def split(*shape: int) -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, *shape, generator=generator)
    return Split(x, (x.flatten(1)[:, 0] > 0).long())


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


QUICK = {"epochs": 3, "batch_size": 50, "rate": 0.01}
CASES: dict[str, tuple[nn.Module, Split, Method]] = {
    "map": (zoo.build("mlp:6-8-2"), split(6), coset.MAP(**QUICK)),  # type: ignore[arg-type]
    "dropout": (dropout(), split(6), coset.MAP(**QUICK)),  # type: ignore[arg-type]
    "augmented": (convolution(), split(1, 8, 8), coset.MAP(**QUICK, augment=True)),  # type: ignore[arg-type]
    "adversarial": (
        dropout(),
        split(6),
        coset.Adversarial(**QUICK, attack=coset.PGD(low=None, high=None)),  # type: ignore[arg-type]
    ),
    "vi": (zoo.build("mlp:6-8-2"), split(6), coset.VI(**QUICK)),  # type: ignore[arg-type]
    "local": (zoo.build("mlp:6-8-2"), split(6), coset.VI(**QUICK, reparameterization="local")),  # type: ignore[arg-type]
    "sgld": (zoo.build("mlp:6-8-2"), split(6), coset.SGLD(epochs=3, batch_size=50, burn_in=1)),
    "sghmc": (zoo.build("mlp:6-8-2"), split(6), coset.SGHMC(epochs=3, batch_size=50, burn_in=1)),
    **{
        entropy: (
            zoo.build("mlp:6-8-2"),
            split(6),
            coset.SymmetrizedVI(**QUICK, entropy=entropy, initial_std=0.5),  # type: ignore[arg-type]
        )
        for entropy in ("infonce", "bethe")
    },
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every step as it is."""
    monkeypatch.setattr(stepping, "captured", lambda step, *rest: step)
    yield


def states(case: str, replicas: int = 2) -> list[dict[str, torch.Tensor]]:
    model, data, method = CASES[case]
    found = coset.fit(model, data, method, replicas=replicas, device="cuda")
    return [q.sample(1, torch.Generator("cuda").manual_seed(0)) for q in found]


@pytest.mark.parametrize("case", CASES)
def test_the_same_numbers_as_one_by_one(
    case: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger=capture.__name__):
        fast = states(case)
    assert "cannot be captured" not in caplog.text
    request.getfixturevalue("eager")
    slow = states(case)
    for a, b in zip(fast, slow, strict=True):
        for name in a:
            assert torch.allclose(a[name].double(), b[name].double(), rtol=1e-3, atol=1e-4), name


class Reads(nn.Module):
    """Waits for the device, which no capture allows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) * (1.0 if bool(x.isfinite().all()) else 0.0)
        return out


@pytest.mark.parametrize("case", ["reads", "importance", "exact"])
def test_a_step_that_waits_for_the_device_is_not_captured(case: str, caplog: pytest.LogCaptureFixture) -> None:
    net: nn.Module = Reads() if case == "reads" else zoo.build("mlp:6-4-2")
    entropy = "bethe" if case == "reads" else case
    method = coset.SymmetrizedVI(**QUICK, entropy=entropy, initial_std=0.5)  # type: ignore[arg-type]
    with caplog.at_level("INFO", logger=capture.__name__):
        coset.fit(net, split(6), coset.VI(**QUICK) if case == "reads" else method, device="cuda")  # type: ignore[arg-type]
    assert "cannot be captured" in caplog.text


@pytest.mark.parametrize("case", ["vi", "dropout", "infonce"])
def test_again_the_same(case: str) -> None:
    for a, b in zip(states(case), states(case), strict=True):
        assert all(torch.allclose(a[name].double(), b[name].double(), rtol=1e-4, atol=1e-5) for name in a)
