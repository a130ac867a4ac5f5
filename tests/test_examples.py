"""The scripts of examples/ run, print something, and are short."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

SCRIPTS = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 40
    assert not any(tmp_path.iterdir())


def test_there_are_five() -> None:
    assert len(SCRIPTS) >= 5
