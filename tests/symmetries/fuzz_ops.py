"""A production that calls any op that has a rule, with arguments drawn by its schema."""

from __future__ import annotations

import functools
from typing import Any

import torch
from fuzz_grammar import Builder, Skip, par, production
from net_family import Net
from torch import Tensor, nn

import coset.symmetries.rules  # noqa: F401  (registers them)
from coset.symmetries.tape import RULES

TRIES = 10
# Chance, memory that nobody wrote, devices that are not here, and indices that torch does not look at.
LEFT_OUT = {
    "_embedding_bag", "_embedding_bag_forward_only", "_grouped_mm", "_native_batch_norm_legit", "_reshape_alias",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_grouped_mm", "_sparse_mm", "_to_dense",
    "_to_sparse", "_to_sparse_csr", "_unsafe_index", "_unsafe_index_put", "alpha_dropout", "as_strided",
    "batch_norm_backward", "bernoulli", "binomial", "bitwise_left_shift", "bitwise_right_shift", "col2im",
    "cudnn_batch_norm", "dropout", "embedding_bag", "empty", "empty_like", "empty_permuted", "empty_strided",
    "exponential", "feature_dropout", "grouped_mm", "histc", "istft", "lift_fresh", "log_normal", "max_unpool2d",
    "max_unpool3d", "multinomial", "native_batch_norm", "native_dropout", "new_empty", "new_empty_strided",
    "nextafter", "normal", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like",
    "randperm", "requires_grad_", "rrelu", "rrelu_with_noise", "sparse_mask", "stft", "to_dense", "to_sparse",
    "uniform",
}  # fmt: skip


@functools.cache
def ops() -> list[Any]:
    """Those that return tensors and write nothing, in a fixed order."""
    found = []
    for name in sorted(RULES.keys() - LEFT_OUT):
        packet = getattr(torch.ops.aten, name, None) if "::" not in name else None
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            schema = op._schema
            tensors = [str(one.type) for one in schema.arguments if "Tensor" in str(one.type)]
            if (
                "prim" not in overload
                and tensors
                and not schema.is_mutable
                and "Dimname" not in str(schema)
                and schema.returns
            ):
                found.append(op)
    return found


@production(10)
def any_op(b: Builder) -> None:
    op = b.rng.choice(ops())
    k = b.some()
    if b.chance(0.2):
        positive = b.rng.choice(
            [torch.exp, torch.sigmoid, torch.relu, torch.square, torch.abs, torch.nn.functional.softplus]
        )
        k = b.add(positive.__name__, [k], lambda m, x: positive(x))
    for _ in range(TRIES):
        try:
            _call(b, op, k)
            return
        except Skip:
            continue
    raise Skip


def _call(b: Builder, op: Any, k: int) -> None:
    reads: list[int] = []
    parts: dict[str, nn.Parameter | Tensor] = {}
    slots = [_argument(b, one, k, reads, parts) for one in op._schema.arguments]
    names = [one.name for one in op._schema.arguments]
    positional = sum(not one.kwarg_only for one in op._schema.arguments)
    which = b.rng.randrange(3)

    def function(m: Net, *xs: Tensor) -> Tensor:
        def value(slot: Any) -> Any:
            if isinstance(slot, list):
                return [value(one) for one in slot]
            if not isinstance(slot, tuple):
                return slot
            kind, number = slot
            return getattr(m, number) if kind == "part" else xs[number] > 0 if kind == "mask" else xs[number]

        values = [value(slot) for slot in slots]
        result = op(*values[:positional], **dict(zip(names[positional:], values[positional:], strict=True)))
        if isinstance(result, tuple | list):
            result = result[which % len(result)]
        if not isinstance(result, Tensor) or result.layout is not torch.strided:
            raise Skip
        if result.is_complex():
            result = torch.view_as_real(result.resolve_conj()).sum(-1)
        return result if result.dtype == xs[0].dtype else result.to(xs[0].dtype)

    if not reads:
        raise Skip
    with torch.no_grad():
        try:
            result = Net(function, **parts)(*[b.values[j] for j in reads])
        except Skip:
            raise
        except Exception as error:
            raise Skip(str(error)) from error
    first = b.values[reads[0]]
    if result.shape == first.shape:
        kinds = b.kinds[reads[0]]
    elif result.dim() and first.dim() and len(result) == len(first) and b.kinds[reads[0]][0] == "b":
        kinds = "b" + "u" * (result.dim() - 1)
    else:
        kinds = "u" * result.dim()
    told = ", ".join(f"{name}={slot}" for name, slot in zip(names, slots, strict=True) if not _is_tensor(slot))
    b.add(f"{op}[{told}]", reads, function, kinds, **parts)


def _is_tensor(slot: Any) -> bool:
    return isinstance(slot, tuple) or (isinstance(slot, list) and bool(slot) and isinstance(slot[0], tuple))


def _argument(b: Builder, argument: Any, k: int, reads: list[int], parts: dict[str, nn.Parameter | Tensor]) -> Any:
    """A value for one argument; tensors as ("read", position), ("mask", position) or ("part", name)."""
    kind, name = str(argument.type), argument.name
    if argument.has_default_value() and b.chance(0.5):
        return argument.default_value
    if kind.startswith("Optional["):
        if b.chance(0.4):
            return None
        kind = kind[len("Optional[") : -1]
    if kind == "Tensor":
        return _tensor(b, name, k, reads, parts)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [_tensor(b, name, k, reads, parts) for _ in range(b.rng.choice([1, 2, 2]))]
    if kind in ("int", "SymInt"):
        return b.rng.randrange(-2, 3) if "dim" in name or "axis" in name else b.rng.choice([0, 1, 1, 2, 3])
    if kind in ("List[int]", "List[SymInt]"):
        return b.rng.choice([[0], [1], [-1], [1], [2], [0, 1], [1, 2], [-1, -2], [2, 2], [1, 1], [-1, 2], [2, 1], [3]])
    if kind in ("float", "number", "Scalar", "complex"):
        return b.rng.choice([0.5, 1.0, 2.0, -1.0, 0.0, 3.0, 2])
    if kind in ("List[float]",):
        return [b.rng.choice([0.5, 1.0, 2.0]) for _ in range(2)]
    if kind == "bool":
        return b.chance()
    if argument.has_default_value():
        return argument.default_value
    raise Skip


def _tensor(
    b: Builder, name: str, k: int, reads: list[int], parts: dict[str, nn.Parameter | Tensor]
) -> tuple[str, Any]:
    if not reads:
        reads.append(k)
        return ("read", 0)
    x = b.values[k]
    way = b.rng.choice(["alike", "alike", "last", "parameter", "square", "any", "row", "again"])
    part = f"p{len(parts)}"
    if "ind" in name or name in ("repeats", "boundaries"):
        parts[part] = b.rng.choice(
            [torch.tensor([0, 1]), torch.tensor([1, 0, 1]), torch.zeros(x.shape, dtype=torch.long)]
        )
        return ("part", part)
    if name in ("condition", "mask") and b.chance():
        reads.append(b.like(k))
        return ("mask", len(reads) - 1)
    if name in ("condition", "mask"):
        parts[part] = torch.rand(x.shape[-1:]) > 0.5
        return ("part", part)
    if way == "again":
        reads.append(k)
    elif way == "alike":
        reads.append(b.like(k))
    elif way == "any":
        reads.append(b.some())
    else:
        if not x.dim():
            raise Skip
        n = x.shape[-1]
        shape = {"last": (n,), "parameter": tuple(x.shape), "square": (n, n), "row": (2, n)}[way]
        if way == "parameter" and x.dim() > 1:
            shape = (1, *x.shape[1:])
        parts[part] = par(*shape)
        return ("part", part)
    return ("read", len(reads) - 1)
