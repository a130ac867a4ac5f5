"""Ops on spatial positions: pooling, resampling, sliding windows. Channels pass, positions are fixed."""

from __future__ import annotations

from coset.symmetries.rules.convolution import SPATIAL
from coset.symmetries.tape import HOMOGENEOUS, LINEAR, NONLINEAR, THRESHOLD, Call, Law, Letter, Result, Value, rule

DIMS = (1, 2, 3)
AVERAGING = (
    *[f"{kind}{d}d" for kind in ("avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool") for d in DIMS],
    *[f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d",
                                      "trilinear3d", "bicubic2d")],
    *[f"_upsample_{kind}" for kind in ("nearest_exact1d", "nearest_exact2d", "nearest_exact3d", "bilinear2d_aa",
                                       "bicubic2d_aa")],
    *[f"{kind}_pad{d}d" for kind in ("reflection", "replication") for d in DIMS],
)  # fmt: skip
MAXIMA = tuple(
    f"{kind}{d}d{suffix}"
    for kind in ("max_pool", "adaptive_max_pool")
    for d in DIMS
    for suffix in ("", "_with_indices")
)
FIXED_DIMS = {"1d": 1, "2d": 2, "3d": 3}


def resample(call: Call, x: Value, law: Law) -> Value:
    dims = next(count for key, count in FIXED_DIMS.items() if key in call.op)
    for term in x.axes[-dims:]:
        call.tape.fix(term, SPATIAL)
    letters: list[Letter] = list(range(len(x.axes) - dims))
    source: list[Letter] = [("from", d) for d in range(dims)]
    target: list[Letter] = [("to", d) for d in range(dims)]
    fresh = {letter: call.tape.fixed(size, SPATIAL) for letter, size in zip(target, call.shape[-dims:], strict=True)}
    return call.tape.map(x, law, letters=[*letters, *source], out=[*letters, *target], fresh=fresh)


@rule(AVERAGING)
def averaging(call: Call) -> Result:
    return resample(call, call.number(call.values()[0]), LINEAR)


@rule(MAXIMA)
def maxima(call: Call) -> Result:
    """Places are those of each channel's own maxima."""
    x = call.number(call.values()[0])
    laws = (HOMOGENEOUS, THRESHOLD)[: len(call.shapes)]
    outs = [resample(call, x, law) for law in laws]
    return outs if len(outs) > 1 else outs[0]


@rule(["max_unpool2d", "max_unpool3d"])
def unpool(call: Call) -> Result:
    """Entries go to the places of the maxima, the rest is zero."""
    x, places = call.tensor("self"), call.tensor("indices")
    dims = 2 if call.op == "max_unpool2d" else 3
    marks = call.tape.map(places, NONLINEAR)
    rank = len(x.axes)
    for term in (*x.axes[-dims:], *places.axes[-dims:]):
        call.tape.fix(term, SPATIAL)
    lead: list[Letter] = list(range(rank - dims))
    source: list[Letter] = [("from", d) for d in range(dims)]
    target: list[Letter] = [("to", d) for d in range(dims)]
    fresh = {letter: call.tape.fixed(size, SPATIAL) for letter, size in zip(target, call.shape[-dims:], strict=True)}
    return call.tape.multiply([(x, [*lead, *source]), (marks, [*lead, *source])], [*lead, *target], fresh=fresh)


@rule(["grid_sampler", "grid_sampler_2d"])
def grid_sampler(call: Call) -> Result:
    """Channels are sampled at the same places; places come from the grid."""
    x, grid = call.tensor("input"), call.tensor("grid")
    for term in (*x.axes[2:], grid.axes[-1]):
        call.tape.fix(term, SPATIAL)
    places: list[Letter] = [("to", d) for d in range(len(x.axes) - 2)]
    source: list[Letter] = [("from", d) for d in range(len(x.axes) - 2)]
    flat = call.tape.map(grid, Law("pin", "pin"))
    return call.tape.multiply([(x, ["b", "c", *source]), (flat, ["b", *places, "xy"])], ["b", "c", *places])


@rule("unfold")
def unfold(call: Call) -> Result:
    """(..., n, ...) -> (..., windows, ..., size): the windowed axis is fixed, the others pass."""
    value = call.tensor("self")
    axis = call.axis("dimension", len(value.axes))
    call.tape.fix(value.axes[axis], "windows slide along it")
    letters: list[Letter] = list(range(len(value.axes)))
    out = [*letters[:axis], "window", *letters[axis + 1 :], "tap"]
    fresh = {
        "window": call.tape.fixed(call.shape[axis], "windows slide along it"),
        "tap": call.tape.fixed(call.shape[-1], "windows slide along it"),
    }
    return call.tape.map(value, LINEAR, letters=letters, out=out, fresh=fresh)
