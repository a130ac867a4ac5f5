"""Files that are there: no command replaces one unless told to, an input never, and one that another writes not now."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from command_results import refuses
from flow_populations import NET, SMALL, write
from typer.core import TyperGroup
from typer.testing import Result

import coset
from coset import zoo
from coset.cli import app
from coset.core.lock import locked

Run = Callable[..., Result]
BEFORE = b"the work of a week"
MODEL = ("--model", NET)
PAIR = ("a.safetensors", "b.safetensors")
DATA = ("--data", "breast-cancer")
# Commands, without the option that names what they write.
WRITERS: dict[str, tuple[tuple[object, ...], str]] = {
    "align": (("align", *PAIR, *MODEL, "-o"), "out.safetensors"),
    "apply": (("apply", "e.element.safetensors", "b.safetensors", "-o"), "out.safetensors"),
    "merge": (("merge", *PAIR, *MODEL, "-o"), "out.safetensors"),
    "barrier": (("barrier", *PAIR, *MODEL, *DATA, "--points", 2, "--html"), "out.html"),
    "curve": (("curve", *PAIR, *MODEL, *DATA, "-o", "run", "--epochs", 1, "--points", 2, "--html"), "out.html"),
    "inspect": (("inspect", NET, "--output"), "out.json"),
    "inspect plot": (("inspect", NET, "--plot"), "out.svg"),
    "collect": (("flow", "collect", *MODEL, *DATA, "--runs", 2, "--epochs", 1, "-o"), "out.safetensors"),
    "fit": (("flow", "fit", "nets.safetensors", *SMALL, "-o"), "out.safetensors"),
    "sample": (("flow", "sample", "flow.safetensors", "-n", 2, "--steps", 1, "-o"), "out.safetensors"),
    "evaluate": (("flow", "evaluate", "nets.safetensors", *DATA, "--count", 2, "--pairs", 1, "--html"), "out.html"),
}
WRITING = ("--output", "--html", "--plot")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files that the commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    population = write(folder, "nets", 4)
    model = zoo.build(NET)
    sym = coset.symmetry(model, zoo.example_input(NET))
    (folder / "sym.safetensors").write_text(sym.to_json())  # any name will do
    for k, name in enumerate("ab"):
        coset.save_state({key: x[k] for key, x in population.states.items()}, folder / f"{name}.safetensors")
    coset.symmetries.serialization.save_element(folder / "e.element.safetensors", sym, sym.identity())
    plan = coset.FlowPlan(architecture=coset.Architecture(width=8, depth=1, heads=2))
    flow = coset.Flow.of(sym, plan)
    flow.fit(population, coset.Matching(epochs=1, batch_size=4))
    flow.save(folder / "flow.safetensors")
    return folder


@pytest.fixture
def here(inputs: Path, folder: Path) -> Path:
    """The current folder, with them."""
    for file in inputs.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_exists_is_not_replaced_without_a_word(run: Run, here: Path, name: str) -> None:
    words, output = WRITERS[name]
    (here / output).write_bytes(BEFORE)
    before = {path.name for path in here.iterdir()}
    refuses(run(*words, output), f"{output} exists: choose another name, or add --overwrite to replace it.")
    assert (here / output).read_bytes() == BEFORE and {path.name for path in here.iterdir()} == before


@pytest.mark.parametrize("name", ["align", "apply", "inspect", "inspect plot", "sample"])
def test_it_is_replaced_if_asked_for(run: Run, here: Path, name: str) -> None:
    words, output = WRITERS[name]
    (here / output).write_bytes(BEFORE)
    result = run(*words, output, "--overwrite")
    assert result.exit_code == 0, result.stderr
    assert (here / output).read_bytes() != BEFORE
    assert not list(here.glob(".*"))


def test_the_element_beside_is_not_replaced_either(run: Run, here: Path) -> None:
    (here / "out.element.safetensors").write_bytes(BEFORE)
    refuses(run(*WRITERS["align"][0], "out.safetensors"), "out.element.safetensors exists")
    assert (here / "out.element.safetensors").read_bytes() == BEFORE and not (here / "out.safetensors").exists()


def test_a_link_that_leads_nowhere_is_a_file(run: Run, here: Path) -> None:
    (here / "out.json").symlink_to("nowhere")
    refuses(run("inspect", NET, "--output", "out.json"), "out.json exists")
    assert (here / "out.json").is_symlink()


def test_pictures_of_the_demo_are_not_replaced(run: Run, folder: Path) -> None:
    (folder / "demo").mkdir()
    (folder / "demo" / "barrier.png").write_bytes(BEFORE)
    refuses(run("demo", "--out", "demo"), "barrier.png exists")
    assert [path.read_bytes() for path in (folder / "demo").iterdir()] == [BEFORE]


@pytest.mark.parametrize("command", ["align", "merge"])
def test_the_symmetry_is_an_input(run: Run, here: Path, command: str) -> None:
    before = (here / "sym.safetensors").read_bytes()
    words = (command, *PAIR, "--symmetry", "sym.safetensors", "-o", "sym.safetensors", "--overwrite")
    refuses(run(*words), "sym.safetensors is an input and is never overwritten")
    assert (here / "sym.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["align", "inspect", "sample"])
@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_file_that_another_command_is_to_write_is_refused(
    run: Run, here: Path, name: str, more: tuple[object, ...]
) -> None:
    words, output = WRITERS[name]
    with locked(here / f".{output}.lock", "It"):
        refuses(run(*words, output, *more), f"{output} is in use by process")
    assert not (here / output).exists()


def test_every_command_that_writes_a_file_says_so() -> None:
    def writers(group: Any, path: str) -> dict[str, bool]:
        if isinstance(group, TyperGroup):
            context = typer.Context(group)
            inner = {name: group.get_command(context, name) for name in group.list_commands(context)}
            return {key: x for name, one in inner.items() for key, x in writers(one, f"{path} {name}").items()}
        options = {word for option in group.params for word in option.opts}
        return {path: "--overwrite" in options} if options & set(WRITING) else {}

    found = writers(typer.main.get_command(app), "coset")
    assert len(found) >= 10 and all(found.values()), json.dumps(found, indent=1)
