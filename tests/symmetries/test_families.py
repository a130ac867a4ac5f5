"""Every family of nets: the right groups are found, the function is preserved, what is fixed cannot move.

The nets and their groups, worked out by hand, are in `nets`. What is not met yet is listed in BUGS by test and net.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from nets import FAMILIES
from oracle import (
    check_function,
    expect,
    floats,
    infer,
    loose_fixed_axes,
    loose_members,
    offsets,
    randomise,
    rank,
    scaling_directions,
    scaling_equations,
    signature,
)
from torch import Tensor, nn

from coset import Symmetry, SymmetryError

# The nets that the slower checks run on by default.
# Nets whose output jumps or is clipped in places that derivatives miss; nets too big for a dense null space; nets
# where two positions of a fixed axis hold the same numbers, so that their order happens not to matter.
JUMPS = {"vector_quantised", "mobilenet_v2"}
BIG = {"resnet_bn", "resnet_frn", "resnet_ln", "resnet_none", "resnet_gn", "vit_zoo", "gpt_rope_gqa_swiglu"}
QUICK = {
    "mlp",
    "resnet_bn",
    "mobilenet_v3",
    "unet_straddling",
    "gpt_tied",
    "t5",
    "grouped_conv",
    "depthwise_multiplier",
    "shufflenet_one",
    "attention_3hd_unbind",
    "attention_qk_norm",
    "attention_talking_heads",
    "mha",
    "llama_half_gqa",
    "llama_no_rope",
    "swin",
    "mamba",
    "lstm",
    "moe_dense_einsum",
    "weight_norm",
    "spectral_norm",
    "perceiver",
    "capsules",
}
# The nets of odd ops that run by default.
ODD = {
    "argmax_places", "bag_of_maxima", "bilinear", "cholesky_factors", "complex_matrix", "count_of_units",
    "cross_product",
    "cummax_tokens", "determinant", "diagonal_by_einsum", "diagonal_matrix", "distances_to_centres",
    "fourier_by_numbers", "fourier_neural_operator", "fourier_over_tokens", "inverse_alone", "kalman_filter",
    "matrix_exponential", "one_over_relu", "pooled_places", "pseudo_inverse", "registers_beside_the_first",
    "singular_values", "solve_vector", "sorted_inside_heads", "stacked_places", "trace_of_units", "unpooled_channels",
    "values_inside_heads", "buffer_as_weight", "cast_to_int", "concat_relu", "concat_with_itself", "cumsum_units",
    "deep_set", "embedding_bag", "fft_over_units", "fill_by_parameter", "flipped_units", "glu", "gram_tokens",
    "gram_units", "hardtanh_uneven", "index_add_rows", "mask_by_mean", "masked_assign", "maxout", "median_places",
    "outer_product", "overwrite_scaled", "overwrite_zero", "permuted_residual", "repeat_then_slice", "rezero",
    "shared_twice", "softmax_units", "sort_units", "square", "stacked_by_layer", "std_of_units", "tensordot",
    "tied_autoencoder",
}  # fmt: skip
# Near copies of other nets.
LATE = {
    "attention_einsum",
    "attention_head_weights",
    "attention_learned_bias",
    "attention_fused_matmul",
    "channel_shuffle_module",
    "gru_cell",
    "rnn_cell",
    "llama_half_einsum",
    "llama_half_expand",
    "mha_bias_kv",
    "moe_dense_bmm",
    "moe_top_scatter",
    "resnet_frn",
    "resnext",
    "rnn_tanh",
    "vit_encoder_post_norm",
    "weight_norm_conv_old",
    "resnet_none",
    "resnet_ln",
    "attention_split_sizes",
    "attention_3hd_select",
    "attention_h3d_slices",
    "attention_einops",
    "attention_separate_matmul",
    "mha_weights",
    "mha_zero_attn",
    "gru_deep_both",
    "spectral_norm_conv",
    "moe_loop_top",
    "llama_half_interleave",
    "efficientnet",
}
TWINS = {"cummax_units", "flipped_units", "overwrite_column", "index_add_rows", "unfold_units", "repeat_units"}
STACKED = "slices of a stacked parameter are tied together"
PAIRS = "heads and pairs have a factor each instead of one for each pair of each head"
BUGS: dict[tuple[str, str], str] = {
    **{("groups", name): STACKED for name in ("attention_stacked_einsum", "attention_stacked_select")},
    **{("groups", name): STACKED for name in ("moe_loop_stacked", "stacked_by_layer")},
    ("scalings", "grouped_convs_at_odds"): "units that two groupings fix lose their factors",
    **{("scalings", name): STACKED for name in ("attention_stacked_einsum", "attention_stacked_select")},
    ("scalings", "llama_complex"): PAIRS,
}


@functools.cache
def inferred(name: str) -> tuple[nn.Module, tuple[Any, ...], Symmetry] | SymmetryError:
    torch.manual_seed(0)
    try:
        return infer(*FAMILIES[name].make())
    except SymmetryError as error:
        return error


def get(name: str) -> tuple[nn.Module, tuple[Any, ...], Symmetry]:
    result = inferred(name)
    if isinstance(result, SymmetryError):
        raise result
    return result


def cases(test: str, *, only: Any = lambda family: True, quick: set[str] | None = None) -> list[Any]:
    out = []
    for name, family in FAMILIES.items():
        if not only(family):
            continue
        rare = name in LATE or (family.odd and name not in ODD)
        late = rare if quick is None else name not in quick
        marks = [pytest.mark.slow] if family.slow or late else []
        if (test, name) in BUGS:
            marks.append(pytest.mark.xfail(strict=True, reason=BUGS[test, name]))
        out.append(pytest.param(name, marks=marks))
    return out


def other_inputs(args: tuple[Any, ...], count: int = 3) -> list[tuple[Any, ...]]:
    """The given inputs and some more; tokens are drawn again from those given."""
    out = [args]
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)

        def another(x: Any, generator: torch.Generator = generator) -> Any:
            if not isinstance(x, Tensor):
                return x
            if x.is_floating_point():
                return torch.randn(x.shape, generator=generator, dtype=x.dtype)
            return torch.randint(int(x.max()) + 1, x.shape, generator=generator)

        out.append(tuple(another(x) for x in args))
    return out


@pytest.mark.parametrize("name", cases("verified"))
def test_verified(name: str) -> None:
    model, args, sym = get(name)
    verification = sym.verification
    assert verification is not None
    assert verification.deviation <= 1e-5
    assert verification.conclusive or not sym.groups
    check_function(model, args, sym)
    again = Symmetry.from_json(sym.to_json())
    check_function(model, args, again, trials=2)
    assert signature(again) == signature(sym)


@pytest.mark.parametrize("name", cases("groups", only=lambda f: f.groups is not None or f.log_order is not None))
def test_groups(name: str) -> None:
    family = FAMILIES[name]
    _, _, sym = get(name)
    if family.groups is not None:
        assert signature(sym) == expect(family.groups)
    if family.log_order is not None:
        assert sym.log_order == pytest.approx(family.log_order)


@pytest.mark.parametrize("name", cases("controls", quick=QUICK, only=lambda f: f.name not in TWINS))
def test_fixed_axes_cannot_move_and_members_matter(name: str) -> None:
    model, args, sym = get(name)
    inputs = other_inputs(args)
    assert loose_fixed_axes(model, inputs, sym) == []
    assert loose_members(model, inputs, sym) == []


@pytest.mark.parametrize(
    "name", cases("scalings", quick=QUICK, only=lambda f: not (f.odd or f.slow or f.name in JUMPS | BIG))
)
def test_scalings_are_right_and_complete(name: str) -> None:
    """Against the common null space of dF/dw diag(w): all exact scalings, each once, and nothing else."""
    model, args, sym = get(name)
    inputs = other_inputs(args, 400)
    equations = scaling_equations(lambda k: randomise(model, k + 1), lambda k: inputs[k + 1], offsets(sym))
    directions = scaling_directions(model, sym)
    randomise(model)
    if len(directions):
        assert float((equations @ directions.T).abs().max()) < 1e-10
    live = equations.abs().amax(0) > 1e-13
    assert rank(directions[:, live]) == int(live.sum()) - rank(equations[:, live])
    assert rank(directions) == len(directions)


def test_heads_of_a_block() -> None:
    """Four heads: one group of heads, and in each head its own order of queries and keys, and of values."""
    _, _, sym = get("vit_encoder_layer")
    by_members = {frozenset(t for t, _ in group.members): group for group in sym.groups}
    prefix = "layer.self_attn."
    fused = {prefix + "in_proj_weight", prefix + "in_proj_bias"}
    heads = by_members[frozenset({*fused, prefix + "out_proj.weight"})]
    both = [group for group in sym.groups if group.over]
    assert {(group.size, group.copies, len(group.over)) for group in both} == {(2, 4, 1)}
    assert len(both) == 2
    names = [{t for t, _ in group.members} for group in both]
    assert fused in names
    assert {*fused, prefix + "out_proj.weight"} in names
    assert heads is not None
    assert len({group.over for group in both}) == 1
    (base,) = both[0].over
    assert sym.sets[base].size == 4
    assert sym.sets[base].movable


def test_floats_are_all_there() -> None:
    model, _, sym = get("vit_zoo")
    assert set(floats(model)) <= set(sym.axes)
