"""The same on the CPU and on CUDA: inference, verification, the action and alignment, for the reference nets."""

from __future__ import annotations

import platform
import time
from typing import Any

import torch

import coset
from bench.record import Out, report
from coset import zoo
from coset.core import state as states
from coset.core.errors import CosetError

SPECS = ("mlp:784-512-512-512-10", "resnet20:norm=frn", "resnet20:norm=bn", "googlenet:width=0.25", "vit",
         "gpt:rope=true,kv_heads=2,swiglu=true,norm=rms")  # fmt: skip


def timed_action(sym: coset.Symmetry, state: dict[str, torch.Tensor], repeats: int = 20) -> float:
    """Milliseconds to move a state by an element, gathers and all."""
    element = sym.random(torch.Generator().manual_seed(1))
    element = element.to(next(iter(state.values())).device)
    sym.act(element, state)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        sym.act(element, state)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e3


def compare(spec: str) -> dict[str, Any]:
    """One network on both devices."""
    torch.manual_seed(0)
    model = zoo.build(spec)
    args = zoo.example_input(model)
    on_cpu = coset.symmetry(model, args)
    model = model.cuda()
    args = tuple(x.cuda() for x in args)
    on_cuda = coset.symmetry(model, args)
    state = states.of(model)
    g = on_cpu.random(torch.Generator().manual_seed(0), scalings=True)
    cpu_image = on_cpu.act(g, states.to(state, device="cpu"))
    cuda_image = on_cuda.act(g, state)
    gap = max(float((cuda_image[k].cpu() - v).abs().max()) for k, v in cpu_image.items() if v.is_floating_point())
    assert on_cuda.verification is not None
    torch.manual_seed(1)
    other = states.of(zoo.build(spec))
    ours = states.to(state, device="cpu")
    matches = [
        coset.align(states.to(ours, device=device), states.to(other, device=device), on_cpu)
        for device in ("cpu", "cuda")
    ]
    return {
        "model": spec,
        "same_group": on_cpu.to_json() == on_cuda.to_json(),
        "image_gap": gap,
        "deviation": on_cuda.verification.deviation,
        "control": on_cuda.verification.control,
        "conclusive": on_cuda.verification.conclusive,
        "objective_cpu": matches[0].objective,
        "objective_cuda": matches[1].objective,
        "align_seconds_cpu": round(matches[0].seconds, 4),
        "align_seconds_cuda": round(matches[1].seconds, 4),
        "act_ms": round(timed_action(on_cuda, state), 3),
    }


def main(out: Out = None) -> None:
    """Compare the devices on every network."""
    if not torch.cuda.is_available():
        raise CosetError("There is no CUDA device here to compare the CPU with.")
    record = {
        "command": "python -m bench cuda",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "models": [compare(spec) for spec in SPECS],
    }
    report(record, out)
