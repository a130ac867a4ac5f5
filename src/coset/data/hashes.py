"""Reading files whose content must have a given hash."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from pathlib import Path

from coset.core.errors import DataError

LARGEST = 2**28  # bytes that are unpacked, more than any file here has: a few of them may stand for any number

# What had its hash in this process, as (path, size, time of change, hash).
_verified: set[tuple[Path, int, int, str]] = set()


def read(path: Path, expected: str) -> bytes:
    """The content of `path`, unpacked if its name ends in `.gz`, once it has the hash `expected`.

    The hash, `sha256:...` or `md5:...`, is that of the unpacked content: the same data packed by
    another gzip is the same data.
    """
    try:
        status = path.stat()
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if path.suffix == ".gz":
        content = unpack(content, str(path))
    key = (path, status.st_size, status.st_mtime_ns, expected)
    if key not in _verified:
        verify(content, str(path), expected)
        _verified.add(key)
    return content


def unpack(packed: bytes, name: str) -> bytes:
    """Undo gzip; `name` is for the error."""
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is damaged or only half written ({error}): fetch it again") from error
    if len(content) > LARGEST:
        raise DataError(f"{name} holds more than {LARGEST >> 20} MiB, and no file of data does: fetch it again")
    return content


def verify(content: bytes, name: str, expected: str) -> None:
    """Raise a DataError unless `content` has the hash `expected`; `name` is for the error."""
    algorithm, _, digest = expected.partition(":")
    actual = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if actual != digest:
        raise DataError(f"{name} should have {algorithm} {digest} but has {actual}: fetch it again")
