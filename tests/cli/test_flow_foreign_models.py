"""A file may name models of the zoo; code of anybody else runs only when the command line names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flow_populations import NET, SMALL, Run, complaint, report, write

import coset

TRAP = """
from pathlib import Path
from coset.zoo import MLP
Path("ran").touch()
def net():
    return MLP([30, 4, 2])
"""
OWN = "cli_trap:net"
COMMANDS = {
    "fit": ("flow", "fit", "nets.safetensors", "-o", "new.safetensors", *SMALL),
    "fit on data": ("flow", "fit", "nets.safetensors", "--data", "breast-cancer", "-o", "new.safetensors", *SMALL),
    "sample": ("flow", "sample", "flow.safetensors", "-n", 2, "--steps", 1, "-o", "new.safetensors"),
    "guide": ("flow", "sample", "flow.safetensors", "-n", 2, "--guide", "breast-cancer", "-o", "new.safetensors"),
    "evaluate": ("flow", "evaluate", "nets.safetensors", "--data", "breast-cancer"),
    "against": (
        *("flow", "evaluate", "plain.safetensors", "--data", "breast-cancer"),
        *("--against", "nets.safetensors"),
    ),
}


@pytest.fixture(autouse=True)
def trap(folder: Path) -> Iterator[None]:
    """A module that leaves a trace when it is imported."""
    (folder / "cli_trap.py").write_text(TRAP)
    yield
    sys.modules.pop("cli_trap", None)


def files(run: Run, folder: Path, name: str, arguments: str | None = None) -> None:
    """A population and a flow that say they are of the model `name`, and a population that says nothing."""
    networks = write(folder, "nets")
    about = {"model": name, "arguments": arguments, "inputs": []}
    replace(networks, about=about).save(folder / "nets.safetensors")
    replace(networks, about={}).save(folder / "plain.safetensors")
    result = run("flow", "fit", "nets.safetensors", "--model", NET, "-o", "flow.safetensors", *SMALL)
    assert result.exit_code == 0, result.stderr
    assert coset.Flow.load(folder / "flow.safetensors").sampler.about["model"] == name


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (OWN, None),
        ("os:system", json.dumps({"command": "touch ran"})),
        ("coset.zoo:MLP", json.dumps({"sizes": [30, 4, 2]})),  # even of the library: the file does not choose
        ("unheard-of", None),
    ],
)
def test_a_file_alone_runs_no_code(run: Run, folder: Path, command: str, name: str, arguments: str | None) -> None:
    files(run, folder, name, arguments)
    message = complaint(run(*COMMANDS[command]))
    named = "flow" if command in ("sample", "guide") else "nets"
    assert f"{named}.safetensors" in message and repr(name) in message and "--model" in message
    assert not (folder / "ran").exists() and not (folder / "new.safetensors").exists()
    assert "cli_trap" not in sys.modules


@pytest.mark.parametrize("command", COMMANDS)
def test_whoever_names_the_model_can_work_with_the_file(run: Run, folder: Path, command: str) -> None:
    files(run, folder, OWN)
    assert report(run(*COMMANDS[command], "--model", OWN, "--json"))["model"] == OWN
    assert (folder / "ran").exists()


def test_a_collection_of_an_own_model_is_named_again(run: Run, folder: Path) -> None:
    words = ("--data", "breast-cancer", "--runs", 4, "--epochs", 1, "-o", "nets.safetensors")
    assert run("flow", "collect", "--model", OWN, *words).exit_code == 0
    message = complaint(run(*COMMANDS["evaluate"]))
    assert repr(OWN) in message and "--model" in message
    assert report(run(*COMMANDS["evaluate"], "--model", OWN, "--json"))["model"] == OWN
