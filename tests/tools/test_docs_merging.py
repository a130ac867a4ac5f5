"""The page of merging says what the records say, with the command beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_docs_coverage import write

from coset.core.errors import CosetError
from tools.docs_merging import EXPECTED, merging

RUN = {
    "command": "python bench/merging.py mnist --device cuda",
    "seconds": 12.4,
    "device": "A GPU",
    "versions": {"coset": "0.1", "torch": "2.13.0"},
}
NETS = {"model": "mlp:784-8-10", "data": "mnist", "epochs": 3}


def path(middle: float, **fields: Any) -> dict[str, Any]:
    """A line of three points whose chord is 0.3 halfway."""
    curve = {"loss": [0.2, middle, 0.4], "accuracy": [0.9, 0.85, 0.8], "test barrier": middle - 0.3}
    return curve | {"seconds of alignment": 1.234} | fields


PAIR = RUN | NETS | {"paths": {"not aligned": path(3.3), "weights": path(0.325)}}
MATCH = {"merged": 0.91, "merged and repaired": 0.92, "seconds": 3.21, "cycle is the identity": True}
RECORDS: dict[str, dict[str, Any]] = {
    "merging-mnist": PAIR,
    "merging-ten": RUN
    | NETS
    | {"average of the ends": 0.95, "plain average": 0.1, "star": MATCH, "joint": MATCH | {"merged": 0.93}},
    "merging-population": RUN
    | {
        "networks": 2000,
        "seconds of alignment": 0.5,
        "sweeps": 2,
        "mean distance to the reference before": 3.0,
        "mean distance to the reference after": 1.5,
    },
    "llama1b-align": RUN
    | {
        "command": "python bench/llama1b.py",
        "parameters": 1076934656,
        "permutations": 221,
        "groups": 89,
        "recovered exactly": True,
        "seconds in all": 191.4,
        "seconds of alignment": 156.1,
        "peak GiB": 2.853,
        "distance before": 930.29,
        "distance after": 65.63,
    },
    "bench-align": {
        "bench": "align",
        "seed": 0,
        "title": "Matching",
        "rows": [{"network": "MLP", "objective": 123.4, "change": 2e-7, "verdict": None}],
        "notes": ["Objective: {a, b}.", "Second note."],
        "machine": {"torch": "2.13.0", "rebasin": None},
    },
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, record in RECORDS.items():
        write(tmp_path, f"{name}.json", record)
    return tmp_path


def test_page_shows_the_figures(results: Path) -> None:
    page, pictures = merging(results)
    for row in (
        "| not aligned | 3.0000 | 90.00%, 80.00% | 85.00% | - |",
        "| weights | 0.0250 | 90.00%, 80.00% | 85.00% | 1.23 |",
        "| plain average | 10.00% | - | - | - |",
        "| aligned, joint | 93.00% | 92.00% | yes | 3.2 |",
        "| mean distance to the reference | 3.000 before, 1.500 after |",
        "| seconds | 191, of which 156 to align |",
        "| MLP | 123 | 2.0e-07 | - |",
    ):
        assert row in page, row
    flat = " ".join(page.split())
    assert (
        "`python -m bench merging mnist --device cuda --epochs 3 --out results/merging-mnist.json` "
        "(A GPU; coset 0.1, torch 2.13.0; 12 s in all, training included)." in flat
    )
    assert "`coset bench align --seed 0 --json > results/bench-align.json` (torch 2.13.0)." in flat
    assert "Objective: {a, b}. Second note." in flat
    assert list(pictures) == ["barrier-mnist.png"]
    assert pictures["barrier-mnist.png"].axes[0].get_yscale() == "log"


def test_barriers_on_training_data_have_a_column(results: Path) -> None:
    write(results, "merging-mnist.json", PAIR | {"paths": {"weights": path(0.325, **{"train barrier": 0.5})}})
    page, pictures = merging(results)
    assert "| weights | 0.0250 | 0.5000 | 90.00%, 80.00% |" in page
    assert pictures["barrier-mnist.png"].axes[0].get_yscale() == "linear"


def test_absent_files_are_named_if_they_are_expected(tmp_path: Path) -> None:
    page, pictures = merging(tmp_path)
    for name in EXPECTED:
        assert f"`results/{name}.json` is absent" in page
    assert page.count("is absent") == len(EXPECTED)
    assert not pictures


def test_bad_news_is_told(results: Path) -> None:
    write(results, "merging-ten.json", RECORDS["merging-ten"] | {"star": MATCH | {"cycle is the identity": False}})
    write(results, "llama1b-align.json", RECORDS["llama1b-align"] | {"recovered exactly": False})
    page, _ = merging(results)
    assert "| aligned, star | 91.00% | 92.00% | NO | 3.2 |" in page
    assert "| hidden element found exactly | NO |" in page


def test_a_barrier_that_is_not_its_curves_is_refused(results: Path) -> None:
    write(results, "merging-mnist.json", PAIR | {"paths": {"weights": path(0.325, **{"test barrier": 0.001})}})
    with pytest.raises(CosetError, match=r"merging-mnist\.json .*0\.001"):
        merging(results)


@pytest.mark.parametrize("name", list(RECORDS))
def test_a_record_of_another_kind_is_refused(results: Path, name: str) -> None:
    write(results, f"{name}.json", {"command": "x"})
    with pytest.raises(CosetError, match=f"{name}.json lacks a figure"):
        merging(results)
