"""One thread: everything here is small."""

from collections.abc import Callable, Iterator

import pytest
import torch
from typer.testing import CliRunner, Result

from coset.cli import app


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def reproduce() -> Callable[..., Result]:
    """Run `coset reproduce` in this process."""

    def invoke(*words: object) -> Result:
        return CliRunner().invoke(app, ["reproduce", *(str(word) for word in words)], prog_name="coset")

    return invoke
