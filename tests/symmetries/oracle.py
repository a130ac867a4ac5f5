"""Slow and simple checks that share no code with the library's own action and verification."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import coset
from coset import Element, Symmetry, SymmetryError
from coset.symmetries.group import Fixed

State = dict[str, Tensor]


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 with generic weights: no zero biases, unit gains or standard running statistics."""
    model = model.double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            persistent = name in model.state_dict()
            if not tensor.is_floating_point() or not persistent or "mask" in name:
                continue
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            if name.endswith(("running_var", "original0")) or name.endswith("weight_g"):
                tensor.copy_((0.5 * noise).exp())
            elif tensor.dim() > 1:
                tensor.copy_(noise * 1.2 / math.sqrt(max(1, tensor[0].numel())))
            else:
                tensor.copy_(0.6 * noise + 0.4 * torch.sign(noise))
    return model


def numbers(output: Any) -> Tensor:
    """Everything a model returns, as one long vector."""
    tensors = [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
    flat = [torch.view_as_real(t).flatten() if t.is_complex() else t.flatten() for t in tensors]
    return torch.cat([t.double() for t in flat])


def run(model: nn.Module, state: Mapping[str, Tensor], args: tuple[Any, ...]) -> Tensor:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            unique: State = {}
            objects: set[int] = set()
            own = model.state_dict(keep_vars=True)
            for name, tensor in state.items():
                if id(own[name]) not in objects:
                    objects.add(id(own[name]))
                    unique[name] = tensor.clone()
            return numbers(torch.func.functional_call(model, unique, args))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def deviation(model: nn.Module, args: tuple[Any, ...], image: Mapping[str, Tensor]) -> float:
    """Largest change of the output relative to its largest entry."""
    base = run(model, model.state_dict(), args)
    return float((run(model, image, args) - base).abs().max() / base.abs().max())


def doubled(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return pytree.tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, args)


def signature(sym: Symmetry) -> Counter[str]:
    """Groups as "size" or "size/base sizes", such as 16/4 for sixteen units in each of four heads."""
    out: Counter[str] = Counter()
    for group in sym.groups:
        if group.size == 1:
            continue
        bases = [sym.sets[base].size for base in group.over]
        assert group.copies == math.prod(bases)
        out[f"{group.size}/{','.join(map(str, bases))}" if bases else str(group.size)] += 1
    return out


def expect(text: str) -> Counter[str]:
    """ "4 3*2 2/4" -> one group of 4, two of 3, one of 2 over a base of 4."""
    out: Counter[str] = Counter()
    for word in text.split():
        name, _, times = word.partition("*")
        out[name] += int(times or 1)
    return out


def infer(model: nn.Module, args: tuple[Any, ...], **options: Any) -> tuple[nn.Module, tuple[Any, ...], Symmetry]:
    """A randomised float64 copy, its arguments and its symmetry."""
    model, args = randomise(model), doubled(args)
    return model, args, coset.symmetry(model, args, **options)


def image_of(sym: Symmetry, element: Element, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The moved state, folded first where matrices ask for gains of one; those that cannot be folded stay."""
    if not element.matrices:
        return sym.act(element, state)
    try:
        return sym.act(element, coset.fold(state, sym))
    except SymmetryError:
        free = {group.name: element.matrices[group.name] for group in sym.matrices if not group.gains}
        return sym.act(sym.element(matrices=free), state)


def check_function(
    model: nn.Module, args: tuple[Any, ...], sym: Symmetry, tolerance: float = 1e-7, trials: int = 3
) -> None:
    """Random elements, permutations alone, with factors and with matrices, leave a float64 model's output alone."""
    generator = torch.Generator().manual_seed(7)
    for trial in reversed(range(trials)):
        g = sym.random(generator, scalings=trial > 0)
        assert deviation(model, args, sym.act(g, model.state_dict())) <= tolerance
    if sym.matrices:
        g = sym.random(generator, matrices=True)
        assert deviation(model, args, image_of(sym, g, model.state_dict())) <= tolerance


def floats(model: nn.Module) -> State:
    """The floating tensors of the state, each under its first name."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {
        name: tensor.detach()
        for name, tensor in state.items()
        if tensor.is_floating_point() and first.setdefault(id(tensor), name) == name
    }


def offsets(sym: Symmetry) -> dict[str, float]:
    return {member.tensor: member.offset for scaling in sym.scalings for member in scaling.members}


def plain_batch_norm(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm that has derivatives by its running statistics."""
    shape = [1, -1, *[1] * (x.dim() - 2)]
    if training or mean is None or var is None:
        over = [d for d in range(x.dim()) if d != 1]
        mean, var = x.mean(over), x.var(over, unbiased=False)
    x = (x - mean.view(shape)) / (var.view(shape) + eps).sqrt()
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def tracked_norm(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    if use_input_stats:
        return torch.instance_norm(x, weight, bias, None, None, True, momentum, eps, False)
    return plain_batch_norm(x, mean, var, weight, bias, eps=eps)


def scaling_equations(
    make_model: Callable[[int], nn.Module],
    make_args: Callable[[int], tuple[Any, ...]],
    shift: Mapping[str, float],
    most: int = 400,
) -> Tensor:
    """Rows that vanish on the logarithm of every rescaling of entries that preserves the function.

    If multiplying each entry w_e by exp(t d_e) leaves F alone for all w, then sum_e dF/dw_e w_e d_e = 0 at every
    w and x. The rows are the matrices dF/dw diag(w) at several of them; a null vector common to all is a
    one-parameter group of rescalings. ``shift`` is added to w first, as running variances need.
    """
    rows: list[Tensor] = []
    width = None
    for draw in range(most):
        model, args = make_model(draw), make_args(draw)
        state = floats(model)

        def outputs(values: State, model: nn.Module = model, args: tuple[Any, ...] = args) -> Tensor:
            return numbers(torch.func.functional_call(model, values, args))

        with mock.patch.object(F, "batch_norm", plain_batch_norm), mock.patch.object(F, "instance_norm", tracked_norm):
            jacobian = torch.func.jacrev(outputs)(state)
        block = torch.cat(
            [
                (jacobian[name] * (tensor + shift.get(name, 0.0))).reshape(jacobian[name].shape[0], -1)
                for name, tensor in state.items()
            ],
            1,
        )
        rows.append(block / block.norm())
        width = block.shape[1]
        if draw >= 29 and sum(len(row) for row in rows) > 1.2 * width + 20:
            break
    return torch.cat(rows)


def scaling_directions(model: nn.Module, sym: Symmetry, exact: bool = True) -> Tensor:
    """One row per free factor of the inferred scalings: the power with which each entry takes it."""
    shift = offsets(sym)
    ones = {name: torch.ones_like(tensor) - shift.get(name, 0.0) for name, tensor in floats(model).items()}
    rows: list[Tensor] = []
    identity = sym.identity()
    for scaling in sym.scalings:
        if scaling.kind != "scaling" or (exact and not scaling.exact):
            continue
        shape = (scaling.copies, scaling.size) if scaling.over else (scaling.size,)
        for k in range(scaling.copies * scaling.size):
            factors = torch.ones(shape, dtype=torch.float64)
            factors.view(-1)[k] = math.e
            element = type(identity)(sym.sets, {}, {scaling.name: factors}, identity.units)
            image = sym.act(element, ones)
            rows.append(torch.cat([(t + shift.get(n, 0.0)).log().flatten() for n, t in image.items()]))
    total = sum(tensor.numel() for tensor in ones.values())
    return torch.stack(rows) if rows else torch.zeros(0, total, dtype=torch.float64)


def rank(matrix: Tensor, tolerance: float = 1e-9) -> int:
    if not matrix.numel():
        return 0
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values[0]).sum())


def permuted(tensor: Tensor, axis: int, order: Sequence[int]) -> Tensor:
    return tensor.index_select(axis, torch.tensor(order, device=tensor.device))


def tied_with(model: nn.Module, name: str) -> list[str]:
    """All names of one tensor."""
    state = model.state_dict(keep_vars=True)
    return [other for other, tensor in state.items() if tensor is state[name]]


def orders(n: int) -> list[list[int]]:
    """All orders but the given one, of up to four positions; of more, swaps of neighbours and the ends, and a turn."""
    if n <= 4:
        return [list(p) for p in itertools.permutations(range(n))][1:]
    out = [[*range(k), k + 1, k, *range(k + 2, n)] for k in (0, n // 2, n - 2)]
    return [*out, [*range(1, n), 0]]


def changed_by(model: nn.Module, inputs: Sequence[tuple[Any, ...]], name: str, image: Tensor) -> float:
    """How much the output changes when one tensor alone becomes ``image``."""
    state = dict(model.state_dict())
    for other in tied_with(model, name):
        state[other] = image
    return max(deviation(model, args, state) for args in inputs)


def dead_entries(model: nn.Module, inputs: Sequence[tuple[Any, ...]]) -> dict[str, Tensor]:
    """Where the output does not depend on a parameter at all, such as the bias of a key before a softmax."""
    strength = {name: torch.zeros_like(tensor) for name, tensor in floats(model).items()}
    parameters = {name: p for name, p in model.named_parameters() if name in strength}
    for k, args in enumerate(inputs):
        output = numbers(model(*args))
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(k), dtype=output.dtype)
        gradients = torch.autograd.grad((output * direction).sum(), list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                strength[name] = torch.maximum(strength[name], gradient.abs())
    top = max(float(x.max()) for x in strength.values() if x.numel())
    return {name: strength[name] < 1e-11 * top for name in parameters}


def loose_fixed_axes(model: nn.Module, inputs: Sequence[tuple[Any, ...]], sym: Symmetry) -> list[tuple[str, int]]:
    """Axes reported wholly fixed that some order moves without a change of the output: there should be none."""
    rows: list[tuple[str, int]] = []
    dead = dead_entries(model, inputs)
    for name, tensor in floats(model).items():
        if name in dead:
            tensor = tensor.masked_fill(dead[name], 0.0)
        for d, axis in enumerate(sym.axes.get(name, [Fixed(n) for n in tensor.shape])):
            if not isinstance(axis, Fixed) or axis.size == 1:
                continue
            candidates = [permuted(tensor, d, order) for order in orders(axis.size)]
            changes = [changed_by(model, inputs, name, image) for image in candidates if not torch.equal(image, tensor)]
            if changes and min(changes) < 1e-9:
                rows.append((name, d))
    return rows


def loose_members(model: nn.Module, inputs: Sequence[tuple[Any, ...]], sym: Symmetry) -> list[tuple[str, str]]:
    """(group, tensor) where moving that tensor alone changes nothing: none, where a group has several tensors."""
    generator = torch.Generator().manual_seed(3)
    pairs: list[tuple[str, str]] = []
    dead = dead_entries(model, inputs)
    state = {name: t.masked_fill(dead[name], 0.0) if name in dead else t for name, t in floats(model).items()}
    for group in sym.groups:
        if group.size == 1:
            continue
        element = sym.random(generator)
        identity = torch.arange(group.size)
        while bool((element[group.name] == identity).all(-1).any()):
            element = sym.random(generator)
        alone = Element(sym.sets, {group.name: element[group.name]}, {}, element.units)
        tensors = sorted({tensor for tensor, _ in group.members if tensor in state})
        for name in tensors if len(tensors) > 1 else ():
            image = sym.act(alone, {name: state[name]})[name]
            if not torch.equal(image, state[name]) and changed_by(model, inputs, name, image) < 1e-9:
                pairs.append((group.name, name))
    return pairs


def axis_images(tensor: Tensor, move: int | tuple[int, int]) -> list[Tensor]:
    """All orders of an axis, or of axis d for each index of axis e."""
    d, e = move if isinstance(move, tuple) else (move, None)
    every = [list(p) for p in itertools.permutations(range(tensor.shape[d]))]
    if e is None:
        return [permuted(tensor, d, order) for order in every]
    pieces = tensor.unbind(e)
    choices = itertools.product(every, repeat=len(pieces))
    return [torch.stack([permuted(t, d - 1, o) for t, o in zip(pieces, c, strict=True)], e) for c in choices]


def preserving_states(
    model: nn.Module, args: tuple[Any, ...], axes: Mapping[str, Sequence[int | tuple[int, int]]] | None = None
) -> set[bytes]:
    """All states reached by permuting axes of tensors, each on its own, that compute the same function.

    ``axes``: which axes to permute, all of them unless told; (d, e) is axis d in its own way for each index of the
    earlier axis e. Runs every combination.
    """
    state = floats(model)
    images: dict[str, Tensor] = {}
    for name, tensor in state.items():
        rows = [tensor]
        for move in range(tensor.dim()) if axes is None else axes.get(name, ()):
            rows = [image for row in rows for image in axis_images(row, move)]
        images[name] = torch.stack(rows)
    counts = [len(rows) for rows in images.values()]
    total = math.prod(counts)
    base = run(model, state, args)

    def output(values: State) -> Tensor:
        return numbers(torch.func.functional_call(model, values, args))

    states: set[bytes] = set()
    for start in range(0, total, 8192):
        number = torch.arange(start, min(start + 8192, total))
        batch: State = {}
        for name, count in zip(reversed(list(images)), reversed(counts), strict=True):
            batch[name] = images[name][number % count]
            number = number // count
        with torch.no_grad():
            try:
                outputs = torch.func.vmap(output)(batch)
            except RuntimeError:
                count = len(next(iter(batch.values())))
                outputs = torch.stack([output({name: rows[i] for name, rows in batch.items()}) for i in range(count)])
        same = ((outputs - base).abs().amax(1) < 1e-9 * base.abs().max()).nonzero().flatten().tolist()
        states |= {fingerprint({name: batch[name][i] for name in state}) for i in same}
    return states


def fingerprint(state: Mapping[str, Tensor]) -> bytes:
    return torch.cat([tensor.flatten() for tensor in state.values()]).numpy().tobytes()


def every_element(sym: Symmetry) -> list[Element]:
    """The whole permutation group."""
    choices = []
    for group in sym.groups:
        rows = [torch.tensor(p) for p in itertools.permutations(range(group.size))]
        some = itertools.product(rows, repeat=group.copies)
        choices.append([torch.stack(c) if group.over else c[0] for c in some])
    identity = sym.identity()
    names = [group.name for group in sym.groups]
    return [
        Element(identity.sets, dict(zip(names, p, strict=True)), {}, identity.units)
        for p in itertools.product(*choices)
    ]


def images(model: nn.Module, sym: Symmetry) -> set[bytes]:
    state = floats(model)
    return {fingerprint(sym.act(g, state)) for g in every_element(sym)}
