"""SIGTERM, SIGINT and SIGHUP: a command stops, says where it was and how to go on, and what it wrote is whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.core import TyperGroup

from coset.cli.app import StopSignal, exit_code, main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="other signals")

MODEL = ("--model", "mlp:64-8-10", "--data", "digits", "--method", "map")
FIT = ("fit", *MODEL, "--out", "run", "--checkpoint-seconds", "0")


def heed_signals() -> None:
    """What runs tests may ignore signals, as nohup does, and a child would, too."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "coset", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, text=True, preexec_fn=heed_signals, **pipes)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_ends_a_run_that_goes_on(tmp_path: Path, name: str, code: int) -> None:
    process = start(tmp_path, *FIT, "--set", "epochs=100000")
    metrics = tmp_path / "run" / "replica-0" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.05)
    process.send_signal(getattr(signal, name))
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == code and stdout == "" and "Traceback" not in stderr
    last = stderr.splitlines()[-1]
    assert last.startswith("stopped: the same command goes on in --out run; it was replica 0: epoch ")
    files = sorted(file.name for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert files == ["checkpoint.pt", "metrics.jsonl", "settings.json"]
    for line in (tmp_path / "run" / "replica-0" / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_command_without_a_folder_says_where_it_was(tmp_path: Path) -> None:
    process = start(tmp_path, "demo")
    assert process.stderr is not None and "reading the digits" in process.stderr.readline()
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 143 and stderr.splitlines()[-1].startswith("stopped: it was ")


def test_a_signal_before_a_command_begins_ends_it_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stops(*words: object, **options: object) -> None:
        raise StopSignal(signal.SIGTERM)

    monkeypatch.setattr(sys, "argv", ["coset", "inspect", "mlp:4-3-2"])
    for owner, name in ((sys.modules["coset.cli.app"], "app"), (TyperGroup, "make_context")):  # while words are read
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["coset.cli.app"], "stop_by_exception", lambda: None)
            patch.setattr(owner, name, stops)
            with pytest.raises(SystemExit) as caught:
                main()
        assert caught.value.code == 143
        assert capsys.readouterr().err == "stopped: call the same command again.\n"


def test_signals_have_the_exit_codes_of_shells() -> None:
    assert [exit_code(StopSignal(number)) for number in (1, 2, 15)] == [129, 130, 143]
    assert exit_code(KeyboardInterrupt()) == 130
