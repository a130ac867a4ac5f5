"""Names in files do not reach the terminal as they are: escape sequences, bells, text that runs the other way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import Result

import coset
from coset.cli import console
from coset.core.errors import CosetError
from coset.core.printable import printable

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r\x00\x7f"
FORBIDDEN = set(NASTY) - set("]0;owned[2J31mgnp.exe")

Run = Callable[..., Result]


def test_what_a_terminal_obeys_is_spelled_out() -> None:
    text = printable(f"a {NASTY} ü\n\tb")
    assert not FORBIDDEN & set(text) and text.startswith(
        "a \\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202egnp.exe\\r\\x00\\x7f ü\n\tb"
    )
    assert printable(text) == text and printable("\ud800") == "\\ud800"
    assert str(CosetError(NASTY)) == printable(NASTY)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of an MLP with one tensor more and one less, of strange names, and a symmetry with a strange one."""
    monkeypatch.chdir(tmp_path)
    state = coset.zoo.build("mlp:4-3-2").state_dict()
    save_file({**state, NASTY: torch.ones(2)}, "more.safetensors", {NASTY: NASTY})
    save_file({NASTY: torch.ones(2)}, "less.safetensors")
    save_file({**state, NASTY: torch.tensor([float("nan")])}, "nan.safetensors")
    (tmp_path / "bad.json").write_text(json.dumps({NASTY: NASTY}))
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "mlp:4-3-2", "--checkpoint", "more.safetensors"),
        ("inspect", "mlp:4-3-2", "--checkpoint", "less.safetensors"),
        ("align", "more.safetensors", "more.safetensors", "--model", "mlp:4-3-2", "-o", "out.safetensors"),
        ("align", "nan.safetensors", "more.safetensors", "--model", "mlp:4-3-2", "-o", "out.safetensors"),
        ("apply", "more.safetensors", "less.safetensors", "-o", "out.safetensors"),
        ("align", "more.safetensors", "more.safetensors", "--symmetry", "bad.json", "-o", "out.safetensors"),
        ("merge", "more.safetensors", "less.safetensors", "--model", "mlp:4-3-2", "-o", "out.safetensors"),
        ("flow", "sample", "more.safetensors", "-o", "out.safetensors"),
    ],
)
def test_commands_print_no_control_characters(run: Run, files: Path, words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code in (0, 2) and not FORBIDDEN & set(result.stdout + result.stderr)


def test_tables_texts_and_objects_print_none(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = console.stdout()
    out.print(console.table(NASTY, [NASTY, "b"], [[NASTY, "1"]], numbers=["b"]))
    out.print(NASTY)
    with console.open_display() as display:
        display.stage(NASTY)
        display.note(NASTY)
    printed = capsys.readouterr()
    lazy = coset.open_state("more.safetensors")
    texts = (
        printed.out,
        printed.err,
        repr(lazy),
        lazy._repr_html_(),
        coset.plot.page(NASTY, [{NASTY: NASTY}], [], [NASTY]),
    )
    for text in texts:
        assert "owned" in text and not FORBIDDEN & set(text)
