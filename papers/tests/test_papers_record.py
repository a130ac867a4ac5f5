"""`coset reproduce`: what it lists, prints, writes and refuses, on a figure made for the purpose."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import Result

import coset
from coset.plot.figure import canvas
from coset_papers import (
    Claim,
    Exhibit,
    Outcome,
    Settings,
    catalogue,
    settings as papers_settings,
    titles,
)

Reproduce = Callable[..., Result]
PAUSE = 0.05  # seconds
CLAIMS = (
    Claim("it is large", 5.0, 4.75, True, "As large as that."),
    Claim("it is red", "red", "blue", False),
    Claim("it is", None, "perhaps", None),
)


def compute(settings: Settings) -> Outcome:
    """A figure of one line."""
    settings.say("looking")
    line = settings.keep("line", lambda: time.sleep(PAUSE) or [0, settings.seed])
    return Outcome({"line": tuple(line)}, CLAIMS)


def draw(data: Any) -> Figure:
    """The line, as JSON has it."""
    assert isinstance(data["line"], list)
    figure = canvas(2, 2)
    figure.add_subplot().plot(data["line"])
    return figure


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "PAPERS", {"gelberg2024": ""})
    monkeypatch.setitem(catalogue._EXHIBITS, "gelberg2024/toy", Exhibit("a line", compute, draw))


def test_record_and_picture(reproduce: Reproduce, tmp_path: Path) -> None:
    result = reproduce("gelberg2024/toy", "--out", tmp_path / "new", "--seed", 3)
    assert result.exit_code == 0, result.stderr
    words = result.stdout.split()
    assert "looking ..." in result.stderr and "As large as that." in result.stdout
    assert {"4.75", "holds", "DOES", "HOLD", "comparable", "perhaps"} <= set(words)
    record = json.loads((tmp_path / "new" / "gelberg2024-toy-smoke.json").read_text())
    assert record["data"] == {"line": [0, 3]} and record["claims"][1]["ours"] == "blue"
    assert record["command"] == "coset reproduce gelberg2024/toy --scale smoke --device cpu --seed 3"
    assert record["versions"]["coset"] == coset.__version__ and record["seconds"] > 0
    assert (tmp_path / "new" / "gelberg2024-toy-smoke.png").stat().st_size > 1000


def test_memory_is_that_of_the_part_which_took_most(
    reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = iter([7.25, 0.5, 0.75])  # of the part, of what came after it, and of a second process
    monkeypatch.setattr(papers_settings, "fresh_peak_gib", lambda device: next(peaks))
    for _ in range(2):
        result = reproduce("gelberg2024/toy", "--out", tmp_path)
        assert " s, 7.2 GiB, CPU, 1 thread\n" in result.stdout
        assert json.loads((tmp_path / "gelberg2024-toy-smoke.json").read_text())["GiB"] == 7.25


def test_the_seconds_of_kept_parts_count(reproduce: Reproduce, tmp_path: Path) -> None:
    for _ in range(2):
        record = json.loads(reproduce("gelberg2024/toy", "--out", tmp_path, "--json").stdout)
        assert record["seconds"] >= PAUSE and record["whole"]
    assert len(list((tmp_path / "parts").iterdir())) == 1


def test_json_is_the_record(reproduce: Reproduce, tmp_path: Path) -> None:
    result = reproduce("gelberg2024/toy", "--out", tmp_path, "--json", "--scale", "short")
    assert result.stderr == ""
    assert json.loads(result.stdout) == json.loads((tmp_path / "gelberg2024-toy-short.json").read_text())


def test_a_record_alone_is_drawn_again(reproduce: Reproduce, tmp_path: Path) -> None:
    reproduce("gelberg2024/toy", "--out", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "renamed.json"
    (tmp_path / "gelberg2024-toy-smoke.json").rename(copy)
    result = reproduce("--redraw", copy)
    assert result.stdout == f"wrote {copy.with_suffix('.png')}\n"
    assert copy.with_suffix(".png").stat().st_size > 1000


def test_all_are_listed(reproduce: Reproduce) -> None:
    for words in (["--list"], []):
        assert "gelberg2024/toy" in reproduce(*words).stdout
    listed = json.loads(reproduce("--list", "--json").stdout)
    assert listed == titles()
    assert list(listed)[-1] == "gelberg2024/toy" and listed["gelberg2024/toy"] == "a line"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gelberg2024/fig99"], "There is no figure 'gelberg2024/fig99' to reproduce, only gelberg2024/fig2"),
        (["gelberg2024/toy", "--scale", "large"], "There is no scale 'large'"),
        (["gelberg2024/toy", "--device", "toaster"], "The device 'toaster' cannot be used"),
        (["gelberg2024/toy", "--redraw", "x.json"], "--redraw takes no name"),
        (["--redraw", "absent.json"], "There is no file or folder absent.json"),
        (["--redraw", "broken.json"], "broken.json is not JSON"),
        (["--redraw", "deep.json"], "deep.json is JSON that is nested more than 64 times"),
        (["--redraw", "other.json"], "other.json is no record of a figure"),
        (["--redraw", "empty.json"], "empty.json does not hold the data of gelberg2024/toy"),
        (["--redraw", "record.png"], "record.png is where its picture would be"),
        (["gelberg2024/toy", "--out", "file"], "--out file cannot be written: File exists"),
    ],
)
def test_wrong_words_are_one_sentence(
    reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = json.dumps({"figure": "gelberg2024/toy", "claims": [], "data": {}})
    files = {
        "broken.json": "{",
        "deep.json": "[" * 100_000,
        "other.json": "{}",
        "file": "",
        "empty.json": empty,
        "record.png": empty,
    }
    for name, text in files.items():
        Path(name).write_text(text)
    result = reproduce(*words)
    assert result.exit_code == 2 and f"error: {message}" in result.stderr.replace("\n", " ")
    assert {path.name for path in tmp_path.rglob("*")} == files.keys()
    assert Path("record.png").read_text() == empty
