import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from coset.core import state as S
from coset.core.errors import ModelError, StateError

Maker = Callable[[], dict[str, Tensor]]
FLOATS = [torch.float64, torch.float32, torch.bfloat16]


@st.composite
def makers(draw: st.DrawFn) -> Maker:
    """Random states of one layout: mixed shapes (also scalar and empty) and dtypes, and an integer tensor."""
    shapes = draw(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4))
    dtypes = [draw(st.sampled_from(FLOATS)) for _ in shapes]
    size = draw(st.sampled_from([1e-20, 1.0, 1e15]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def make() -> dict[str, Tensor]:
        pairs = zip(shapes, dtypes, strict=True)
        state = {
            f"w{i}": (size * torch.randn(shape, generator=generator)).to(dtype)
            for i, (shape, dtype) in enumerate(pairs)
        }
        state["steps"] = torch.randint(0, 100, (), generator=generator)
        return state

    return make


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


def flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([x.double().flatten() for n, x in state.items() if n != "steps"])


laws = settings(max_examples=60, deadline=None)


@laws
@given(makers(), st.floats(-2, 3))
def test_lerp_is_exact_at_its_ends_and_right_between(make: Maker, t: float) -> None:
    a, b = make(), make()
    assert equal(S.lerp(a, b, 0.0), a)
    assert equal(S.lerp(a, b, 1.0), {**b, "steps": a["steps"]})
    assert equal(S.lerp(a, a, t), a)
    for result in (S.lerp(a, b, t), S.lerp(a, b, torch.tensor(t, dtype=torch.float64))):
        assert torch.equal(result["steps"], a["steps"])
        for name in result.keys() - {"steps"}:
            x, y = a[name].double(), b[name].double()
            error = (result[name].double() - ((1 - t) * x + t * y)).abs()
            assert (error <= 8 * torch.finfo(a[name].dtype).eps * (x.abs() + y.abs())).all()


@laws
@given(makers(), st.floats(-3, 3))
def test_inner_is_symmetric_bilinear_and_in_float64(make: Maker, factor: float) -> None:
    a, b, c = make(), make(), make()
    assert S.inner(a, b).dtype == torch.float64
    assert S.inner(a, b) == S.inner(b, a)
    torch.testing.assert_close(S.inner(a, b), flat(a) @ flat(b), rtol=1e-10, atol=1e-10 * float(bound(a, b)))
    wide_a, wide_b = S.to(a, dtype=torch.float64), S.to(b, dtype=torch.float64)
    left = S.inner(S.add(S.scale(wide_a, factor), wide_b), c)
    right = factor * S.inner(a, c) + S.inner(b, c)
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9 * float(4 * bound(a, c) + bound(b, c)))


def bound(a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
    return S.norm(a) * S.norm(b)


@laws
@given(makers())
def test_norm_is_that_of_the_inner_product(make: Maker) -> None:
    a = make()
    torch.testing.assert_close(S.norm(a), S.inner(a, a).sqrt(), rtol=1e-12, atol=0)
    assert S.norm(S.sub(a, a)) == 0


@laws
@given(makers(), st.integers(1, 4))
def test_unstack_inverts_stack(make: Maker, n: int) -> None:
    states = [make() for _ in range(n)]
    population = S.stack(states)
    assert S.size(population) == n
    assert all(population[name].shape == (n, *x.shape) for name, x in states[0].items())
    back = S.unstack(population)
    assert len(back) == n and all(equal(x, y) for x, y in zip(back, states, strict=True))
    assert equal(S.stack(back), population)


@laws
@given(makers(), st.lists(st.floats(0.1, 5), min_size=1, max_size=5))
def test_mean_is_the_weighted_sum(make: Maker, weights: list[float]) -> None:
    states = [make() for _ in weights]
    for w, given_weights in [(weights, weights), ([1.0] * len(weights), None)]:
        result = S.mean(S.stack(states), given_weights)
        for name, x in states[0].items():
            assert result[name].dtype == x.dtype and result[name].shape == x.shape
            if name == "steps":
                assert torch.equal(result[name], x)
                continue
            terms = [wi * s[name].double() for wi, s in zip(w, states, strict=True)]
            manual = torch.stack(terms).sum(0) / sum(w)
            # The sum is in float64, so rounding to the stored dtype is the only error.
            unit = torch.finfo(x.dtype).eps
            scale = max(float(s[name].double().norm()) for s in states)
            assert torch.allclose(result[name].double(), manual, rtol=unit, atol=1e-13 * scale)


@laws
@given(makers())
def test_add_sub_scale_are_out_of_place_and_keep_dtypes(make: Maker) -> None:
    a, b = make(), make()
    before = {n: x.clone() for n, x in a.items()}
    results = [S.add(a, b), S.sub(a, b), S.scale(a, 2), S.lerp(a, b, 0.5), S.stack([a, b])]
    assert equal(results[0], {n: (x + b[n] if n != "steps" else x) for n, x in a.items()})
    assert equal(results[1], {n: (x - b[n] if n != "steps" else x) for n, x in a.items()})
    assert equal(results[2], {n: (x * 2 if n != "steps" else x) for n, x in a.items()})
    for result in results:
        for x in result.values():
            x.zero_()
    assert equal(a, before)


def test_inner_accumulates_where_float32_would_lose_the_small_terms() -> None:
    x = torch.full((1001,), 2.0**-6)
    x[0] = 2.0**13
    assert float(S.inner({"w": x}, {"w": x})) == 2.0**26 + 1000 * 2.0**-12
    assert float(x @ x) != 2.0**26 + 1000 * 2.0**-12


def test_complex_coordinates_count_by_real_and_imaginary_part() -> None:
    a, b = {"w": torch.tensor([1 + 2j])}, {"w": torch.tensor([3 - 1j])}
    assert float(S.inner(a, b)) == 1.0
    assert float(S.norm(a)) == pytest.approx(math.sqrt(5))
    assert S.lerp(a, b, 0.5)["w"].item() == 2 + 0.5j
    assert S.mean(S.stack([a, b]))["w"].item() == 2 + 0.5j


def test_arithmetic_is_differentiable_also_at_zero() -> None:
    w = torch.zeros(3, requires_grad=True)
    S.norm({"w": w}).backward()
    assert w.grad is not None and torch.equal(w.grad, torch.zeros(3))
    t = torch.tensor(0.25, requires_grad=True)
    a, b = {"w": torch.ones(2)}, {"w": torch.full((2,), 4.0)}
    S.lerp(a, b, t)["w"].sum().backward()
    assert t.grad == 6
    weights = torch.tensor([1.0, 3.0], requires_grad=True)
    S.mean(S.stack([a, b]), weights)["w"].sum().backward()
    # d/dw of 2 (w0 + 4 w1) / (w0 + w1)
    torch.testing.assert_close(weights.grad, torch.tensor([-18 / 16, 6 / 16]))


def test_eight_bit_floats() -> None:
    a = {"w": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)}
    assert float(S.inner(a, a)) == 5
    assert S.lerp(a, S.scale(a, 3), 0.5)["w"].float().tolist() == [2, 4]
    assert S.check(a) == a


def test_mismatches_are_refused_by_name() -> None:
    a = {"w": torch.ones(2), "b": torch.ones(1)}
    with pytest.raises(StateError, match=r"^Missing 'b', and unknown 'c' in the second state\.$"):
        S.add(a, {"w": torch.ones(2), "c": torch.ones(1)})
    with pytest.raises(StateError, match=r"'w' in the second state has shape \(1,\) where \(2,\)"):
        S.inner(a, {"w": torch.ones(1), "b": torch.ones(1)})
    with pytest.raises(StateError, match=r"'b' in the second state is torch.int64 where torch.float32"):
        S.sub(a, {"w": torch.ones(2), "b": torch.ones(1, dtype=torch.int64)})
    with pytest.raises(StateError, match="Unknown 'c'"):
        S.stack([a, {**a, "c": torch.ones(1)}])
    with pytest.raises(StateError, match="at least one state"):
        S.stack([])
    with pytest.raises(StateError, match="2 in 'w', 1 in 'b'"):
        S.size(a)
    with pytest.raises(StateError, match="no tensor at all"):
        S.size({})
    with pytest.raises(StateError, match="'w' has no dimensions"):
        S.unstack({"w": torch.tensor(1.0)})
    population = {"w": torch.ones(2, 3)}
    with pytest.raises(StateError, match=r"needs 2 weights, not weights of shape \(3,\)"):
        S.mean(population, [1, 1, 1])
    for weights in ([1.0, -1.0], [math.nan, 1.0], [math.inf, 1.0]):
        with pytest.raises(StateError, match="positive, finite sum"):
            S.mean(population, weights)


def test_to_changes_floating_tensors_only() -> None:
    a = {"w": torch.ones(2), "n": torch.tensor(3), "m": torch.tensor(True)}
    b = S.to(a, dtype=torch.float16, device="cpu")
    assert [x.dtype for x in b.values()] == [torch.float16, torch.int64, torch.bool]
    assert all(x.device.type == "meta" for x in S.to(a, device="meta").values())


def test_allclose() -> None:
    a = {"w": torch.ones(2), "n": torch.tensor(3)}
    assert S.allclose(a, {"n": torch.tensor(3), "w": torch.ones(2, dtype=torch.float64) + 1e-6})
    assert not S.allclose(a, {**a, "w": torch.ones(2) + 1e-4})
    assert S.allclose(a, {**a, "w": torch.ones(2) + 1e-4}, rtol=1e-3)
    assert not S.allclose(a, {**a, "n": torch.tensor(4)})
    assert not S.allclose(a, {"w": a["w"]})
    assert not S.allclose(a, {**a, "w": torch.ones(2, dtype=torch.complex64)})
    assert not S.allclose(a, {**a, "w": torch.ones(2, dtype=torch.int64)})
    assert not S.allclose(a, {**a, "w": torch.ones(2, 1)})
    assert not S.allclose(a, {**a, "w": torch.tensor([1.0, math.nan])})


class Tied(nn.Module):
    """A weight under two names, BatchNorm, and a non-persistent buffer that the forward pass counts in."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def get_extra_state(self) -> str:
        return "not a tensor"

    def set_extra_state(self, state: str) -> None:
        pass

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        self.calls += 1
        out: Tensor = gain * self.b(self.norm(self.a(x)))
        return out


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {n: x.detach().clone() for n, x in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]}


def other_state(model: nn.Module) -> dict[str, Tensor]:
    """Another state of the model, whose tied names hold equal tensors that are different objects."""
    return S.scale(S.of(model), 1.5)


def test_of_keeps_tied_names_and_drops_what_is_no_state() -> None:
    model = Tied()
    state = S.of(model)
    assert set(state) == {n for n in model.state_dict() if n != "_extra_state"}
    assert "calls" not in state and "norm.num_batches_tracked" in state
    assert state["a.weight"] is state["b.weight"]
    assert not any(x.requires_grad or isinstance(x, nn.Parameter) for x in state.values())
    before = snapshot(model)
    for x in state.values():
        x.zero_()
    assert equal(snapshot(model), before)


@pytest.mark.parametrize("training", [True, False])
def test_call_computes_at_the_state_and_changes_nothing(training: bool) -> None:
    torch.manual_seed(0)
    model = Tied().train(training)
    state = other_state(model)
    assert state["a.weight"] is not state["b.weight"]
    reference = Tied().train(training)
    reference.load_state_dict({**state, "_extra_state": ""})
    x = torch.randn(5, 3)
    before_model, before_state, objects = (
        snapshot(model),
        {n: t.clone() for n, t in state.items()},
        dict(state),
    )

    out = S.call(model, state, (x,), {"gain": 2.0})

    assert equal(snapshot(model), before_model)
    assert equal(state, before_state) and all(state[n] is t for n, t in objects.items())
    torch.testing.assert_close(out, reference(x, gain=2.0))
    torch.testing.assert_close(S.call(model, state, x, {"gain": 2.0}), out)
    assert not torch.allclose(out, model(x, gain=2.0))


def test_call_needs_one_name_of_each_tied_set_and_equal_values() -> None:
    model, x = Tied().eval(), torch.randn(2, 3)
    state = other_state(model)
    out = S.call(model, state, x)
    for name in ("a.weight", "b.weight"):
        one = {n: t for n, t in state.items() if n != name}
        torch.testing.assert_close(S.call(model, one, x), out)
    assert set(state) - set(S.untie(model, state)) == {"b.weight"}
    with pytest.raises(StateError, match=r"^'a.weight' and 'b.weight' in the state for Tied .* differ"):
        S.call(model, {**state, "b.weight": state["b.weight"] + 1}, x)


def test_a_buffer_tied_to_a_non_persistent_name() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            gain = torch.ones(())
            self.register_buffer("hidden", gain, persistent=False)
            self.register_buffer("gain", gain)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x * self.hidden * self.gain
            return out

    assert set(S.of(Scaled())) == {"gain"}
    assert float(S.call(Scaled(), {"gain": torch.tensor(3.0)}, torch.tensor(2.0))) == 18


def test_call_refuses_a_state_of_another_model() -> None:
    model, x = Tied(), torch.randn(2, 3)
    state = S.of(model)
    with pytest.raises(StateError, match=r"^Missing 'a.bias' in the state for Tied\.$"):
        S.call(model, {n: t for n, t in state.items() if n != "a.bias"}, x)
    for name in ("extra", "calls"):
        with pytest.raises(StateError, match=f"^Unknown '{name}'"):
            S.call(model, {**state, name: torch.ones(1)}, x)
    with pytest.raises(StateError, match=r"'a.bias' .* has shape \(1,\) where \(3,\)"):
        S.call(model, {**state, "a.bias": torch.ones(1)}, x)


def test_call_restores_the_model_when_it_raises() -> None:
    model = Tied()
    before = snapshot(model)
    with pytest.raises(ModelError, match=r"Tied cannot be called on inputs of shape \(2, 7\)"):
        S.call(model, other_state(model), torch.randn(2, 7))
    assert equal(snapshot(model), before) and model.a.weight is model.b.weight


def test_gradient_of_tied_names_is_the_whole_gradient() -> None:
    model, x = Tied().eval(), torch.randn(4, 3)
    model(x).sum().backward()
    state = S.of(model)
    state["a.weight"].requires_grad_()
    S.call(model, state, x).sum().backward()
    torch.testing.assert_close(state["a.weight"].grad, model.a.weight.grad)


def test_call_maps_over_an_untied_population() -> None:
    model, x = Tied().eval(), torch.randn(4, 3)
    states = [S.of(model), other_state(model)]
    population = S.stack(states)
    out = torch.vmap(lambda s: S.call(model, s, x))(S.untie(model, population))
    torch.testing.assert_close(out, torch.stack([S.call(model, s, x) for s in states]))
    with pytest.raises(StateError, match="tied but cannot be compared here"):
        torch.vmap(lambda s: S.call(model, s, x))(population)


def test_check_names_what_is_wrong() -> None:
    like = S.of(Tied())
    good = other_state(Tied())
    checked = S.check(dict(reversed(good.items())), like)
    assert list(checked) == list(like) and all(checked[n] is good[n] for n in like)

    def refused(state: dict[str, Tensor], **kwargs: str) -> str:
        with pytest.raises(StateError) as caught:
            S.check(state, like, where="a.pt", **kwargs)  # type: ignore[arg-type]
        text = str(caught.value)
        assert "a.pt" in text and text.endswith(".") and "\n" not in text
        return text

    lacking = {n: x for n, x in good.items() if n != "a.bias"}
    assert refused(lacking) == "Missing 'a.bias' in a.pt."
    assert refused(lacking, unknown="ignore") == "Missing 'a.bias' in a.pt."
    assert refused({**good, "x": torch.ones(1)}) == "Unknown 'x' in a.pt."
    assert list(S.check({**good, "x": torch.ones(1)}, like, unknown="ignore")) == list(like)
    assert "and 5 more in a.pt" in refused({f"module.{n}": x for n, x in good.items()})
    assert "'a.bias' in a.pt has shape (2,) where (3,)" in refused({**good, "a.bias": torch.ones(2)})
    assert "int64" in refused({**good, "a.bias": torch.ones(3, dtype=torch.int64)})
    bad = torch.tensor([math.nan, 0, -math.inf])
    assert refused({**good, "a.bias": bad}) == "Tensor 'a.bias' in a.pt has 2 NaN or infinite of 3 values."
    assert "float and not a tensor" in refused({**good, "a.bias": 1.0})  # type: ignore[dict-item]
    assert "are tied in the model but differ" in refused({**good, "b.weight": torch.zeros(3, 3)})


def test_check_without_a_pattern_checks_values_only() -> None:
    state = {"w": torch.ones(2), "n": torch.tensor(1)}
    assert S.check(state) == state
    with pytest.raises(StateError, match="'w' in the state has 1 NaN or infinite of 2"):
        S.check({"w": torch.tensor([1, math.inf])})


@pytest.mark.parametrize("absent", ["a.weight", "b.weight"])
def test_check_fills_in_an_absent_tied_name(absent: str) -> None:
    like = S.of(Tied())
    state = {n: x for n, x in other_state(Tied()).items() if n != absent}
    checked = S.check(state, like)
    assert list(checked) == list(like) and checked["a.weight"] is checked["b.weight"]
