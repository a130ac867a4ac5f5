"""The page of papers says what the records say, with the command beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coset.errors import CosetError
from coset.report.docs_papers import papers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results/papers/gelberg2024-fig2-paper.json").read_text())
    return found


def results(folder: Path, *records: dict[str, Any]) -> Path:
    (folder / "papers").mkdir()
    for k, record in enumerate(records):
        (folder / "papers" / f"{k}.json").write_text(json.dumps(record))
    return folder


def test_claims_with_their_verdicts(tmp_path: Path, record: dict[str, Any]) -> None:
    first = record["claims"][0]
    other = first | {"text": "a | b", "published": 5.0, "ours": 4.12345, "holds": False, "note": "Why."}
    claims = [other, first | {"holds": None, "note": "Why."}]
    text, pictures = papers(results(tmp_path, record | {"claims": claims}))
    assert "| a \\| b | 5 | 4.123 | **does not hold** |" in text and text.count("Why.") == 1
    assert f"| {first['ours']} | - |" in text and record["command"] in text
    assert list(pictures) == ["gelberg2024-fig2-paper.png"] and "(img/gelberg2024-fig2-paper.png)" in text


def test_cost_stands_beside_the_command(tmp_path: Path, record: dict[str, Any]) -> None:
    short = record | {"scale": "short", "seconds": 42.0}
    short.pop("GiB", None)  # as records of before have it
    text, _ = papers(results(tmp_path, record | {"seconds": 90.0, "GiB": 2.25}, short))
    version = record["versions"]["torch"]
    assert f"torch {version}; 1.5 minutes, 2.2 GiB)." in text and f"torch {version}; 0.7 minutes)." in text


def test_the_larger_scale_comes_first(tmp_path: Path, record: dict[str, Any]) -> None:
    text, pictures = papers(
        results(tmp_path, record | {"scale": "short", "title": "small"}, record | {"title": "large"})
    )
    assert text.index("fig2: large") < text.index("fig2: small") and len(pictures) == 2


def test_a_record_without_its_figures_is_named(tmp_path: Path, record: dict[str, Any]) -> None:
    del record["data"]
    with pytest.raises(CosetError, match=r"0\.json lacks a figure \(data\)"):
        papers(results(tmp_path, record))


def test_without_records(tmp_path: Path) -> None:
    text, pictures = papers(tmp_path)
    assert text.startswith("# Figures of papers, measured") and not pictures
