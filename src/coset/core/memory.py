"""The most memory that was taken so far."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def peak_mib() -> float:
    """Peak resident memory of this process in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # Unlike ru_maxrss, this is not inherited from the process that started this one.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource  # which not every system has

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def fresh_peak_gib(device: str) -> float:
    """In GiB what torch allocated at most on a CUDA device since the last call; elsewhere all of the process so far."""
    if torch.device(device).type != "cuda":
        return peak_mib() / 1024
    peak: int = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak / 2**30
