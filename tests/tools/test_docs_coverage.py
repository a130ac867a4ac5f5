"""The coverage page says what the records say, and says so when there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coset.core.errors import CosetError
from tools import docs_coverage as docs


def model(name: str, **fields: Any) -> dict[str, Any]:
    """A verified model with ten tensors of which nine are moved."""
    record: dict[str, Any] = {
        "name": name,
        "built": True,
        "called": True,
        "traced": True,
        "conclusive": True,
        "verified": True,
        "wrong": False,
        "tensors": 10,
        "moved": 9,
        "still": ["head.bias"],
        "groups": 3,
        "copies": 5,
        "log10_order": 12.3,
        "scalings": 4,
        "deviation": 2e-7,
        "recheck": 3e-7,
        "control": 1.5,
        "sensitivity": 0.5,
        "fixed": [["output", "model output", 2], ["conv2d", "spatial position", 4]],
        "seconds": {"export": 1.0, "inference": 0.1, "verification": 0.2},
    }
    return record | fields


RECORDS = [
    model("good", fixed=[["output", "model output", 3], ["constant", "constant rope.cos", 2]], deviation=4e-7),
    model("better", seconds={"export": 3.0, "inference": 0.3, "verification": 0.4}),
    model("silently_wrong", verified=False, wrong=True, recheck=0.3),
    {"name": "refused", "built": True, "called": True, "traced": False, "error": "no guard at /a/b/c.py line 12"},
    {"name": "unbuilt", "built": False, "called": False, "traced": False, "error": "needs 'x'"},
]
COUNTS = {
    "models": 5,
    "built": 4,
    "called": 4,
    "traced": 3,
    "conclusive": 3,
    "verified": 2,
    "wrong": 1,
    "tensors": 20,
    "moved": 18,
}
LLAMA = {
    "command": "python bench/llama8b.py --layers 32",
    "python": "3.11",
    "torch": "2.13.0",
    "parameters": 8030261248,
    "seconds": 9.5,
    "stages": {"export": 8.0, "inference": 1.5},
    "peak_gib": 1.25,
    "peak_gib_before": 0.75,
    "groups": 129,
    "permutations": 900,
    "log10_order": 1234567,
    "tensors": 291,
    "moved": 290,
}


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    suite = {"versions": {"torch": "2.13.0"}, "jobs": 2, "seconds": 7.0, "counts": COUNTS, "records": RECORDS}
    write(tmp_path, "zoo-torchvision.json", suite)
    write(tmp_path, "llama8b.json", LLAMA)
    return tmp_path


def test_counts_are_those_of_the_records() -> None:
    assert docs.counts(RECORDS) == COUNTS


def test_reasons_are_summed_over_models() -> None:
    assert docs.reasons(RECORDS) == [
        ("conv2d", "spatial position", 8, 2),
        ("output", "model output", 7, 3),
        ("constant", "constant of the model", 2, 1),
    ]


def test_failures_name_the_stage_and_no_path() -> None:
    assert docs.failures(RECORDS) == [
        ("build", "needs '..'", ["unbuilt"]),
        ("trace", "no guard at (path) line N", ["refused"]),
        ("verify", "the second check sees another function", ["silently_wrong"]),
    ]


def test_page_shows_the_figures(results: Path) -> None:
    page = docs.coverage(results)
    for stage, number in [("all", 5), ("built", 4), ("traced", 3), ("verified", 2), ("wrong", 1)]:
        assert f"| {stage} | {number} |" in page
    assert "18 of the 20 that the traced call uses (90.0%)" in page
    assert "4.0e-07 (good)" in page
    assert "median 2.00, at most 3.00 (better)" in page
    assert "| good | yes | 3 | 5 | 12 | 4 | 9 of 10 | head.bias |" in page
    assert "8,030,261,248" in page
    assert "290 of 291" in page


def test_absent_files_are_named(results: Path) -> None:
    page = docs.coverage(results)
    assert "`results/zoo-transformers.json` is absent" in page
    assert "`results/zoo-torchvision.json` is absent" not in page


@pytest.mark.parametrize("key", ["models", "verified", "wrong", "moved"])
def test_wrong_counts_are_refused(results: Path, key: str) -> None:
    counts = COUNTS | {key: COUNTS[key] + 1}
    write(results, "zoo-torchvision.json", {"counts": counts, "records": RECORDS})
    with pytest.raises(CosetError, match=f"counts {counts[key]} {key} but its records have {COUNTS[key]}"):
        docs.coverage(results)


@pytest.mark.parametrize("content", [[], {"records": 3}, {"records": [{}]}])
def test_a_file_of_another_kind_is_refused(results: Path, content: object) -> None:
    write(results, "zoo-torchvision.json", content)
    with pytest.raises(CosetError, match=r"zoo-torchvision\.json"):
        docs.coverage(results)
