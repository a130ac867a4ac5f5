"""Commands that are killed, meet a full disk or share a folder lose nothing, mix nothing, and go on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("no signals, limits and locks of this kind", allow_module_level=True)

from command_stops import WORKS, disturb

FEW, MANY = (2, 1, 1), (14, 3, 3)  # kills, full disks and pairs


def check(root: Path, names: list[str], counts: tuple[int, int, int]) -> None:
    rows = disturb(root, names, counts)
    assert {name: [one.wrong for one in row.values() if one.wrong] for name, row in rows.items()} == {
        name: [] for name in names
    }
    assert sum(row["kills"].hits for row in rows.values()) > 0


def test_a_run_is_disturbed(tmp_path: Path) -> None:
    check(tmp_path, ["fit map"], FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_each_command_is_disturbed_often(tmp_path: Path, name: str) -> None:
    check(tmp_path, [name], MANY)
