"""Complex numbers: pairs of real ones, on an axis of fixed order."""

from __future__ import annotations

from coset.symmetries.tape import LINEAR, NONLINEAR, Call, Letter, Result, rule


@rule("view_as_complex")
def view_as_complex(call: Call) -> Result:
    value = call.tensor("self")
    call.tape.fix(value.axes[-1], "real and imaginary part")
    letters: list[Letter] = list(range(len(value.axes)))
    return call.tape.map(value, LINEAR, letters=letters, out=letters[:-1])


@rule("view_as_real")
def view_as_real(call: Call) -> Result:
    value = call.tensor("self")
    letters: list[Letter] = list(range(len(value.axes)))
    fresh = {"part": call.tape.fixed(2, "real and imaginary part")}
    return call.tape.map(value, LINEAR, letters=letters, out=[*letters, "part"], fresh=fresh)


@rule("polar")
def polar(call: Call) -> Result:
    """r exp(i phi)."""
    phase = call.tape.map(call.tensor("angle"), NONLINEAR)
    return call.tape.broadcast("multiply", [call.tensor("abs"), phase], [1.0, 1.0])


@rule("complex")
def complex_(call: Call) -> Result:
    """Real and imaginary part, on one scale."""
    return call.tape.broadcast("add", [call.tensor("real"), call.tensor("imag")])
