"""`python -m bench NAME` measures without an installed command."""

import typer

from bench.command import measure

typer.run(measure)
