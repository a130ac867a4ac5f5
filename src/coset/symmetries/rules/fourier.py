"""Fourier transforms: the order of the axes that are transformed is fixed, the others pass, and so do factors."""

from __future__ import annotations

from coset.symmetries.tape import LINEAR, Call, Letter, Result, rule
from coset.symmetries.terms import Term

KINDS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
WAVES = "waves along it"


@rule([f"fft_{kind}{dims}" for kind in KINDS for dims in ("", "2", "n")] + ["_fft_r2c", "_fft_c2r", "_fft_c2c"])
def transform(call: Call) -> Result:
    value = call.tensor("self" if "self" in call.arguments else "input")
    rank = len(value.axes)
    sizes = call.get("s")
    last = list(range(-2, 0)) if call.op.endswith("2") else None
    if last is None and sizes is not None:
        last = list(range(-len(sizes), 0))
    axes = call.axes("dim", rank, [-1] if call.op.removeprefix("fft_") in KINDS else last)
    letters: list[Letter] = list(range(rank))
    fresh: dict[Letter, Term] = {}
    for axis in axes:
        call.tape.fix(value.axes[axis], WAVES)
        fresh["wave", axis] = call.tape.fixed(call.shape[axis], WAVES)
    out: list[Letter] = [("wave", d) if d in axes else d for d in letters]
    return call.tape.map(value, LINEAR, letters=letters, out=out, over=axes, fresh=fresh, mixes=True)


@rule(["stft", "istft"])
def windows(call: Call) -> Result:
    """Windows slide along the last axis; the batch passes."""
    value = call.tensor("self")
    own = 1 if call.op == "stft" else 2
    rank = len(value.axes)
    letters: list[Letter] = list(range(rank))
    for axis in range(rank - own, rank):
        call.tape.fix(value.axes[axis], WAVES)
    if call.has("window"):
        call.tape.fix(call.tensor("window").axes[0], WAVES)
    batch = letters[: rank - own]
    rest: list[Letter] = [("wave", d) for d in range(len(call.shape) - len(batch))]
    fresh = {x: call.tape.fixed(n, WAVES) for x, n in zip(rest, call.shape[len(batch) :], strict=True)}
    return call.tape.map(value, LINEAR, letters=letters, out=[*batch, *rest], over=range(rank - own, rank), fresh=fresh)
