"""Locks: one process at a time, of which the others hear, until it ends however it may."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coset.core import lock
from coset.core.errors import CosetError
from coset.core.lock import hold_file, lock_scope, locked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks")

HOLD = """
import sys
from pathlib import Path
from coset.core.lock import locked
with locked(Path(sys.argv[1]), "It"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    words = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_process_is_refused_and_hears_who_holds_it(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with holder(file) as process:
        with pytest.raises(CosetError) as caught, locked(file, "The folder run"):
            pass
        text = str(caught.value)
        assert text.startswith(f"The folder run is in use by process {process.pid} on {os.uname().nodename} since 20")
        assert "UTC (-c " in text and "\n" not in text
        assert json.loads(file.read_text())["pid"] == process.pid  # whoever is refused changes nothing
        process.communicate("")
    assert not file.exists()
    with locked(file, "It"):
        assert json.loads(file.read_text())["pid"] == os.getpid()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with holder(file) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert file.exists()
        with locked(file, "It"):
            assert json.loads(file.read_text())["pid"] == os.getpid()
    assert not file.exists()


def test_another_call_of_the_same_process_is_refused(tmp_path: Path) -> None:
    again = pytest.raises(CosetError, match=f"process {os.getpid()} on ")
    with locked(tmp_path / ".lock", "It"), again, locked(tmp_path / ".lock", "It"):
        pass
    with pytest.raises(ValueError), locked(tmp_path / ".lock", "It"):
        raise ValueError
    assert not list(tmp_path.iterdir())


def test_never_two_hold_it_where_all_take_and_leave_it(tmp_path: Path) -> None:
    """The file is removed at each end, so that a thread may lock one which is no longer there."""
    inside, most, turns = [0], [0], [0]

    def take() -> None:
        while turns[0] < 300:
            try:
                with locked(tmp_path / ".lock", "It"):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    turns[0] += 1
                    inside[0] -= 1
            except CosetError:
                pass

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and inside == [0] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "[]", "{", '{"pid": 1}', "[" * 5000, "\x00\xff"])
def test_a_file_that_says_nothing_of_use_is_another_process(tmp_path: Path, content: str) -> None:
    file = tmp_path / ".lock"
    with locked(file, "It"):
        file.write_text(content)
        with pytest.raises(CosetError, match="It is in use by another process"), locked(file, "It"):
            pass


def test_what_a_lock_says_is_short_and_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["coset", "fit", "--out", "a\x1b[2J\nb", "x" * 10_000])
    with locked(tmp_path / ".lock", "It"), pytest.raises(CosetError) as caught, locked(tmp_path / ".lock", "It"):
        pass
    assert len(str(caught.value)) < 300


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", none)
    with caplog.at_level(logging.WARNING), locked(tmp_path / ".lock", "It"):
        pass
    assert "It cannot be locked (Function not implemented)" in caplog.text and not list(tmp_path.iterdir())


def test_files_are_held_until_the_scope_ends(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with lock_scope():
        hold_file(file, "It")
        with pytest.raises(CosetError, match=f"process {os.getpid()} on "):
            hold_file(file, "It")
    with pytest.raises(ValueError), lock_scope():
        hold_file(file, "It")
        raise ValueError
    assert not list(tmp_path.iterdir())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("of somebody")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"), locked(tmp_path / ".lock", "It"):
        pass
    assert (tmp_path / "precious").read_text() == "of somebody"
