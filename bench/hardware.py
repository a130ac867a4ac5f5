"""The device that a benchmark runs on, how fast it is at best, and its clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import pairwise

import torch

from coset.core.functional import matmul_precision


def default_device() -> torch.device:
    """CUDA if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """Of the GPU, or "cpu"."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def prepare(device: torch.device, seed: int) -> None:
    """Before a measurement: random numbers from a seed; on CUDA no peak memory, on a CPU one thread."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
    else:
        torch.set_num_threads(1)
    torch.manual_seed(seed)


def wait() -> None:
    """Until the device has done all it was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def now(device: torch.device) -> float:
    """Seconds once the device has done all it was asked for; of a CPU those of this process, whatever else runs."""
    if device.type == "cuda":
        wait()
        return time.perf_counter()
    return time.process_time()


def copy_speed(device: torch.device) -> float:
    """Bytes a second, read and written, of a copy far larger than caches."""
    source = torch.ones(2**30 if device.type == "cuda" else 2**26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _fastest(lambda: target.copy_(source), device)


def product_speed(device: torch.device, precision: str) -> float:
    """Floating-point operations a second of a matrix product on one thread of a CPU, or on CUDA in a precision."""
    n = 8192 if device.type == "cuda" else 1024
    half = device.type == "cuda" and precision == "bfloat16"
    a, b = torch.randn(2, n, n, device=device, dtype=torch.bfloat16 if half else torch.float32)
    with matmul_precision("tf32" if device.type == "cuda" and precision == "tf32" else "float32"):
        return 2 * n**3 / _fastest(lambda: a @ b, device)


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of some calls, on one thread of a CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ends = [now(device)]
    for _ in range(10):
        call()
        ends.append(now(device))
    torch.set_num_threads(threads)
    return min(end - start for start, end in pairwise(ends))
