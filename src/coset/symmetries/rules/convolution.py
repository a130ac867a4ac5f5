"""Convolutions of any dimension: ordinary, grouped, depthwise, transposed."""

from __future__ import annotations

from typing import Any

from coset.symmetries.rules.reshape import reshape_to, transposed
from coset.symmetries.tape import Call, Letter, NoRuleError, Result, Value, rule

SPATIAL = "spatial position"


@rule(["conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"])
def convolution(call: Call) -> Result:
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call.maybe("bias")
    groups = call.get("groups", 1)
    transposed = bool(call.get("transposed", "transpose" in call.op))
    dims = len(weight.axes) - 2
    batched = len(x.axes) == dims + 2
    alone = [_each_alone(call, weight, d) for d in range(dims)]
    at_once = [_all_at_once(call, x, weight, d) for d in range(dims)]
    for d, term in enumerate(x.axes[len(x.axes) - dims :]):
        if not (alone[d] or at_once[d]):
            call.tape.fix(term, SPATIAL)
            call.tape.fix(weight.axes[2 + d], SPATIAL)
    out = _convolve(call, x, weight, (alone, at_once), groups, transposed)
    if bias is None:
        return out
    letters: list[Letter] = list(range(len(out.axes)))
    return call.tape.add([(out, letters), (bias, [int(batched)])], letters)


def _entry(call: Call, name: str, default: int, d: int) -> Any:
    """A setting for one dimension: some are one number or word for all."""
    setting = call.get(name, default)
    return setting[min(d, len(setting) - 1)] if isinstance(setting, list | tuple) and setting else setting


def _each_alone(call: Call, weight: Value, d: int) -> bool:
    """Whether a kernel of size one looks at each position by itself, so that their order does not matter."""
    padding = _entry(call, "padding", 0, d)
    plain = _entry(call, "stride", 1, d) == 1 and padding in (0, "valid", "same")
    return weight.shape[2 + d] == 1 and plain and not _entry(call, "output_padding", 0, d)


def _all_at_once(call: Call, x: Value, weight: Value, d: int) -> bool:
    """Whether a kernel as long as the axis is put on it once, as over all entries of an embedding."""
    if "transpose" in call.op or call.get("transposed", False) or _entry(call, "padding", 0, d) not in (0, "valid"):
        return False
    axis = d - len(weight.shape) + 2
    return weight.shape[2 + d] == x.shape[axis] and call.shape[axis] == 1


def _convolve(
    call: Call, x: Value, weight: Value, ways: tuple[list[bool], list[bool]], groups: int, transposed: bool
) -> Value:
    """Each of the groups maps its own input channels to its own output channels."""
    alone, at_once = ways
    dims = len(alone)
    channel = len(x.shape) - dims - 1
    batched = channel == 1
    if groups > 1:
        shape = [*x.shape[:channel], groups, x.shape[channel] // groups, *x.shape[channel + 1 :]]
        x = _view(call, x, shape)
        weight = _view(call, weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])
    lead: list[Letter] = [*["batch"] * batched, *["group"] * (groups > 1)]
    source: list[Letter] = [("from", d) for d in range(dims)]
    kernel: list[Letter] = [source[d] if at_once[d] else ("kernel", d) for d in range(dims)]
    target: list[Letter] = [source[d] if alone[d] else ("to", d) for d in range(dims)]
    ends: list[Letter] = ["in", "out"] if transposed else ["out", "in"]
    filters: list[Letter] = [*["group"] * (groups > 1), *ends, *kernel]
    sizes = zip(target, call.shape[-dims:], alone, strict=True)
    places = {letter: call.tape.fixed(size, SPATIAL) for letter, size, same in sizes if not same}
    out = call.tape.multiply([(x, [*lead, "in", *source]), (weight, filters)], [*lead, "out", *target], fresh=places)
    return out if groups == 1 else _view(call, out, call.shape)


def _view(call: Call, value: Value, shape: list[int] | tuple[int, ...]) -> Value:
    result = reshape_to(call, value, shape)
    if not isinstance(result, Value):
        return call.as_value(result)
    return result


@rule(["pixel_shuffle", "pixel_unshuffle", "channel_shuffle"])
def pixel_shuffle(call: Call) -> Result:
    """(c r r, h, w) -> (c, h r, w r): the r x r places of a channel are fixed, the channels stay free."""
    x = call.tensor("self")
    if call.op == "channel_shuffle":
        groups = call.get("groups")
        split = reshape_to(call, x, [x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
        order = [0, 2, 1, *range(3, len(split.shape))]
        return reshape_to(call, transposed(call, split, order), call.shape)
    factor = call.get("upscale_factor", call.get("downscale_factor"))
    for term in x.axes[-2:]:
        call.tape.fix(term, SPATIAL)
    lead: list[Letter] = list(range(len(x.axes) - 3))
    if call.op == "pixel_shuffle":
        wide = _view(call, x, [*x.shape[:-3], x.shape[-3] // factor**2, factor**2, *x.shape[-2:]])
        call.tape.fix(wide.axes[-3], SPATIAL)
        fresh = {"y": call.tape.fixed(call.shape[-2], SPATIAL), "x": call.tape.fixed(call.shape[-1], SPATIAL)}
        return call.tape.multiply([(wide, [*lead, "c", "place", "h", "w"])], [*lead, "c", "y", "x"], fresh=fresh)
    fresh = {
        "place": call.tape.fixed(factor**2, SPATIAL),
        "y": call.tape.fixed(call.shape[-2], SPATIAL),
        "x": call.tape.fixed(call.shape[-1], SPATIAL),
    }
    wide = call.tape.multiply([(x, [*lead, "c", "h", "w"])], [*lead, "c", "place", "y", "x"], fresh=fresh)
    return _view(call, wide, call.shape)


@rule("im2col")
def im2col(call: Call) -> Result:
    """(b, c, h, w) -> (b, c k k, places)."""
    x = call.tensor("self")
    for term in x.axes[-2:]:
        call.tape.fix(term, SPATIAL)
    if len(x.axes) != 4:
        raise NoRuleError("im2col without a batch")
    taps = call.shape[1] // x.shape[1]
    fresh = {"tap": call.tape.fixed(taps, SPATIAL), "place": call.tape.fixed(call.shape[2], SPATIAL)}
    out = call.tape.multiply([(x, ["b", "c", "h", "w"])], ["b", "c", "tap", "place"], fresh=fresh)
    return _view(call, out, call.shape)


@rule("col2im")
def col2im(call: Call) -> Result:
    """(b, c k k, places) -> (b, c, h, w)."""
    x = call.tensor("self")
    call.tape.fix(x.axes[-1], SPATIAL)
    if len(x.axes) != 3:
        raise NoRuleError("col2im without a batch")
    wide = _view(call, x, [x.shape[0], call.shape[1], x.shape[1] // call.shape[1], x.shape[2]])
    call.tape.fix(wide.axes[2], SPATIAL)
    fresh = {"y": call.tape.fixed(call.shape[2], SPATIAL), "x": call.tape.fixed(call.shape[3], SPATIAL)}
    return call.tape.multiply([(wide, ["b", "c", "tap", "place"])], ["b", "c", "y", "x"], fresh=fresh)
