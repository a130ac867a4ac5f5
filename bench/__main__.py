"""`python -m bench`."""

from bench.command import execute

execute()
