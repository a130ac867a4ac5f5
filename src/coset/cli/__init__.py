"""The command line: parse, call, print."""

from coset.cli.app import app, main

__all__ = ["app", "main"]
