"""`python -m coset` is the `coset` command."""

import os
import sys


def _leave_out_current_folder() -> None:
    """Drop what Python put first on the path, where a file called `json.py` would stand in for a library's module."""
    try:
        here = os.getcwd()  # noqa: PTH109, since pathlib would be looked for in the current folder
    except OSError:  # it was removed, so nothing can be imported from it
        return
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]


_leave_out_current_folder()

from coset.cli import main  # noqa: E402

main()
