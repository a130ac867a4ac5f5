"""Results that are kept as JSON, so that whoever was stopped goes on with what is left."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coset.core.errors import CosetError
from coset.core.files import write_json


@dataclass(frozen=True)
class Kept:
    """value: as JSON gives it back; seconds: that it took, now or, if it was read, then."""

    value: Any
    seconds: float
    was_read: bool


def keep(file: Path, key: Mapping[str, Any], compute: Callable[[], Any]) -> Kept:
    """`compute()`, or what it gave before, which then lies in `file`.

    key: all that it depends on, of which the name of the file has the `digest`; it is written beside the value, for
    whoever reads the file.
    """
    if file.exists():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CosetError(f"{file} is not JSON: remove it to compute that part again.") from error
        if not (isinstance(found, dict) and {"seconds", "value"} <= found.keys()):
            raise CosetError(f"{file} is no part that was kept: remove it to compute that part again.")
        return Kept(found["value"], found["seconds"], True)
    start = time.perf_counter()
    value = json.loads(json.dumps(compute(), allow_nan=False))
    file.parent.mkdir(parents=True, exist_ok=True)
    seconds = time.perf_counter() - start
    write_json(file, {"key": key, "seconds": seconds, "value": value})
    return Kept(value, seconds, False)


def digest(key: Mapping[str, Any]) -> str:
    """Eight characters that differ where keys do."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:8]
