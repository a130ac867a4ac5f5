"""Functions of matrices, by what they do to P A Q and to P A P^T, and matrices that hold a vector on their diagonal."""

from __future__ import annotations

from collections.abc import Sequence

from coset.symmetries.symmetric import is_symmetric
from coset.symmetries.tape import (
    HOMOGENEOUS,
    LINEAR,
    MAGNITUDE,
    NONLINEAR,
    Call,
    Law,
    Letter,
    NoRuleError,
    Result,
    Value,
    rule,
)
from coset.symmetries.terms import Term, units


def _matrices(call: Call, name: str) -> Value:
    value = call.tensor(name)
    if len(value.axes) < 2:
        raise NoRuleError("no matrix")
    return value


def _batch(value: Value) -> list[Letter]:
    return list(range(len(value.axes) - 2))


def _inverse(call: Call, value: Value) -> Value:
    """(P A Q)^-1 = Q^-1 A^-1 P^-1, also for factors of rows and of columns."""
    if value.shape[-1] != value.shape[-2]:
        raise NoRuleError("no square matrix")
    batch = _batch(value)
    return call.tape.map(value, LINEAR, letters=[*batch, "i", "j"], out=[*batch, "j", "i"], power=-1.0)


@rule(["linalg_inv", "inverse", "linalg_inv_ex"])
def inverse(call: Call) -> Result:
    out = _inverse(call, _matrices(call, "self" if call.op == "inverse" else "A"))
    return [out, *[None] * (len(call.shapes) - 1)] if len(call.shapes) > 1 else out


@rule(["linalg_pinv", "pinverse"])
def pseudo_inverse(call: Call) -> Result:
    """As P and Q are orthogonal, (P A Q)^+ = Q^T A^+ P^T; of factors only one for the whole matrix passes."""
    value = _matrices(call, "self")
    if call.get("hermitian", False):
        _refuse_asymmetric(call, value)
    batch = _batch(value)
    over = [len(batch), len(batch) + 1]
    letters = [*batch, "i", "j"]
    # Singular values below a bound that is a number of its own count as zero.
    law = NONLINEAR if call.has("atol") else LINEAR
    return call.tape.map(value, law, letters=letters, out=[*batch, "j", "i"], over=over, power=-1.0)


@rule(["linalg_solve", "_linalg_solve_ex", "linalg_solve_ex"])
def solve(call: Call) -> Result:
    """X = A^-1 B, or B A^-1."""
    a, b = _matrices(call, "A"), call.tensor("B")
    inverted = _inverse(call, a)
    is_vector = len(b.axes) == 1 or (len(b.axes) == len(a.axes) - 1 and b.shape == a.shape[:-1])
    left = bool(call.get("left", True))
    rank = max(len(a.axes), len(b.axes) + is_vector) - 2
    batch_a: list[Letter] = list(range(rank - len(a.axes) + 2, rank))
    columns: list[Letter] = [] if is_vector else ["k"]
    batch_b: list[Letter] = list(range(rank - (len(b.axes) - 1 - len(columns)), rank))
    rows = ["i", *columns] if left else [*columns, "j"]
    out = ["j", *columns] if left else [*columns, "i"]
    ins: list[tuple[Value, list[Letter]]] = [(inverted, [*batch_a, "j", "i"]), (b, [*batch_b, *rows])]
    result = call.tape.multiply(ins, [*range(rank), *out])
    return [result, *[None] * (len(call.shapes) - 1)] if len(call.shapes) > 1 else result


def _conjugated(call: Call, name: str) -> Value:
    """A matrix whose rows and columns index the same units."""
    value = _matrices(call, name)
    if value.shape[-1] != value.shape[-2]:
        raise NoRuleError("no square matrix")
    call.tape.unify(value.axes[-2], value.axes[-1])
    return value


@rule(["linalg_matrix_exp", "matrix_exp", "linalg_matrix_power", "matrix_power"])
def matrix_function(call: Call) -> Result:
    """f(P A P^T) = P f(A) P^T."""
    value = _conjugated(call, "self")
    rank = len(value.axes)
    return call.tape.map(value, NONLINEAR, over=[rank - 2, rank - 1])


@rule(["linalg_det", "det", "logdet", "linalg_slogdet", "slogdet"])
def determinant(call: Call) -> Result:
    """det(P A P^T) = det A."""
    value = _conjugated(call, "A" if call.op.startswith("linalg") else "self")
    outs = [_reduced(call, value, NONLINEAR, []) for _ in call.shapes]
    return outs if len(outs) > 1 else outs[0]


def _reduced(call: Call, value: Value, law: Law, spectrum: Sequence[Letter]) -> Value:
    """A number, or a list in a fixed order, for each matrix."""
    batch = _batch(value)
    over = [len(batch), len(batch) + 1]
    fresh: dict[Letter, Term] = {x: call.tape.fixed(min(value.shape[-2:]), "ordered by value") for x in spectrum}
    letters = [*batch, "i", "j"]
    return call.tape.map(value, law, letters=letters, out=[*batch, *spectrum], over=over, fresh=fresh)


@rule(["linalg_cond", "linalg_matrix_rank"])
def condition(call: Call) -> Result:
    """P A Q has the singular values of A."""
    value = call.number(call.values()[0])
    if len(value.axes) < 2 or len(call.values()) > 1:
        raise NoRuleError("no matrix")
    if call.get("hermitian", False):
        _refuse_asymmetric(call, value)
    return _reduced(call, value, NONLINEAR, [])


@rule(["linalg_svdvals", "linalg_svd", "_linalg_svd"])
def singular_values(call: Call) -> Result:
    """Those of P A Q are those of A; vectors have a sign that depends on the order."""
    value = _matrices(call, "A")
    values = _reduced(call, value, MAGNITUDE, ["rank"])
    return values if len(call.shapes) == 1 else [None, values, *[None] * (len(call.shapes) - 2)]


@rule(["linalg_eigvalsh", "linalg_eigh", "_linalg_eigh"])
def eigenvalues(call: Call) -> Result:
    """Those of P A P^T are those of A."""
    value = _conjugated(call, "self" if "self" in call.arguments else "A")
    _refuse_asymmetric(call, value)
    values = _reduced(call, value, HOMOGENEOUS, ["rank"])
    return values if len(call.shapes) == 1 else [values, *[None] * (len(call.shapes) - 1)]


def _refuse_asymmetric(call: Call, value: Value) -> None:
    """What takes a matrix to be symmetric reads one half of it, and an order tells halves apart."""
    rank = len(value.axes)
    if not is_symmetric(call.tape, value, rank - 2, rank - 1):
        raise NoRuleError("half of a matrix that may not be symmetric is read")


@rule(["linalg_cholesky", "cholesky", "linalg_cholesky_ex", "linalg_qr", "linalg_lu_factor", "cholesky_inverse"])
def factorisation(call: Call) -> Result:
    """Rows are eliminated in order: both axes are fixed, the others pass."""
    name = "self" if "self" in call.arguments else "input" if "input" in call.arguments else "A"
    value = _matrices(call, name)
    outs = [_in_order(call, value, shape) for shape in call.shapes if len(shape) == len(value.axes)]
    rest = [None] * (len(call.shapes) - len(outs))
    return [*outs, *rest] if len(call.shapes) > 1 else outs[0]


def _in_order(call: Call, value: Value, shape: Sequence[int]) -> Value:
    for axis in (-2, -1):
        call.tape.fix(value.axes[axis], "eliminated in order")
    batch = _batch(value)
    over = [len(batch), len(batch) + 1]
    fresh = {x: call.tape.fixed(size, "eliminated in order") for x, size in zip("rc", shape[-2:], strict=True)}
    letters = [*batch, "i", "j"]
    return call.tape.map(value, NONLINEAR, letters=letters, out=[*batch, "r", "c"], over=over, fresh=fresh)


@rule(["linalg_solve_triangular", "cholesky_solve"])
def solve_triangular(call: Call) -> Result:
    """(L^-1 or (L L^T)^-1) B: the order of the rows matters, the columns of B pass."""
    if call.op == "cholesky_solve":
        factor, b, left = _matrices(call, "input2"), _matrices(call, "self"), True
    else:
        factor, b, left = _matrices(call, "self"), _matrices(call, "B"), bool(call.get("left", True))
    for axis in (-2, -1):
        call.tape.fix(factor.axes[axis], "eliminated in order")
    rank = max(len(factor.axes), len(b.axes)) - 2
    batch: list[Letter] = list(range(rank))
    inverted = call.tape.map(factor, NONLINEAR)
    rows, out = (["i", "k"], ["j", "k"]) if left else (["k", "i"], ["k", "j"])
    ins: list[tuple[Value, list[Letter]]] = [
        (inverted, [*batch[rank - len(factor.axes) + 2 :], "j", "i"]),
        (b, [*batch[rank - len(b.axes) + 2 :], *rows]),
    ]
    return call.tape.multiply(ins, [*batch, *out])


def identity(term: Term) -> Value:
    """The matrix I = P I P^T."""
    return Value((term, term))


@rule("eye")
def eye(call: Call) -> Result:
    rows, columns = call.shape
    return identity(units(rows)) if rows == columns else call.fresh(call.shape, "constant")


@rule(["diagonal", "diagonal_copy", "linalg_diagonal"])
def diagonal(call: Call) -> Result:
    """sum_j A_ij I_ij: rows and columns index the same units."""
    value = call.number(call.values()[0])
    rank = len(value.axes)
    ends = (-2, -1) if call.op == "linalg_diagonal" else (0, 1)
    i, j = call.axis("dim1", rank, ends[0]), call.axis("dim2", rank, ends[1])
    return _diagonal(call, value, i, j)


def _diagonal(call: Call, value: Value, i: int, j: int) -> Value:
    if call.get("offset", call.get("diagonal", 0)) != 0 or value.shape[i] != value.shape[j]:
        raise NoRuleError("off the diagonal")
    letters: list[Letter] = list(range(len(value.axes)))
    rest = [letter for letter in letters if letter not in (i, j)]
    return call.tape.multiply([(value, letters), (identity(value.axes[i]), [i, j])], [*rest, i])


@rule(["diag_embed", "diag"])
def diag_embed(call: Call) -> Result:
    """v_i I_ij; `diag` of a matrix is its diagonal."""
    value = call.number(call.values()[0])
    if call.op == "diag" and len(value.axes) == 2:
        return _diagonal(call, value, 0, 1)
    rank = len(value.axes) + 1
    i, j = call.axis("dim1", rank, -2), call.axis("dim2", rank, -1)
    if call.get("offset", call.get("diagonal", 0)) != 0 or (i, j) != (rank - 2, rank - 1):
        raise NoRuleError("off the diagonal")
    letters: list[Letter] = [*range(rank - 2), "i"]
    ins: list[tuple[Value, list[Letter]]] = [(value, letters), (identity(value.axes[-1]), ["i", "j"])]
    return call.tape.multiply(ins, [*letters, "j"])


@rule("trace")
def trace(call: Call) -> Result:
    value = call.tensor("self")
    if value.shape[0] != value.shape[1]:
        raise NoRuleError("no square matrix")
    return call.tape.multiply([(value, ["i", "j"]), (identity(value.axes[0]), ["i", "j"])], [])


@rule(["linalg_cross", "cross"])
def cross(call: Call) -> Result:
    """a x b along an axis of three: its order is fixed, the others are matched."""
    a, b = (call.number(value) for value in call.values()[:2])
    rank = max(len(a.axes), len(b.axes))
    if not call.has("dim") and call.op == "cross":
        raise NoRuleError("the axis is not named")
    axis = call.axis("dim", rank, -1)
    fresh: dict[Letter, Term] = {"of a x b": call.tape.fixed(3, "coordinates of a cross product")}
    ins: list[tuple[Value, list[Letter]]] = []
    for value, name in ((a, "of a"), (b, "of b")):
        lead = rank - len(value.axes)
        call.tape.fix(value.axes[axis - lead], "coordinates of a cross product")
        ins.append((value, [name if d == axis else d for d in range(lead, rank)]))
    return call.tape.multiply(ins, ["of a x b" if d == axis else d for d in range(rank)], fresh=fresh)


@rule(["cdist", "_cdist_forward", "_euclidean_dist"])
def cdist(call: Call) -> Result:
    """|x_m - y_n| over the last axis: one factor for both operands passes, and a sign of a coordinate is killed."""
    x, y = call.tensor("x1"), call.tensor("x2")
    rank = max(len(x.axes), len(y.axes)) - 2
    batch: list[Letter] = list(range(rank))
    pairs: list[Letter] = [*batch, "m", "n"]
    ins: list[tuple[Value, list[Letter]]] = [
        (x, [*batch[rank - len(x.axes) + 2 :], "m", "d"]),
        (y, [*batch[rank - len(y.axes) + 2 :], "n", "d"]),
    ]
    apart = call.tape.add(ins, [*pairs, "d"])
    p = call.get("p", 2.0)
    law = MAGNITUDE if p > 0 else Law("kill", "kill")
    return call.tape.map(apart, law, letters=[*pairs, "d"], out=pairs, over=[len(pairs)], isotropic=p == 2)


@rule("dist")
def dist(call: Call) -> Result:
    """|x - y| over all entries."""
    apart = call.tape.broadcast("add", [call.tensor("self"), call.tensor("other")])
    axes = range(len(apart.axes))
    p = call.get("p", 2.0)
    law = MAGNITUDE if p > 0 else Law("kill", "kill")
    return call.tape.map(apart, law, out=[], over=list(axes), isotropic=p == 2)
