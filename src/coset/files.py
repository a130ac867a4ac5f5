"""Files that are either complete or absent: write beside the target, flush to disk, rename over it."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield an empty temporary file to write; on success it takes the place of `path` in one step.

    When the block raises, the temporary file is removed and whatever stood at `path` is untouched. The
    temporary file lies in the same folder, since a rename is atomic only within one file system, and keeps
    the suffix of `path`, since many writers choose the format by it.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
    # "x" never opens a file of somebody else, and gives the permissions that the user's umask asks for.
    with temporary.open("xb") as handle:
        mode = os.fstat(handle.fileno()).st_mode
    try:
        yield temporary
        temporary.chmod(mode)  # some writers, safetensors among them, put a private (0600) file there instead
        _flush(temporary)
        temporary.replace(path)
        if os.name == "posix":  # elsewhere a folder cannot be opened, and the rename is journaled
            _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, obj: Any) -> None:
    """Write `obj` as strict, indented JSON, atomically; NaN and infinity raise `ValueError`.

    JSON has no NaN: a file with one is unreadable outside Python, so the caller says what it means (`None`).
    """
    text = json.dumps(obj, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _flush(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
