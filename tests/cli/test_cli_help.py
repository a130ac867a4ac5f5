"""Help: every command explains all its options and has an example that it would understand; commands are files."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

import coset
from coset.cli import app
from coset.cli.app import add_commands
from coset.cli.methods import classes

Run = Callable[..., Result]
ROOT: Any = typer.main.get_command(app)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All of them, with the words that call them."""
    yield path, group
    if isinstance(group, TyperGroup):
        for name in group.list_commands(typer.Context(group)):
            inner = group.get_command(typer.Context(group), name)
            assert inner is not None
            yield from commands(inner, (*path, name))


COMMANDS = {path: command for path, command in commands(ROOT) if path[:1] != ("bench",) or path == ("bench",)}
EXAMPLES = [
    shlex.split(line.removeprefix("Example: coset "))
    for command in COMMANDS.values()
    for line in (command.epilog or "").split("\n\n")
    if line
]


def test_all_commands_are_there() -> None:
    own = {"align", "apply", "barrier", "curve", "demo", "evaluate", "fit", "flow", "inspect", "merge", "overlap"}
    assert own | {"bench", "reproduce"} <= {path[0] for path in COMMANDS if len(path) == 1}
    assert {path[1] for path in COMMANDS if path[:1] == ("flow",) and path[1:]} == {
        "collect",
        "evaluate",
        "fit",
        "sample",
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_examples_and_explains_options(run: Run, path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    result = run(*path, "--help")
    assert result.exit_code == 0 and "Example: coset" in result.stdout
    assert command.help and command.help.rstrip().endswith(".") and "Example" not in command.help
    for option in command.params:
        text = getattr(option, "help", None)
        assert isinstance(text, str) and text.endswith("."), f"coset {' '.join(path)}: {option.name}"


def documented() -> list[list[str]]:
    """The commands of the pages and of the README, but for those with placeholders such as [options]."""
    root = Path(__file__).parents[2]
    calls = []
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line.partition(" | ")[0] for line in text.splitlines() if line.startswith("$ coset ")]
        calls += [shlex.split(line.removeprefix("$ coset ")) for line in lines]
    return [words for words in calls if "[options]" not in words and words[0] != "bench"]


@pytest.mark.parametrize("words", [*EXAMPLES, *documented()], ids=" ".join)
def test_examples_and_documented_commands_parse(words: list[str]) -> None:
    command, names = ROOT, list(words)
    while isinstance(command, TyperGroup):
        inner = command.get_command(typer.Context(command), names.pop(0))
        assert inner is not None, words
        command = inner
    with command.make_context("coset", names) as context:
        assert context.params


@pytest.mark.parametrize(
    ("path", "settings"),
    [(("curve",), coset.Connect()), (("flow", "collect"), coset.Collect()), (("flow", "fit"), coset.Matching())],
    ids=str,
)
def test_defaults_that_help_tells_are_those_of_the_settings(path: tuple[str, ...], settings: Any) -> None:
    options = {option.name: option.help for option in COMMANDS[path].params if option.default is None}
    claims = {name: text.partition(" if not given")[0] for name, text in options.items() if " if not given" in text}
    checked = [name for name in claims if getattr(settings, name, None) is not None]
    assert len(checked) >= 3
    for name in checked:
        default = getattr(settings, name)
        last = claims[name].split()[-1]
        assert last == default or float(last) == default, f"--{name}: {options[name]}"


def test_help_names_all_methods_of_inference() -> None:
    (method,) = (option for option in COMMANDS[("fit",)].params if option.name == "method")
    assert all(name in method.help for name in classes())


def test_a_new_command_is_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extra_commands" / "group").mkdir(parents=True)
    (tmp_path / "extra_commands" / "__init__.py").write_text('"""More."""\n')
    (tmp_path / "extra_commands" / "group" / "__init__.py").write_text(
        '"""Many.\n\nExample: coset group greet you\n"""\n'
    )
    text = 'def greet(name: str) -> None:\n    """Greet.\n\n    Example: coset greet you\n    """\n    print(name)\n'
    for folder in ("extra_commands", "extra_commands/group"):
        (tmp_path / folder / "greet.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = typer.Typer()
    add_commands(own, importlib.import_module("extra_commands"))
    assert CliRunner().invoke(own, ["greet", "you"]).stdout == "you\n"
    assert CliRunner().invoke(own, ["group", "greet", "them"]).stdout == "them\n"
    assert "Example: coset greet you" in CliRunner().invoke(own, ["greet", "--help"]).stdout
    for name in [name for name in sys.modules if name.startswith("extra_commands")]:
        monkeypatch.delitem(sys.modules, name)
