"""`python -m coset` is the `coset` command."""

from coset.cli import main

main()
