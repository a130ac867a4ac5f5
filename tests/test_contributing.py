"""What CONTRIBUTING.md says to write works: the Python blocks of each section run, in order, in one namespace."""

from __future__ import annotations

import json
import re
import subprocess
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
EXAMPLES = [name for name, text in SECTIONS.items() if BLOCK.search(text)]
ERRORS = "errors.json"


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Traceback of each section, empty if it ran: in a process of its own, as its blocks add to coset."""
    folder = tmp_path_factory.mktemp("contributing")
    subprocess.run([sys.executable, __file__], cwd=folder, check=True)
    return json.loads((folder / ERRORS).read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", EXAMPLES)
def test_blocks_run(section: str, errors: dict[str, str]) -> None:
    assert not errors[section], errors[section]


def run(section: str) -> str:
    """The traceback, empty if all blocks ran."""
    torch.manual_seed(0)
    module = types.ModuleType("contribution")
    sys.modules["contribution"] = module  # where dataclasses look for their types
    try:
        for block in BLOCK.finditer(SECTIONS[section]):
            exec(compile(block.group(1), f"CONTRIBUTING.md, {section}", "exec"), vars(module))
    except BaseException:
        return traceback.format_exc()
    return ""


def test_there_is_a_section_for_each_thing_that_can_be_added() -> None:
    added = {"a rule for an op", "a cost", "an alignment method", "an inference method", "an architecture", "a figure"}
    assert {f"Add {thing}" for thing in added} <= set(SECTIONS)
    for thing in added:
        assert BLOCK.search(SECTIONS[f"Add {thing}"]), f"Add {thing} has no example"


if __name__ == "__main__":
    Path(ERRORS).write_text(json.dumps({section: run(section) for section in EXAMPLES}), encoding="utf-8")
