"""One thread: everything here is small, and tests run in two processes. And how to run a command."""

from collections.abc import Callable, Iterator

import pytest
import torch
from typer.testing import CliRunner, Result

from coset.cli import app

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of pytest-xdist say the width of a terminal that they do not have."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def largest_file() -> Iterator[Callable[[int], None]]:
    """From a call on, no file grows beyond so many bytes, as if the disk were full: to write more is an OSError."""
    resource = pytest.importorskip("resource")  # which not every system has
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run a command in this process."""

    def invoke(*words: object) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words], prog_name="coset")

    return invoke
