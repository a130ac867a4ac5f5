"""One model, one record: trace it, infer its symmetry, and check the answer apart from the library."""

from __future__ import annotations

import collections
import copy
import importlib
import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from bench.zoo.model_call import first_floating, one_line

TOLERANCE = 1e-4
"""Largest relative output deviation that counts as the same function in float32."""


def floating_tensors(model: nn.Module) -> dict[str, str]:
    """Name of every floating tensor of the state, mapped to the first name of the same memory (ties)."""
    first: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
    names: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
            names[name] = first.setdefault(key, name) if tensor.numel() else name
    return names


def export_only(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The stub: can torch export the model, and in how many seconds."""
    names = floating_tensors(model)
    record: dict[str, Any] = {
        "traced": False,
        "tensors": len(set(names.values())),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    start = time.perf_counter()
    try:
        with torch.no_grad():
            program = torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:
        record["error"] = one_line(error)
        return record
    record["seconds"] = {"export": time.perf_counter() - start}
    record["traced"] = True
    record["ops"] = len({str(n.target) for n in program.graph.nodes if n.op == "call_function"})
    return record


def perturbed(state: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The state moved off special values: constant tensors (unit norms, zero biases, gates) get noise."""
    generator = torch.Generator().manual_seed(seed)
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            out[name] = tensor + 0.1 * (noise.abs() if name.endswith("running_var") else noise)
        else:
            out[name] = tensor.clone()
    return out


def recheck(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], sym: Any, trials: int = 2
) -> tuple[float, int]:
    """Largest relative output deviation over random elements, and how many tensors the last one changed.

    Permuted states are loaded into a copy of the model: nothing here relies on the library's own check.
    """
    worst, changed = 0.0, 0
    twin = copy.deepcopy(model)
    ties = floating_tensors(model)
    original = {k: v.detach().clone() for k, v in model.state_dict().items() if isinstance(v, Tensor)}

    def run(state: dict[str, Tensor]) -> Tensor:
        versioned = collections.OrderedDict(state)
        # Some modules refuse a state without the version that state_dict() notes beside the tensors.
        versioned._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
        twin.load_state_dict(versioned, strict=False)
        torch.manual_seed(0)  # some models draw noise in evaluation mode
        output = first_floating(twin(*args, **kwargs))
        if output is None:
            raise ValueError("the model returns no floating tensor")
        return output.double()

    with torch.no_grad():
        for trial in range(trials):
            state = original if trial == 0 else perturbed(original, trial)
            state = {k: state[ties.get(k, k)] for k in state}
            before = run(state)
            element = sym.random(torch.Generator().manual_seed(1000 + trial))
            acted = sym.act(element, state)
            changed = sum(not torch.equal(acted[k], v) for k, v in state.items() if k in acted)
            after = run(acted)
            scale = float(before.abs().max())
            if scale == 0 and trial == 0:
                continue  # a zero head as initialised says nothing; the perturbed state follows
            deviation = float((after - before).abs().max()) / scale if scale > 0 else math.inf
            worst = max(worst, deviation) if math.isfinite(deviation) else math.inf
    return worst, changed


def number(value: Any) -> float | None:
    """A float for JSON; None stays None."""
    return None if value is None else float(value)


def measure(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Everything the tables show about one model: symmetry, verification, what is fixed and why, times."""
    library: Any = importlib.import_module("coset")

    names = floating_tensors(model)
    record: dict[str, Any] = {
        "traced": False,
        "verified": False,
        "tensors": len(set(names.values())),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    try:
        # What the readout does not read, such as a pooler, is not asked for.
        sym: Any = library.symmetry(model, args, kwargs, unreached="ignore")
    except Exception as error:
        stub = export_only(model, args, kwargs)
        record["traced"] = stub["traced"]
        record["seconds"] = stub.get("seconds", {})
        record["error"] = one_line(error) if stub["traced"] else stub["error"]
        return record
    record["traced"] = True
    record["seconds"] = {key: float(value) for key, value in sym.seconds.items()}
    record["groups"] = len(sym.groups)
    record["copies"] = sum(int(getattr(g, "copies", 1)) for g in sym.groups)
    record["log10_order"] = float(sym.log_order) / math.log(10)
    record["scalings"] = len(getattr(sym, "scalings", ()))
    movable = {names[t] for g in sym.groups for t, _ in g.members if t in names}
    record["moved"] = len(movable)
    unused = {names[f.tensor] for f in sym.fixed if f.reason == "not used" and f.tensor in names}
    record["unused"] = len(unused - movable)
    record["still"] = sorted(set(names.values()) - movable - unused)
    check = sym.verification
    record["deviation"] = number(check.deviation)
    record["control"] = number(check.control)
    record["sensitivity"] = number(check.sensitivity)
    record["conclusive"] = bool(check.conclusive)
    reasons = collections.Counter((str(f.op), str(f.reason)) for f in sym.fixed)
    record["fixed"] = [[op, reason, count] for (op, reason), count in reasons.most_common()]
    record["unknown_ops"] = sorted({op for op, reason in reasons if reason.startswith("no rule")})
    start = time.perf_counter()
    try:
        record["recheck"], record["changed"] = recheck(model, args, kwargs, sym)
    except Exception as error:
        record["error"] = "recheck: " + one_line(error)
        return record
    record["seconds"]["recheck"] = time.perf_counter() - start
    acts = record["changed"] > 0 or not sym.groups
    record["verified"] = bool(check.conclusive) and acts and record["recheck"] <= TOLERANCE
    record["wrong"] = record["recheck"] > TOLERANCE
    return record
