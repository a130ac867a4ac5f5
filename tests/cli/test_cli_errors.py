"""Every mistake gets one sentence on stderr and exit code 2, and leaves the files as they were."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_results import refuses
from torch import Tensor
from typer.testing import Result

from coset.core.checkpoint import save_state
from coset.core.errors import SymmetryError
from coset.core.state import of
from coset.zoo import build

Run = Callable[..., Result]
NET = "mlp:4-3-2"


def weights(**changed: Tensor) -> dict[str, Tensor]:
    return of(build(NET)) | {name.replace("_", "."): tensor for name, tensor in changed.items()}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["resnet21"], ["resnet21", "did you mean resnet"]),
        (["no_such_module:net"], ["no_such_module"]),
        (["cli_nets:nothing", "--input", "2x4"], ["nothing"]),
        ([NET, "--args", "{"], ["--args", "not JSON"]),
        ([NET, "--args", "[1]"], ["--args", "JSON object"]),
        (["cli_nets:net"], ["Sequential", "--input"]),
        (["cli_nets:net", "--input", "2by4"], ["2by4", "2x3x32x32"]),
        (["cli_nets:net", "--input", "2x4:int<0"], ["int<0"]),
        (["cli_nets:net", "--input", "9999999x9999999"], ["9999999x9999999", "cannot be made"]),
        (["cli_nets:net", "--input", "x=2x4", "--input", "x=2x4"], ["x is given twice"]),
        (["cli_nets:net", "--input", "2x5"], ["Sequential", "traced"]),
        ([NET, "--checkpoint", "absent.safetensors"], ["absent.safetensors"]),
        ([NET, "--checkpoint", "cli_nets.py"], ["cli_nets.py", "format"]),
        ([NET, "--meta", "--checkpoint", "absent.safetensors"], ["--meta", "--checkpoint"]),
        ([NET, "--output", "absent/sym.json"], ["--output", "no folder absent"]),
        ([NET, "--output", "sym.txt"], ["--output", ".json"]),
        ([NET, "--plot", "net.jpeg"], ["--plot", ".png"]),
        ([NET, "--plot", "folder.png"], ["--plot", "folder"]),
    ],
)
def test_mistakes(run: Run, folder: Path, words: list[str], parts: list[str]) -> None:
    (folder / "folder.png").mkdir()
    refuses(run("inspect", *words), *parts)
    assert {path.name for path in folder.iterdir()} <= {"cli_nets.py", "folder.png", "__pycache__"}


def test_truncated_checkpoint(run: Run, folder: Path) -> None:
    save_state(weights(), "net.safetensors")
    (folder / "short.safetensors").write_bytes((folder / "net.safetensors").read_bytes()[:-20])
    torch.save(weights(), "net.pt")
    (folder / "short.pt").write_bytes((folder / "net.pt").read_bytes()[:200])
    for name in ("short.safetensors", "short.pt"):
        refuses(run("inspect", NET, "--checkpoint", name, "--output", "sym.json"), name)
    assert not (folder / "sym.json").exists()


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"layers_0_weight": torch.ones(3, 5)}, ["layers.0.weight", "(3, 5)", "(3, 4)"]),
        ({"layers_0_bias": torch.tensor([0.0, torch.nan, 1.0])}, ["layers.0.bias", "NaN"]),
    ],
)
def test_wrong_weights(run: Run, folder: Path, changed: dict[str, Tensor], parts: list[str]) -> None:
    save_state(weights(**changed), "net.safetensors")
    refuses(run("inspect", NET, "--checkpoint", "net.safetensors", "--output", "sym.json"), *parts)
    assert not (folder / "sym.json").exists()


def test_missing_keys(run: Run, folder: Path) -> None:
    state = weights()
    del state["layers.1.bias"]
    save_state(state, "net.safetensors")
    refuses(run("inspect", NET, "--checkpoint", "net.safetensors"), "Missing", "layers.1.bias", "net.safetensors")


def test_inputs_are_never_overwritten(run: Run, folder: Path) -> None:
    save_state(weights(), "net.safetensors")
    (folder / "link.json").symlink_to("net.safetensors")
    before = (folder / "net.safetensors").read_bytes()
    for option, path in (("--output", "net.safetensors"), ("--plot", "net.safetensors"), ("--output", "link.json")):
        refuses(run("inspect", NET, "--checkpoint", "net.safetensors", option, path), option, path, "input")
    assert (folder / "net.safetensors").read_bytes() == before


def test_index_of_a_sharded_checkpoint_is_an_input(run: Run, folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text("{}")
    refuses(run("inspect", NET, "--checkpoint", ".", "--output", index.name), "--output", "input")
    assert index.read_text() == "{}"


def test_unwritable_output(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    refuses(run("inspect", NET, "--output", "sym.json"), "--output", "sym.json", "No space left on device")
    assert not list(folder.glob("*.json")) and not list(folder.glob(".*"))


def test_a_wrong_symmetry_is_an_error(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: object, **kwargs: object) -> None:
        raise SymmetryError("the model's output\nchanges")

    monkeypatch.setattr("coset.symmetries.infer.symmetry", wrong)
    refuses(run("inspect", NET, "--output", "sym.json"), "the model's output changes")
    assert not (folder / "sym.json").exists()
