"""`coset demo`: it shows what it says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]


def rows(text: str) -> dict[str, list[float]]:
    """Network -> weights moved, output change, accuracy."""
    networks = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(.+?)\s+(\d+)%\s+(\S+)\s+(\S+)%\s*", line)
        if match:
            networks[match[1]] = [float(match[2]) / 100, float(match[3]), float(match[4]) / 100]
    return networks


def check(result: Result, out: Path) -> dict[str, list[float]]:
    assert result.exit_code == 0, result.stderr
    assert (out / "blocks.png").read_bytes().startswith(b"\x89PNG")
    networks = rows(result.stdout)
    image = networks["A moved by a random element"]
    assert image[0] > 0.3 and image[1] < 1e-4  # far in weights, the same in function
    assert image[2] == networks["A"][2]
    assert networks["B"][1] > 0.1
    back = networks["A moved, aligned back to A"]
    assert back[0] == 0 and back[1] < 1e-5
    assert networks["B aligned to A"][2] == networks["B"][2]
    assert (out / "barrier.png").read_bytes().startswith(b"\x89PNG")
    return networks


def test_demo(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coset.cli.commands.demo.EPOCHS", 1)
    monkeypatch.setattr("coset.cli.commands.demo.POINTS", 3)
    monkeypatch.setattr("coset.cli.commands.demo.MODEL", "resnet20:in_channels=1,width=0.25")
    check(run("demo", "--out", tmp_path / "new" / "demo"), tmp_path / "new" / "demo")


@pytest.mark.slow
def test_demo_in_full(run: Run, tmp_path: Path) -> None:
    networks = check(run("demo", "--out", tmp_path), tmp_path)
    assert networks["A"][2] > 0.9 and networks["halfway from A to A moved"][2] < 0.5
    assert networks["halfway from A to B aligned, repaired"][2] > networks["halfway from A to B, repaired"][2] + 0.3


def test_out_must_be_a_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("demo", "--out", tmp_path / "file")
    assert result.exit_code == 2 and result.stderr.startswith("error: --out")
