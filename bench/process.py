"""Run a function in a Python process of its own, so that its peak memory is its own and it can be stopped."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from coset.core.memory import peak_mib


class RunError(Exception):
    """The function raised, or took too long; the text says which."""


def call(target: str, arguments: dict[str, Any], limit: float) -> tuple[dict[str, Any], float]:
    """`module:function` called with JSON arguments: the JSON object it returns, and the peak memory in MiB.

    Raises `RunError` after `limit` seconds, or with the last line of the error that the function raised.
    """
    # -P: else Python looks for modules in the current folder first.
    command = [sys.executable, "-P", "-m", __name__, target, json.dumps(arguments)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise RunError(f"stopped after {limit:.0f} s") from None
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        raise RunError(lines[-1] if lines else f"exit code {child.returncode}")
    answer = json.loads(child.stdout)
    return answer["result"], answer["peak_mib"]


def measure_apart(
    measure: Callable[..., dict[str, Any]], arguments: dict[str, Any], keys: Iterable[str], limit: float
) -> dict[str, Any]:
    """What `measure(**arguments)` returns in a process of its own, with "peak MiB", and None for all other keys.

    A failure is a "note". On CUDA torch counts the peak memory, so this process will do.
    """
    empty = dict.fromkeys([*keys, "peak MiB", "note"])
    if torch.cuda.is_available():
        return {**empty, **measure(**arguments)}
    try:
        row, peak = call(f"{measure.__module__}:{measure.__name__}", arguments, limit)
    except RunError as error:
        return {**empty, "note": f"failed: {error}"}
    return {**empty, **row, "peak MiB": peak}


def _main(target: str, arguments: str) -> None:
    module, _, function = target.partition(":")
    with contextlib.redirect_stdout(sys.stderr):  # whatever the function prints is not the answer
        result = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    sys.stdout.write(json.dumps({"result": result, "peak_mib": peak_mib()}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
