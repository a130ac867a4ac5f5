"""Each figure of rossi2023 at its smallest scale: it runs, its record is complete, and its picture is drawn."""

from pathlib import Path

import pytest
from smoke import check, figures

from coset_papers import Settings, reproduce


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, as figures share their networks."""
    return tmp_path_factory.mktemp("rossi2023")


@pytest.mark.parametrize("name", figures("rossi2023", quick=("fig3", "figA13")))
def test_smoke(name: str, out: Path) -> None:
    check(name, out)


def test_alignment_lowers_the_barrier(out: Path) -> None:
    record = reproduce("rossi2023/fig3", Settings(out=out))
    naive, aligned = (record["data"][key]["test"]["height"] for key in ("geodesic", "aligned"))
    assert aligned < naive / 4
    assert [claim["holds"] for claim in record["claims"]] == [True]


def test_exact_kl_swaps_where_means_do_not(out: Path) -> None:
    record = reproduce("rossi2023/figA13", Settings(out=out))
    assert record["data"]["toy"] == {"weights": [0, 1], "kl": [1, 0], "wasserstein": [1, 0]}
    reached = record["data"]["reached"]
    for cost, key in (("weights", "means"), ("kl", "kl"), ("wasserstein", "wasserstein")):
        # Coordinate ascent may stop early, but not far from what another cost finds for it.
        assert reached[cost][key] <= 1.05 * min(row[key] for row in reached.values())


@pytest.mark.slow
def test_alignment_keeps_the_fit_of_a_curve(out: Path) -> None:
    record = reproduce("rossi2023/fig1", Settings(out=out))
    loss = {name: one["loss"] for name, one in record["data"]["solutions"].items()}
    assert loss["aligned"] < max(loss["q0"], loss["q1"]) + 0.2 < loss["naive"]
