"""Fetching canonical files into the cache."""

from __future__ import annotations

import http.client
import logging
import urllib.request
from pathlib import Path

from coset.core.errors import DataError
from coset.core.files import atomic_write

TIMEOUT = 30.0  # seconds without an answer

_log = logging.getLogger(__name__)


class UnreachableError(Exception):
    """A download failed; the text says why."""


def fetch(url: str) -> bytes:
    """What `url` holds."""
    _log.info("downloading %s", url)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            content: bytes = response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UnreachableError(f"{url} could not be downloaded ({reason})") from error
    return content


def store(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that at every moment the file is either absent or complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error
