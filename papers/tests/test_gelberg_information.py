"""The first part of the open problem: estimates of the mutual information beside brute force."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from coset import zoo
from coset.core import state as states
from coset_papers.gelberg2024.information import ABOVE, BELOW, CONVERGED, DEVIATION, EXACT, estimates


def brute(name: str, separation: float, samples: int) -> float:
    """I of one hidden layer by all permutations, with other random numbers for the weights."""
    like, generator = states.of(zoo.build(name)), torch.Generator().manual_seed(0)
    torch.randn(4, like["layers.0.weight"].shape[1], generator=generator)
    flat = separation * torch.randn(sum(x.numel() for x in like.values()), generator=generator)
    parts = torch.split(flat, [x.numel() for x in like.values()])
    mean = {key: part.view(x.shape) for (key, x), part in zip(like.items(), parts, strict=True)}
    m = torch.cat((mean["layers.0.weight"], mean["layers.0.bias"][:, None], mean["layers.1.weight"].mT), 1)
    w = m + DEVIATION * torch.randn(samples, *m.shape, generator=torch.Generator().manual_seed(7))
    n = len(m)
    logs = torch.stack(
        [-((w[:, list(p)] - m) / DEVIATION).square().sum((1, 2)) / 2 for p in itertools.permutations(range(n))]
    ).double()
    return math.lgamma(n + 1) - float((logs.logsumexp(0) - logs[0]).mean())


@pytest.mark.parametrize("separation", [0.1, 0.5, 3.0])
def test_the_exact_estimate_is_that_of_all_permutations(separation: float) -> None:
    result = estimates("mlp:2-4-1", separation, True, 400, 0, "cpu")
    assert result["log_order"] == pytest.approx(math.log(24))
    exact = result["estimates"][EXACT]
    expected = brute("mlp:2-4-1", separation, 4000)
    assert exact["information"] == pytest.approx(expected, abs=5 * exact["error"] + 1e-6)


def test_estimates_of_deep_networks() -> None:
    result = estimates("mlp:1-3-3-1", 0.5, True, 200, 0, "cpu")
    assert result["log_order"] == pytest.approx(2 * math.log(6))
    rows = result["estimates"]
    assert rows[EXACT]["bias"] == 0 == rows[EXACT]["bias_error"]
    # The bias is that of the same weights, so it is the difference of the means.
    for name, row in rows.items():
        assert row["bias"] == pytest.approx(row["information"] - rows[EXACT]["information"], abs=1e-9), name
    assert rows[BELOW]["bias"] < 3 * rows[BELOW]["bias_error"]
    assert rows[ABOVE]["bias"] > -3 * rows[ABOVE]["bias_error"]


def test_without_an_exact_value() -> None:
    result = estimates("mlp:2-20-1", 3.0, False, 4, 0, "cpu")["estimates"]
    assert EXACT not in result and "bias" not in result[BELOW]
    assert result[CONVERGED]["information"] == pytest.approx(math.lgamma(21), rel=0.01)
    assert result["InfoNCE, K = 500"]["information"] <= math.log(500)


@pytest.mark.slow
def test_smoke(reproduce: Callable[..., Result], tmp_path: Path) -> None:
    result = reproduce("gelberg2024/information", "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert [claim["holds"] for claim in record["claims"]] == [True, True, True, True, None, None]
    assert (tmp_path / "gelberg2024-information-smoke.png").stat().st_size > 10_000
