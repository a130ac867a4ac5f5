"""Files that are either complete or absent: write beside the target, flush to disk, rename over it."""

import glob
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coset.core.errors import CosetError

Fault = Callable[[str], CosetError]
"""What makes the error of a sentence: a class, or a function that adds to the sentence."""
ABANDONED = 3600.0  # seconds after which nobody writes a temporary file any more


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield an empty temporary file to write; on success it takes the place of `path` in one step.

    When the block raises, the temporary file is removed and whatever stood at `path` is untouched. The
    temporary file lies in the same folder, since a rename is atomic only within one file system, and keeps
    the suffix of `path`, since many writers choose the format by it. Those that a killed process left there an hour ago
    are removed.
    """
    path = Path(path)
    for left in path.parent.glob(f".{glob.escape(path.stem)}.{'[0-9a-f]' * 16}{glob.escape(path.suffix)}"):
        with suppress(OSError):  # somebody else may have removed it
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()
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


def is_folder(path: Path) -> bool:
    """Whether a folder is there; False, too, for a name that none can have."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """Whether a file is there; False, too, for a name that none can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


SPECIAL = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}


def require_file(path: Path, error: Fault = CosetError) -> None:
    """Refuse what is no regular file before it is opened: whoever reads a pipe that nobody writes waits for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise error(f"There is no file or folder {path}.") from None
    except ValueError:  # no path has a zero byte
        raise error(f"No file can be called {str(path)!a}.") from None
    except OSError as fault:
        raise error(f"{path} cannot be read: {fault.strerror or fault}.") from fault
    if not stat.S_ISREG(mode):
        kind = next((words for is_kind, words in SPECIAL.items() if is_kind(mode)), "a device")
        raise error(f"{path} is {kind} and not a file.")


def _flush(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
