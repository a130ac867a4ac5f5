"""Parts that are kept: computed once, known by all they depend on, and as JSON gives them back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coset.core.errors import CosetError
from coset_papers import Settings


class Work:
    """Counts how often it is done."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self) -> dict[str, Any]:
        self.done += 1
        return {"pair": (1, 2.5), "done": self.done}


def test_a_part_is_computed_once_and_is_what_json_gives_back(tmp_path: Path) -> None:
    work, settings = Work(), Settings(out=tmp_path)
    first = settings.keep("part", work, width=3)
    again = Settings(out=tmp_path)
    assert again.keep("part", work, width=3) == first == {"pair": [1, 2.5], "done": 1}
    assert settings.ledger.seconds == 0 and again.ledger.seconds > 0
    assert settings.ledger.peaks == again.ledger.peaks and 0 < settings.ledger.peaks[0] < 1024


@pytest.mark.parametrize(
    "other",
    [
        lambda out, work: Settings(out=out).keep("part", work, width=4),
        lambda out, work: Settings(out=out).keep("other", work, width=3),
        lambda out, work: Settings(out=out, seed=1).keep("part", work, width=3),
        lambda out, work: Settings("short", out=out).keep("part", work, width=3),
        lambda out, work: Settings(out=out / "else").keep("part", work, width=3),
    ],
)
def test_a_part_is_known_by_all_it_depends_on(tmp_path: Path, other: Any) -> None:
    work = Work()
    Settings(out=tmp_path).keep("part", work, width=3)
    assert other(tmp_path, work)["done"] == 2


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path)
    with pytest.raises(ZeroDivisionError):
        settings.keep("part", lambda: 1 / 0)
    with pytest.raises(ValueError, match="JSON"):
        settings.keep("part", lambda: float("nan"))
    assert not list(tmp_path.rglob("*.json"))
    assert settings.keep("part", lambda: 1) == 1


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path)
    settings.keep("part", lambda: 1)
    (file,) = tmp_path.rglob("*.json")
    assert json.loads(file.read_text())["key"]["name"] == "part"
    file.write_text("{")
    with pytest.raises(CosetError, match=r"part-smoke-\w+\.json is not JSON"):
        settings.keep("part", lambda: 1)
    file.write_text('{"seconds": 1, "value": 1}')
    with pytest.raises(CosetError, match=r"part-smoke-\w+\.json is a part of another version: remove it"):
        settings.keep("part", lambda: 1)
    file.write_text("{}")
    with pytest.raises(CosetError, match=r"part-smoke-\w+\.json has no 'value': remove it"):
        settings.keep("part", lambda: 1)


def test_folders_differ_by_what_they_hold(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path)
    assert settings.folder("net", width=3) == settings.folder("net", width=3)
    assert settings.folder("net", width=3) != settings.folder("net", width=4)


def test_the_seed_decides() -> None:
    assert torch.equal(*(torch.randn(3, generator=Settings(seed=2).generator()) for _ in range(2)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scale": "large"}, "There is no scale 'large', only smoke, short, paper."),
        ({"seed": -1}, "The seed must be in"),
        ({"device": "meta"}, "The device 'meta' cannot be used"),
        ({"device": "toaster"}, "The device 'toaster' cannot be used"),
    ],
)
def test_wrong_settings_are_one_sentence(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        Settings(**wrong)
