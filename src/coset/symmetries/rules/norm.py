"""Normalisation layers. Each kills a factor of what it normalises; weights and buffers follow the channels."""

from __future__ import annotations

from coset.symmetries.rules.cat_and_split import cat_along, take_apart
from coset.symmetries.rules.reshape import reshape_to
from coset.symmetries.tape import NORMALISING, Call, Letter, Result, Value, rule
from coset.symmetries.terms import Origin, blocks, find


def affine(call: Call, x: Value, axis: int, weight: Value | None, bias: Value | None) -> Value:
    """x * weight + bias along one axis."""
    letters: list[Letter] = list(range(len(x.axes)))
    if weight is not None:
        x = call.tape.multiply([(x, letters), (weight, [axis])], letters)
    if bias is not None:
        x = call.tape.add([(x, letters), (bias, [axis])], letters)
    return x


def with_statistics(call: Call, out: Value) -> Result:
    """Ops that also return batch statistics: those are read by nobody in evaluation mode."""
    if len(call.shapes) == 1:
        return out
    return [out, *[None] * (len(call.shapes) - 1)]


@rule(
    [
        "batch_norm",
        "_native_batch_norm_legit_no_training",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "cudnn_batch_norm",
    ]
)
def batch_norm(call: Call) -> Result:
    """(x - mean) / sqrt(var + eps): scaling x by c is undone exactly by var -> c^2 (var + eps) - eps."""
    x = call.number(call.values()[0])
    mean, var = call.maybe("running_mean"), call.maybe("running_var")
    if mean is None or var is None or call.get("training", False):
        x = call.tape.map(x, NORMALISING, over=[d for d in range(len(x.axes)) if d != 1], mixes=True, approximate=True)
        for buffer in (mean, var):
            if buffer is not None:
                call.tape.unify(buffer.axes[0], x.axes[1])
    else:
        letters: list[Letter] = list(range(len(x.axes)))
        x = call.tape.add([(x, letters), (mean, [1])], letters)
        x = call.tape.multiply([(x, letters), (var, [1])], letters, powers=[1.0, -0.5])
        call.tape.offsets[var] = float(call.get("eps", 1e-5))
        call.tape.statistics |= {mean, var}
    return with_statistics(call, affine(call, x, 1, call.maybe("weight"), call.maybe("bias")))


@rule(["layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"])
def layer_norm(call: Call) -> Result:
    x = call.tensor("input")
    rank = len(call.get("normalized_shape"))
    over = range(len(x.axes) - rank, len(x.axes))
    x = call.tape.map(x, NORMALISING, over=over, mixes="layer" in call.op, approximate=True, isotropic=True)
    weight, bias = call.maybe("weight"), call.maybe("bias")
    if weight is not None:
        x = call.tape.broadcast("multiply", [x, weight], [1.0, 1.0])
    if bias is not None:
        x = call.tape.broadcast("add", [x, bias])
    return with_statistics(call, x)


@rule(["group_norm", "native_group_norm"])
def group_norm(call: Call) -> Result:
    x = call.tensor("input")
    groups = call.get("num_groups", call.get("group"))
    width = x.shape[1] // groups
    sizes = [block.size for block in blocks(x.axes[1])]
    if len(sizes) > 1 and width > 1 and all(size % width == 0 for size in sizes):
        # Whole groups lie in each block of a concatenation.
        bounds = [(sum(sizes[:k]), sum(sizes[: k + 1])) for k in range(len(sizes))]
        done = [_normalise(call, part, part.shape[1] // width) for part in take_apart(call, x, 1, bounds)]
        normalised = cat_along(call, done, 1)
    else:
        normalised = _normalise(call, x, groups)
    return with_statistics(call, affine(call, normalised, 1, call.maybe("weight"), call.maybe("bias")))


def _normalise(call: Call, x: Value, groups: int) -> Value:
    """Each of the groups of channels by its own mean and deviation."""
    apart = Origin(call.node, 1) in call.splits
    wide = None if apart else _grouped(call, x, groups)
    if wide is not None:
        over = [d for d in range(len(wide.axes)) if d not in (0, 1)]
        out = call.tape.map(wide, NORMALISING, over=over, mixes=True, approximate=True, isotropic=True)
        return call.as_value(reshape_to(call, out, x.shape))
    # Groups that straddle the blocks of a concatenation: each group is a block of its own.
    width = x.shape[1] // groups
    cells = take_apart(call, x, 1, [(k * width, (k + 1) * width) for k in range(groups)])
    over = [d for d in range(len(x.axes)) if d != 0]
    done = [call.tape.map(cell, NORMALISING, over=over, mixes=True, approximate=True) for cell in cells]
    return cat_along(call, done, 1)


def _grouped(call: Call, x: Value, groups: int) -> Value | None:
    """(b, groups, width, ...) where the channels allow it."""
    channels = x.axes[1]
    width = channels.size // groups
    if find(channels).kind in ("concat", "interleave") and groups > 1 and width > 1:
        return None
    pieces = call.tape.unifier.split([channels], [groups, width])
    if pieces is None:
        return None
    if find(channels).kind == "product":
        find(channels).origins.add(Origin(call.node, 1))
    return call.regroup(x, [[x.axes[0]], [pieces[0]], [pieces[1]], *[[term] for term in x.axes[2:]]])


@rule("instance_norm")
def instance_norm(call: Call) -> Result:
    if not call.get("use_input_stats", True):
        return batch_norm(call)
    x = call.tensor("input")
    over = range(2, len(x.axes))
    x = call.tape.map(x, NORMALISING, over=over, mixes=True, approximate=True)
    for name in ("running_mean", "running_var"):
        buffer = call.maybe(name)
        if buffer is not None:
            call.tape.unify(buffer.axes[0], x.axes[1])
    return affine(call, x, 1, call.maybe("weight"), call.maybe("bias"))
