"""The Python blocks of README.md and docs/*.md run, in order, and print what the page says they print."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
# A block, and the ```text block that follows it, if any: what it prints.
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[int, str, str | None]]:
    """(line, code, expected output) of each Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(1)) + 1, m.group(1), m.group(2)) for m in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COSET_DATA", raising=False)
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "example"}
    for line, code, expected in blocks(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Blank lines before the code make a traceback show the line of the page.
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
        if expected is not None:
            assert printed.getvalue().strip() == expected.strip(), f"{page.name}, line {line}"


def test_pages_have_examples() -> None:
    with_blocks = {page.name for page in PAGES if blocks(page)}
    assert {"README.md", "symmetry.md", "states.md", "data.md", "zoo.md", "mathematics.md"} <= with_blocks


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_promises_are_shown_by_files_that_exist() -> None:
    files = re.findall(r"tests/[\w/]+\.py", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(files) >= 6 and all((ROOT / file).is_file() for file in files)
