"""What CONTRIBUTING.md says to write works: the Python blocks of each section run, in order, in one namespace."""

from __future__ import annotations

import os
import re
import sys
import traceback
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
    child = os.fork()  # what the blocks add to coset is not there for other tests
    if child == 0:
        os._exit(run(section))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, (tmp_path / "error.txt").read_text(encoding="utf-8")


def run(section: str) -> int:
    """Run the blocks of a section; 1, and the traceback in a file, if one raises."""
    module = types.ModuleType("contribution")
    sys.modules["contribution"] = module  # where dataclasses look for their types
    try:
        for block in BLOCK.finditer(SECTIONS[section]):
            exec(compile(block.group(1), f"CONTRIBUTING.md, {section}", "exec"), vars(module))
    except BaseException:
        Path("error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return 1
    return 0


def test_there_is_a_section_for_each_thing_that_can_be_added() -> None:
    added = {"a rule for an op", "a cost", "an alignment method", "an inference method", "an architecture", "a figure"}
    assert {f"Add {thing}" for thing in added} <= set(SECTIONS)
    for thing in added:
        assert BLOCK.search(SECTIONS[f"Add {thing}"]), f"Add {thing} has no example"
