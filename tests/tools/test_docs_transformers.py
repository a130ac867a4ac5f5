"""The page of transformers says what the record says, and exists only with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_docs_coverage import write

from bench import transformers as bench
from coset.core.errors import CosetError
from tools import docs
from tools.docs_transformers import NAME, ROWS, transformers

ROW = {
    "barrier": [0.4321, 0.0123],
    "loss halfway": [1.9, 0.01],
    "accuracy halfway": [0.5, 0.02],
    "seconds": [12.0, 0.5],
    "pairs": [],
}
FAMILY = {
    "model": "gpt:dim=8",
    "data": "tinyshakespeare",
    "training": "AdamW(rate=0.001)",
    "networks": ["a", "b"],
    "loss": [1.5, 0.01],
    "accuracy": [0.55, 0.01],
    "largest change of a loss": 2e-7,
    "published": {"naive": 2.02},
    "rows": {"naive": ROW, "permutations": ROW | {"seconds": [3.0, None]}},
    "device": "A GPU",
    "versions": {"coset": "0.1", "torch": "2.13.0"},
}
RECORD: dict[str, Any] = {"command": "python -m bench transformers --device cuda", "families": {"gpt-ln": FAMILY}}


def test_page_shows_the_figures(tmp_path: Path) -> None:
    write(tmp_path, NAME, RECORD)
    page = transformers(tmp_path)
    assert page is not None
    for line in (
        "## gpt-ln",
        "| as they were trained | 0.432 ± 0.012 | 1.900 ± 0.010 | 0.500 ± 0.020 | 12.000 ± 0.500 | 2.02 |",
        "| permutations, by weights | 0.432 ± 0.012 | 1.900 ± 0.010 | 0.500 ± 0.020 | 3.000 | - |",
        "`python -m bench transformers --device cuda --out results/bench-transformers.json`",
    ):
        assert line in page, line
    flat = " ".join(page.split())
    assert "2 networks `gpt:dim=8` on tinyshakespeare, AdamW(rate=0.001). Their test loss 1.500 ± 0.010" in flat
    assert "changed the loss of an end by 2e-07 at most (A GPU; coset 0.1, torch 2.13.0)" in flat


def test_another_function_is_told(tmp_path: Path) -> None:
    write(tmp_path, NAME, RECORD | {"families": {"llama": FAMILY | {"largest change of a loss": 0.2}}})
    page = transformers(tmp_path)
    assert page is not None and "**BY 2e-01: ANOTHER FUNCTION**" in page


def test_every_row_has_words() -> None:
    assert list(ROWS) == [*(row for row in bench.ROWS if row != "learned"), "learned"]


def test_a_record_of_another_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path, NAME, {"command": "x"})
    with pytest.raises(CosetError, match=f"{NAME} lacks a figure"):
        transformers(tmp_path)


def test_the_page_is_written_if_there_is_a_record(tmp_path: Path) -> None:
    pages, results, records = (tmp_path / name for name in ("docs", "results", "records"))
    for folder in (pages, results, records):
        folder.mkdir()
    assert docs.main([str(pages), str(results), str(records)]) == 0
    assert not (pages / "transformers.md").exists()
    write(results, NAME, RECORD)
    assert docs.main([str(pages), str(results), str(records)]) == 0
    assert (pages / "transformers.md").read_text(encoding="utf-8").startswith("# Merging transformers, measured")
