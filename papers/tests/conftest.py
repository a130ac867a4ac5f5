"""How to run `coset reproduce`."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from coset.cli import app


@pytest.fixture
def reproduce() -> Callable[..., Result]:
    """Run `coset reproduce` in this process."""

    def invoke(*words: object) -> Result:
        return CliRunner().invoke(app, ["reproduce", *(str(word) for word in words)], prog_name="coset")

    return invoke
