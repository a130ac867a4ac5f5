"""The group and its action, against a reference that loops over positions one by one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from oracle import every_element
from reference import State, occurrences, reference, size_of

from coset import Element, Symmetry, SymmetryError

# --- random specs ------------------------------------------------------------------------------------------

sizes = st.integers(1, 3)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Index sets a, b, c; u over a, v over a and b, w over a and u; tensors with them in all places."""
    groups: dict[str, Any] = {
        "a": draw(st.integers(2, 3)),
        "b": 2,
        "c": draw(sizes),
        "u": {"size": draw(sizes), "over": ["a"]},
        "v": {"size": 2, "over": draw(st.sampled_from([["a", "b"], ["b", "a"]]))},
        "w": {"size": 2, "over": ["a", "u"]},
    }
    if draw(st.booleans()):
        groups["a"] = {"size": 2, "movable": False}
    atoms: list[Any] = [
        "a",
        "b",
        "c",
        1,
        2,
        ["a", "u"],
        ["u", "a"],
        ["a", 2, "u"],
        ["a", "b", "v"],
        ["v", "b", "a"],
        ["b", ["a", "v"]],
        ["a", "u", "w"],
        ["w", "a", 2, "u"],
    ]
    pieces = st.sampled_from(atoms)

    def axis() -> Any:
        kind = draw(st.sampled_from(["atom", "concat", "product", "interleave", "nested"]))
        first = draw(pieces)
        if kind == "atom":
            return first
        if kind == "product":
            return [first, draw(st.sampled_from([2, "c"]))] if draw(st.booleans()) else [2, first]
        second = draw(pieces)
        if kind == "concat":
            return {"concat": [first, second, draw(st.sampled_from([1, "c"]))]}
        third = next((p for p in atoms if size_of(p, groups) == size_of(first, groups) and p != first), first)
        if kind == "interleave":
            return {"interleave": [first, third]}
        return {"concat": [{"interleave": [first, third]}, second]}

    tensors: dict[str, Any] = {}
    for k in range(draw(st.integers(1, 2))):
        tensors[f"t{k}"] = [axis() for _ in range(draw(st.integers(1, 2)))]
    far = [
        [["a", "c"], "u"],
        [["a", 2], ["c", "u"]],
        ["u", "a"],
        ["u", 2, ["c", "a"]],
        [["a", "u"], "w"],
        ["a", "v", "b"],
        [["a", "b"], 1, "v"],
        [{"concat": ["u", ["c", "u"]]}, "a"],
        ["a", {"interleave": ["u", "u"]}],
    ]
    tensors["far"] = draw(st.sampled_from(far))
    scalings: dict[str, Any] = {}
    # Scalings of one tensor commute only if they share its offset.
    shift = {name: draw(st.sampled_from([0.0, 0.25])) for name in tensors}
    for k in range(draw(st.integers(0, 2))):
        units = draw(st.sampled_from(["a", "b", "c", "u", "v", "w", ""]))
        kind = draw(st.sampled_from(["scaling", "sign"]))
        powers = [1.0, -1.0, 2.0, -0.5] if kind == "scaling" else [1.0]
        members = []
        for name, axes in tensors.items():
            places = [(d, n) for d, one in enumerate(axes) for n in range(occurrences(one, units))] if units else []
            for d, n in places:
                if draw(st.booleans()):
                    members.append([name, d, draw(st.sampled_from(powers)), shift[name], n])
            if not units:
                members.append([name, None, draw(st.sampled_from(powers)), shift[name]])
        if members:
            scalings[f"s{k}"] = {"units": units, "kind": kind, "members": members}
    return {"groups": groups, "tensors": tensors, "scalings": scalings}


def make(spec: dict[str, Any]) -> Symmetry:
    return Symmetry.from_json(json.dumps(spec))


def random_state(spec: dict[str, Any], seed: int, batch: int | None = None) -> State:
    generator = torch.Generator().manual_seed(seed)
    lead = () if batch is None else (batch,)
    return {
        name: torch.randn(*lead, *[size_of(a, spec["groups"]) for a in axes], generator=generator, dtype=torch.float64)
        for name, axes in spec["tensors"].items()
    }


def draw_elements(sym: Symmetry, count: int, seed: int = 0, batch: int | None = None) -> list[Element]:
    generator = torch.Generator().manual_seed(seed)
    return [sym.random(generator, batch=batch, scalings=True) for _ in range(count)]


def close(a: State, b: State) -> bool:
    return all(a[n].shape == b[n].shape and torch.allclose(a[n], b[n], rtol=1e-9, atol=1e-12) for n in a)


@settings(max_examples=60)
@given(specs(), st.integers(0, 10**6))
def test_action_is_the_reference(spec: dict[str, Any], seed: int) -> None:
    sym, state = make(spec), random_state(spec, seed)
    (g,) = draw_elements(sym, 1, seed)
    assert close(sym.act(g, state), reference(spec, g, state))


@settings(max_examples=80)
@given(specs(), st.integers(0, 10**6))
def test_group_action(spec: dict[str, Any], seed: int) -> None:
    sym, state = make(spec), random_state(spec, seed)
    g, h, k = draw_elements(sym, 3, seed)
    assert close(sym.act(g @ h, state), sym.act(g, sym.act(h, state)))
    assert close(sym.act((g @ h) @ k, state), sym.act(g @ (h @ k), state))
    assert close(sym.act(g.inverse(), sym.act(g, state)), state)
    assert close(sym.act(g @ g.inverse(), state), state)
    assert close(sym.act(g.inverse() @ g, state), state)
    assert close(sym.act(sym.identity(), state), state)
    assert close(sym.act(sym.identity() @ g, state), sym.act(g, state))
    assert close(sym.act(g @ sym.identity(), state), sym.act(g, state))
    assert close(sym.act(sym.identity().inverse(), state), state)


@settings(max_examples=60)
@given(specs(), st.integers(0, 10**6))
def test_partial_elements(spec: dict[str, Any], seed: int) -> None:
    """Elements that name only some groups compose and invert like those that name all."""
    sym, state = make(spec), random_state(spec, seed)
    g, h = draw_elements(sym, 2, seed)
    some = Element(g.sets, {n: p for k, (n, p) in enumerate(g.permutations.items()) if k % 2 == 0}, {}, g.units)
    rest = Element(h.sets, {n: p for k, (n, p) in enumerate(h.permutations.items()) if k % 2}, h.scales, h.units)
    assert close(sym.act(some, state), reference(spec, some, state))
    assert close(sym.act(some @ rest, state), sym.act(some, sym.act(rest, state)))
    assert close(sym.act(rest @ some, state), sym.act(rest, sym.act(some, state)))
    assert close(sym.act(some.inverse(), sym.act(some, state)), state)


@settings(max_examples=60)
@given(specs(), st.integers(0, 10**6))
def test_batched_elements_on_a_population(spec: dict[str, Any], seed: int) -> None:
    sym, population = make(spec), random_state(spec, seed, batch=3)
    many, other = draw_elements(sym, 2, seed, batch=3)
    together, both, back = sym.act(many, population), sym.act(many @ other, population), many.inverse()
    for i in range(3):
        one = {name: tensor[i] for name, tensor in population.items()}
        g, h = member(many, i), member(other, i)
        assert close({n: t[i] for n, t in together.items()}, sym.act(g, one))
        assert close({n: t[i] for n, t in both.items()}, sym.act(g, sym.act(h, one)))
    assert close(sym.act(back, together), population)


@settings(max_examples=30)
@given(specs(), st.integers(0, 10**6))
def test_one_element_on_a_population(spec: dict[str, Any], seed: int) -> None:
    sym, population = make(spec), random_state(spec, seed, batch=2)
    (g,) = draw_elements(sym, 1, seed)
    together = sym.act(g, population)
    for i in range(2):
        assert close({n: t[i] for n, t in together.items()}, sym.act(g, {n: t[i] for n, t in population.items()}))


@settings(max_examples=30)
@given(specs(), st.integers(0, 10**6))
def test_batched_elements_on_one_state(spec: dict[str, Any], seed: int) -> None:
    sym, state = make(spec), random_state(spec, seed)
    (many,) = draw_elements(sym, 1, seed, batch=3)
    images = sym.act(many, state)
    for i in range(3):
        assert close({n: t[i] for n, t in images.items()}, sym.act(member(many, i), state))


def test_a_batch_of_images_is_a_population() -> None:
    """Every tensor gets the leading dimension, those that nothing moves too."""
    sym = make({"groups": {"h": 3}, "tensors": {"w": ["h", 2], "fixed": [2]}})
    state = {"w": torch.randn(3, 2), "fixed": torch.randn(2), "unknown": torch.randn(5)}
    images = sym.act(sym.random(batch=4), state)
    assert {name: tuple(t.shape) for name, t in images.items()} == {"w": (4, 3, 2), "fixed": (4, 2), "unknown": (4, 5)}


def member(element: Element, i: int) -> Element:
    return Element(
        element.sets,
        {n: p[i] for n, p in element.permutations.items()},
        {n: c[i] for n, c in element.scales.items()},
        element.units,
    )


@settings(max_examples=60)
@given(specs(), st.integers(0, 10**6))
def test_json_round_trip(spec: dict[str, Any], seed: int) -> None:
    sym, state = make(spec), random_state(spec, seed)
    again = Symmetry.from_json(sym.to_json())
    assert again.axes == sym.axes
    assert again.scalings == sym.scalings
    assert again.log_order == sym.log_order
    assert again.groups == sym.groups
    (g,) = draw_elements(sym, 1, seed)
    assert close(again.act(g, state), sym.act(g, state))
    assert again.to_json() == sym.to_json()


@settings(max_examples=40)
@given(specs(), st.integers(0, 10**6))
def test_log_order_counts_distinct_images(spec: dict[str, Any], seed: int) -> None:
    sym, state = make(spec), random_state(spec, seed)
    if sym.log_order > math.log(3000):
        return
    images = {
        torch.cat([t.flatten() for t in sym.act(g, state).values()]).numpy().tobytes() for g in every_element(sym)
    }
    assert sym.log_order == pytest.approx(math.log(len(images)))


@settings(max_examples=30)
@given(specs(), st.integers(0, 10**6))
def test_random_is_uniform_enough_and_repeatable(spec: dict[str, Any], seed: int) -> None:
    sym = make(spec)
    g, h = (sym.random(torch.Generator().manual_seed(seed), scalings=True) for _ in range(2))
    for name in g.permutations:
        assert torch.equal(g[name], h[name])
        assert torch.equal(g[name].sort(-1).values, torch.arange(g[name].shape[-1]).expand_as(g[name]))
    for name, factors in g.scales.items():
        kind = spec["scalings"][name]["kind"]
        assert bool((factors.abs() == 1).all()) if kind == "sign" else bool((factors > 0).all())


def test_out_of_place_and_any_dtype() -> None:
    spec = {
        "groups": {"h": 3, "g": 2, "i": {"size": 2, "over": ["g"]}},
        "tensors": {"w": ["h", ["g", "i"]], "n": ["h"], "fixed": [4]},
        "scalings": {"s": {"units": "h", "kind": "scaling", "members": [["w", 0, 1.0]]}},
    }
    sym = make(spec)
    (g,) = draw_elements(sym, 1)
    plain = Element(g.sets, g.permutations, {}, g.units)
    for dtype in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.bool,
        torch.complex64,
    ):
        w = torch.arange(12).reshape(3, 4).to(dtype)
        state = {"w": w, "n": torch.arange(3).to(dtype), "fixed": torch.arange(4).to(dtype), "other": torch.ones(2)}
        before = {name: tensor.clone() for name, tensor in state.items()}
        image = sym.act(plain, state)
        assert {n: t.dtype for n, t in image.items()} == {n: t.dtype for n, t in state.items()}
        expected = reference(spec, plain, {n: t for n, t in before.items() if n in spec["tensors"]})
        assert all(torch.equal(image[n], expected[n]) for n in expected)
        assert torch.equal(image["other"], state["other"])
        if dtype.is_floating_point:
            scaled = sym.act(g, state)
            assert scaled["w"].dtype == dtype
        assert all(torch.equal(state[n], before[n]) for n in state)


def test_result_shares_no_memory() -> None:
    """Writing into the image must not change the argument."""
    sym = make({"groups": {"h": 3}, "tensors": {"w": ["h", 2], "fixed": [2]}})
    state = {"w": torch.randn(3, 2), "fixed": torch.zeros(2), "other": torch.zeros(2)}
    for g in (sym.random(torch.Generator().manual_seed(1)), sym.identity()):
        for tensor in sym.act(g, state).values():
            tensor.add_(1)
    assert not state["fixed"].any()
    assert not state["other"].any()


def test_gradients_pass_through_the_action() -> None:
    sym = make(
        {
            "groups": {"h": 3},
            "tensors": {"w": ["h", 2]},
            "scalings": {"s": {"units": "h", "kind": "scaling", "members": [["w", 0, -1.0]]}},
        }
    )
    (g,) = draw_elements(sym, 1)
    w = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: sym.act(g, {"w": t})["w"], (w,))


def test_tied_tensors_may_stay_tied() -> None:
    sym = make({"groups": {"h": 3}, "tensors": {"w": ["h"], "v": ["h"]}})
    shared = torch.randn(3)
    image = sym.act(sym.random(torch.Generator().manual_seed(2)), {"w": shared, "v": shared})
    assert torch.equal(image["w"], image["v"])


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2), ()])
def test_wrong_shape(shape: tuple[int, ...]) -> None:
    sym = make({"groups": {"h": 3}, "tensors": {"weird.name": ["h", 2]}})
    with pytest.raises(SymmetryError, match=r"weird\.name"):
        sym.act(sym.random(), {"weird.name": torch.zeros(shape)})


def test_population_and_batch_disagree() -> None:
    sym = make({"groups": {"h": 3}, "tensors": {"w": ["h", 2], "fixed": [2]}})
    with pytest.raises(SymmetryError):
        sym.act(sym.random(batch=4), {"w": torch.zeros(3, 3, 2), "fixed": torch.zeros(3, 2)})


def test_unknown_group_of_an_element() -> None:
    sym = make({"groups": {"h": 3}, "tensors": {"w": ["h"]}})
    with pytest.raises(SymmetryError, match="nobody"):
        sym.identity()["nobody"]


GOOD = {"groups": {"h": 2, "i": {"size": 3, "over": ["h"]}}, "tensors": {"w": [["h", "i"], 4]}}
BAD: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "JSON"),
    "a list": ([], "groups"),
    "no tensors": ({"groups": {}}, "tensors"),
    "groups as a list": ({**GOOD, "groups": ["h"]}, "groups"),
    "tensors as a list": ({**GOOD, "tensors": ["w"]}, "tensors"),
    "size zero": ({**GOOD, "groups": {**GOOD["groups"], "h": 0}}, "h"),
    "size as text": ({**GOOD, "groups": {**GOOD["groups"], "h": "two"}}, "h"),
    "size true": ({**GOOD, "groups": {"h": True}, "tensors": {"w": ["h"]}}, "h"),
    "size a fraction": ({**GOOD, "groups": {"h": 2.5}, "tensors": {"w": ["h"]}}, "h"),
    "undeclared group": ({**GOOD, "tensors": {"w": ["nobody"]}}, "nobody"),
    "undeclared base": ({"groups": {"i": {"size": 2, "over": ["nobody"]}}, "tensors": {}}, "nobody"),
    "base of itself": ({"groups": {"i": {"size": 2, "over": ["i"]}}, "tensors": {}}, "i"),
    "bases in a circle": (
        {"groups": {"i": {"size": 2, "over": ["j"]}, "j": {"size": 2, "over": ["i"]}}, "tensors": {}},
        "[ij]",
    ),
    "over as text": ({"groups": {"h": 2, "i": {"size": 2, "over": "h"}}, "tensors": {"w": [["h", "i"]]}}, "over"),
    "over twice": ({"groups": {"h": 2, "i": {"size": 2, "over": ["h", "h"]}}, "tensors": {"w": [["h", "i"]]}}, "h"),
    "not over the base's base": (
        {
            "groups": {"h": 2, "i": {"size": 2, "over": ["h"]}, "j": {"size": 2, "over": ["i"]}},
            "tensors": {"w": [["h", "i", "j"]]},
        },
        "j",
    ),
    "base not on the tensor": ({**GOOD, "tensors": {"w": ["i", 4]}}, "w.*'h'"),
    "base in another block": ({**GOOD, "tensors": {"w": [{"concat": ["h", "i"]}]}}, "w.*'h'"),
    "base in another lane": (
        {"groups": {"h": 2, "i": {"size": 2, "over": ["h"]}}, "tensors": {"w": [{"interleave": ["h", "i"]}]}},
        "w.*'h'",
    ),
    "base twice on the axis": ({**GOOD, "tensors": {"w": [["h", "h", "i"]]}}, "w.*'h'"),
    "base on two other axes": ({**GOOD, "tensors": {"w": ["h", "h", "i"]}}, "w.*'h'"),
    "base in a block of another axis": ({**GOOD, "tensors": {"w": ["i", {"concat": ["h", 1]}]}}, "w.*'h'"),
    "axes as text": ({**GOOD, "tensors": {"w": "hi"}}, "w"),
    "axes as a number": ({**GOOD, "tensors": {"w": 3}}, "w"),
    "negative size of an axis": ({**GOOD, "tensors": {"w": [-1]}}, "w"),
    "empty product": ({**GOOD, "tensors": {"w": [[]]}}, "w"),
    "unknown kind of axis": ({**GOOD, "tensors": {"w": [{"sum": ["h"]}]}}, "w"),
    "lanes of different length": ({**GOOD, "tensors": {"w": [{"interleave": ["h", 3]}]}}, "w"),
    "axis null": ({**GOOD, "tensors": {"w": [None]}}, "w"),
    "scaling of an undeclared group": (
        {**GOOD, "scalings": {"s": {"units": "nobody", "members": [["w", 0, 1.0]]}}},
        "nobody",
    ),
    "scaling without members": ({**GOOD, "scalings": {"s": {"units": "h"}}}, "s"),
    "scaling on an unknown tensor": ({**GOOD, "scalings": {"s": {"units": "h", "members": [["x", 0, 1.0]]}}}, "x"),
    "scaling on a missing axis": ({**GOOD, "scalings": {"s": {"units": "h", "members": [["w", 5, 1.0]]}}}, "s"),
    "scaling on an axis without the units": (
        {**GOOD, "scalings": {"s": {"units": "h", "members": [["w", 1, 1.0]]}}},
        "s",
    ),
    "scaling of a missing occurrence": (
        {**GOOD, "scalings": {"s": {"units": "h", "members": [["w", 0, 1.0, 0.0, 3]]}}},
        "s",
    ),
    "scaling with a power as text": ({**GOOD, "scalings": {"s": {"units": "h", "members": [["w", 0, "1"]]}}}, "s"),
    "scaling of an unknown kind": (
        {**GOOD, "scalings": {"s": {"units": "h", "kind": "turn", "members": [["w", 0, 1.0]]}}},
        "s",
    ),
    "scalings as a list": ({**GOOD, "scalings": ["s"]}, "scalings"),
    "fixed as a number": ({**GOOD, "fixed": [3]}, "fixed"),
    "buffers as a name": ({**GOOD, "buffers": "w"}, "buffers"),
    "buffers as numbers": ({**GOOD, "buffers": [3]}, "buffers"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_in_a_hand_written_spec(name: str) -> None:
    """Each is refused with a sentence that names what is wrong."""
    raw, word = BAD[name]
    text = raw if isinstance(raw, str) else json.dumps(raw)
    with pytest.raises(SymmetryError, match=word):
        Symmetry.from_json(text)


def test_the_good_spec_is_good() -> None:
    sym = make(GOOD)
    assert [(g.name, g.size, g.copies, g.over, g.members) for g in sym.groups] == [
        ("h", 2, 1, (), (("w", 0),)),
        ("i", 3, 2, ("h",), (("w", 0),)),
    ]
    assert sym.log_order == pytest.approx(math.log(2 * 6 * 6))
