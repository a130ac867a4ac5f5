"""What a command printed, and how it refuses."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import Result


def report(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def refuses(result: Result, *parts: str) -> None:
    """One sentence, with these parts, and nothing on stdout."""
    complaints = [line for line in result.stderr.splitlines() if not line.endswith(" ...")]
    assert len(complaints) == 1 and complaints[0].startswith("error: "), result.stderr
    assert all(part in complaints[0] for part in parts), complaints[0]
    assert result.exit_code == 2 and result.stdout == ""
