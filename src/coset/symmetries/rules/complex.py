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


@rule(["polar", "complex"])
def polar(call: Call) -> Result:
    """A complex tensor from two real ones."""
    flat = [call.tape.map(call.number(value), NONLINEAR) for value in call.values()]
    return call.tape.broadcast("multiply", flat, [1.0, 1.0])
