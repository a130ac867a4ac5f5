"""What CONTRIBUTING.md says to write works: the Python blocks of each section run, in order, in one namespace."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = {
    title.splitlines()[0]: title
    for title in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
}


@pytest.mark.parametrize("section", [name for name, text in SECTIONS.items() if BLOCK.search(text)])
def test_blocks_run(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    module = types.ModuleType("contribution")
    monkeypatch.setitem(sys.modules, "contribution", module)  # where dataclasses look for their types
    for block in BLOCK.finditer(SECTIONS[section]):
        exec(compile(block.group(1), f"CONTRIBUTING.md, {section}", "exec"), vars(module))


def test_there_is_a_section_for_each_thing_that_can_be_added() -> None:
    added = {"a rule for an op", "a cost", "an alignment method", "an inference method", "an architecture", "a figure"}
    assert {f"Add {thing}" for thing in added} <= set(SECTIONS)
    for thing in added:
        assert BLOCK.search(SECTIONS[f"Add {thing}"]), f"Add {thing} has no example"
