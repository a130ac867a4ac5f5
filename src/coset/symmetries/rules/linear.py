"""Sums of products: linear maps, matrix products, einsum."""

from __future__ import annotations

from collections.abc import Sequence

from coset.symmetries.rules.indexing import look_up, no_scale
from coset.symmetries.rules.linalg import identity
from coset.symmetries.rules.reshape import reshape_to
from coset.symmetries.tape import NONLINEAR, NORMALISING, Call, Letter, Lookup, NoRuleError, Result, Value, rule


@rule("linear")
def linear(call: Call) -> Result:
    out, bias = matrix_map(call, call.tensor("input"), call.tensor("weight")), call.maybe("bias")
    return out if bias is None else call.tape.broadcast("add", [out, bias])


def matrix_map(call: Call, x: Value, weight: Value) -> Value:
    """(..., in), (out, in) -> (..., out), or (in) -> (...)."""
    batch: list[Letter] = list(range(len(x.axes) - 1))
    out: list[Letter] = ["out"] if len(weight.axes) == 2 else []
    return call.tape.multiply([(x, [*batch, "in"]), (weight, [*out, "in"])], [*batch, *out])


@rule(["matmul", "mm", "bmm", "mv", "dot", "vdot", "linalg_matmul", "_sparse_mm"])
def matmul(call: Call) -> Result:
    a, b = call.values()[:2]
    return matrix_product(call, call.number(a), call.number(b))


def matrix_product(call: Call, a: Value, b: Value) -> Value:
    """... m k, ... k n -> ... m n, with NumPy's treatment of vectors."""
    rank = max(len(a.axes), len(b.axes)) - 2
    left: list[Letter] = [*range(rank - (len(a.axes) - 2), rank), "m", "k"] if len(a.axes) > 1 else ["k"]
    right: list[Letter] = [*range(rank - (len(b.axes) - 2), rank), "k", "n"] if len(b.axes) > 1 else ["k"]
    batch: list[Letter] = list(range(max(rank, 0)))
    out = [*batch, *["m"][: len(a.axes) - 1], *["n"][: len(b.axes) - 1]]
    return call.tape.multiply([(a, left), (b, right)], out)


@rule(["addmm", "baddbmm", "addmv", "addbmm"])
def addmm(call: Call) -> Result:
    names = ("mat", "vec") if call.op == "addmv" else ("batch1", "batch2") if "bmm" in call.op else ("mat1", "mat2")
    if call.op == "addbmm":
        raise NoRuleError("batch is summed")
    out = matrix_product(call, call.tensor(names[0]), call.tensor(names[1]))
    return call.tape.broadcast("add", [call.tensor("self"), out])


@rule(["_grouped_mm", "transformers::grouped_mm_fallback"])
def grouped_mm(call: Call) -> Result:
    """Rows t of runs, each with the matrix of its run: sum_k a_tk b_gkn; a matrix for each, if there are as many."""
    a, b, *rest = (call.as_value(value) for value in call.values())
    if not call.has("offs"):
        return matrix_product(call, call.number(a), call.number(b))
    if len(a.axes) != 2 or len(b.axes) != 3 or len(rest) != 1:
        raise NoRuleError("runs of another axis than the rows")
    (ends,) = rest
    look_up(call, b.axes[0], ends)
    no_scale(call, ends)
    ins: list[tuple[Value, list[Letter]]] = [(call.number(b), ["run", "k", "n"]), (call.number(a), ["t", "k"])]
    return call.tape.multiply(ins, ["t", "n"], lookups={"run": Lookup(ends, ("t",))})


@rule(["linalg_multi_dot", "chain_matmul"])
def multi_dot(call: Call) -> Result:
    first, *others = call.tensors("tensors" if call.has("tensors") else "matrices")
    for other in others:
        first = matrix_product(call, first, other)
    return first


@rule("tensordot")
def tensordot(call: Call) -> Result:
    """The axes of `dims_self` are summed against those of `dims_other`, in order."""
    a, b = call.tensor("self"), call.tensor("other")
    pairs = dict(zip([d % len(b.axes) for d in call.get("dims_other")],
                     [d % len(a.axes) for d in call.get("dims_self")], strict=True))  # fmt: skip
    left: list[Letter] = [("left", d) for d in range(len(a.axes))]
    right: list[Letter] = [("left", pairs[d]) if d in pairs else ("right", d) for d in range(len(b.axes))]
    summed = {("left", d) for d in pairs.values()}
    return call.tape.multiply([(a, left), (b, right)], [x for x in [*left, *right] if x not in summed])


@rule(["inner", "linalg_vecdot"])
def inner(call: Call) -> Result:
    """Sums over the last axis of both; `vecdot` over a named one, the others elementwise."""
    a, b = (call.number(value) for value in call.values()[:2])
    if call.op == "linalg_vecdot":
        rank = max(len(a.axes), len(b.axes))
        axis = call.axis("dim", rank, -1)
        ins = [(value, list(range(rank - len(value.axes), rank))) for value in (a, b)]
        if any(value.shape[axis - rank] == 1 for value in (a, b)):
            raise NoRuleError("broadcast along the sum")
        return call.tape.multiply(ins, [d for d in range(rank) if d != axis])
    if not a.axes or not b.axes:
        return call.tape.broadcast("multiply", [a, b], [1.0, 1.0])
    left: list[Letter] = [("left", d) for d in range(len(a.axes) - 1)]
    right: list[Letter] = [("right", d) for d in range(len(b.axes) - 1)]
    return call.tape.multiply([(a, [*left, "k"]), (b, [*right, "k"])], [*left, *right])


@rule("kron")
def kron(call: Call) -> Result:
    """Each axis holds the pairs of positions of both."""
    a, b = call.tensor("self"), call.tensor("other")
    rank = len(a.axes)
    if len(b.axes) != rank:
        raise NoRuleError("operands of different rank")
    left: list[Letter] = [("left", d) for d in range(rank)]
    right: list[Letter] = [("right", d) for d in range(rank)]
    pairs = [letter for pair in zip(left, right, strict=True) for letter in pair]
    return reshape_to(call, call.tape.multiply([(a, left), (b, right)], pairs), call.shape)


@rule(["outer", "ger"])
def outer(call: Call) -> Result:
    a, b = (call.number(value) for value in call.values()[:2])
    return call.tape.multiply([(a, ["m"]), (b, ["n"])], ["m", "n"])


@rule("bilinear")
def bilinear(call: Call) -> Result:
    a, b, weight, bias = (
        call.tensor("input1"),
        call.tensor("input2"),
        call.tensor("weight"),
        call.maybe("bias"),
    )
    batch: list[Letter] = list(range(len(a.axes) - 1))
    out = call.tape.multiply([(a, [*batch, "i"]), (b, [*batch, "j"]), (weight, ["o", "i", "j"])], [*batch, "o"])
    return out if bias is None else call.tape.broadcast("add", [out, bias])


@rule("einsum")
def einsum(call: Call) -> Result:
    equation = str(call.get("equation")).replace(" ", "")
    values = call.tensors("tensors")
    left, _, right = equation.partition("->")
    inputs = left.split(",")
    if "->" not in equation:
        letters = left.replace(",", "").replace("...", "")
        right = "..." * ("..." in left) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    pairs = [(value, _expand(term, len(value.axes))) for value, term in zip(values, inputs, strict=True)]
    ins = [one for value, row in pairs for one in _on_diagonals(value, row)]
    return call.tape.multiply(ins, _expand(right, len(call.shape)))


def _on_diagonals(value: Value, letters: Sequence[Letter]) -> list[tuple[Value, Sequence[Letter]]]:
    """A_ii is sum_j A_ij I_ij."""
    own: list[Letter] = [(letter, d) if letter in letters[:d] else letter for d, letter in enumerate(letters)]
    again = [d for d, letter in enumerate(letters) if own[d] != letter]
    return [(value, own), *[(identity(value.axes[d]), [letters[d], own[d]]) for d in again]]


def _expand(letters: str, rank: int) -> list[Letter]:
    """One letter an axis; the ellipsis becomes letters counted from its right end."""
    head, dots, tail = letters.partition("...")
    extra = rank - len(head) - len(tail) if dots else 0
    return [*head, *[("batch", k - extra) for k in range(extra)], *tail]


@rule(["_weight_norm", "_weight_norm_interface"])
def weight_norm(call: Call) -> Result:
    """w = g v / |v|, the norm over all axes but one: any factor of v along that axis is killed."""
    v, g = call.tensor("v"), call.tensor("g")
    axis = call.get("dim", 0)
    if sum(size != 1 for size in g.shape) > 1:
        raise NoRuleError("more than one length a row")
    axes = range(len(v.axes))
    over = [d for d in axes if d != axis % len(v.axes)] if axis != -1 else list(axes)
    direction = call.tape.map(v, NORMALISING, over=over, isotropic=True)
    out = call.tape.broadcast("multiply", [direction, g], [1.0, 1.0])
    return [out, None] if len(call.shapes) > 1 else out


@rule(["cosine_similarity", "pairwise_distance"])
def similarity(call: Call) -> Result:
    """A joint function of two tensors, reduced over one axis."""
    flat = [call.tape.map(call.number(value), NONLINEAR) for value in call.values()[:2]]
    joint = call.tape.broadcast("multiply", flat, [1.0, 1.0])
    axis = call.axis("dim", len(joint.axes), 1) if call.op == "cosine_similarity" else len(joint.axes) - 1
    letters: list[Letter] = list(range(len(joint.axes)))
    rest = [letter for letter in letters if letter != axis]
    if len(call.shape) == len(joint.axes):
        raise NoRuleError("the reduced axis is kept")
    return call.tape.map(joint, NONLINEAR, letters=letters, out=rest, over=[axis])
