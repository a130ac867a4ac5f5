"""A small config of any transformers family, by the names and relations of its attributes."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH, INNER, EXPERT_INNER, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 48, 4, 2, 16
VOCAB, POSITIONS, FIRST_SPECIAL = 128, 128, 100
LAYER_NAMES = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "layers", "encoder_layers",
    "num_encoder_layers", "num_decoder_layers", "decoder_layers",
)  # fmt: skip

NOT_LAYERS = r"num_feat_extract_layers|max_window_layers|num_kv_shared_layers|num_\w*dense_layers"
LAYERS = r"(\w+_)?(num_)?(\w+_)?layers|n_layers?|num_\w+_blocks|depth|num_blocks|(\w+_)?depth|resampler_depth"
HEADS_NAME = r"(\w+_)?(num_)?(\w+_)?heads|n_heads?"
KV_NAME = r"(\w+_)?(num_)?(key_value|kv|key)_(\w+_)?heads|n_head_kv|num_query_groups"
HEAD_DIM_NAME = (
    r"(\w+_)?head_dim|(\w+_)?head_size|d_kv|kv_channels|dim_head|d_head|(\w+_)?d_head|head_width|mamba_headdim"
)
WIDTH_NAME = (
    r"(\w+_)?hidden_(size|dim)|hidden_size_\w+|d_model|n_embd|embed_dim|emb_dim|dim|embedding_size|d_embed|"
    r"(\w+_)?projection_dim|(\w+_)?proj_dim|(\w+_)?proj_size|lru_width|projection_size|hidden_channels|"
    r"input_embedding_size|output_embedding_size|pooler_output_size|visual_embedding_dim|embed_dimension"
)
INNER_NAME = (
    r"(\w+_)?intermediate_(size|dim)|(\w+_)?ffn_(dim|hidden_size|size)|d_ff|n_inner|(\w+_)?mlp_dim|ffn_dim|"
    r"dim_feedforward|(\w+_)?feed_forward(_size|_dim)?|feedforward_size|d_inner|(\w+_)?feedforward_dim"
)
EXPERTS_NAME = r"(num|n)_(\w+_)?experts|moe_num_experts|num_local_experts"
TOP_K_NAME = r"(\w+_)?(num_)?experts_per_tok(en)?|moe_(top)?k|moe_top_k|top_k|top_k_experts|(\w+_)?moe_topk"
POSITION_NAME = (
    r"(\w+_)?max_position_embeddings|n_positions|max_(source|target|text|speech)_positions|n_ctx|max_seq_len|"
    r"max_position_embedding|max_encoder_position_embeddings|max_decoder_position_embeddings"
)
UNSET = (
    (EXPERTS_NAME, 4), (TOP_K_NAME, 2), (r"head_dim", HEAD_DIM), (r"num_key_value_heads", HEADS),
    (r"vocab_size", VOCAB), (r"prediction_length", 8),
)  # fmt: skip
"""Values for attributes that a family leaves at None but cannot do without."""
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
}
"""By model type: what no general rule finds."""


@dataclass(frozen=True)
class Profile:
    """How much to shrink: ``widths`` also shrinks feature sizes, ``image`` the picture, in patches."""

    name: str
    widths: bool = True
    image: bool = True
    layers: int = 2


PROFILES = (Profile("small"), Profile("shallow", widths=False), Profile("image", widths=False, image=False))


@dataclass
class TokenMap:
    """One map from large special token ids to small ones, shared by a config and its parts."""

    small_ids: dict[int, int] = field(default_factory=dict)

    def small(self, token: int) -> int:
        """An id under VOCAB; equal ids stay equal, different ones stay different."""
        if token < FIRST_SPECIAL:
            return token
        return self.small_ids.setdefault(token, FIRST_SPECIAL + len(self.small_ids) % (VOCAB - FIRST_SPECIAL))


def is_config(value: Any) -> bool:
    """Whether a value is a transformers config."""
    from transformers import PreTrainedConfig

    return isinstance(value, PreTrainedConfig)


def defaults(kind: type) -> dict[str, Any]:
    """What the config class can be given, with defaults (None where there is none)."""
    if dataclasses.is_dataclass(kind):
        out = {}
        for f in dataclasses.fields(kind):
            if not f.init or f.name.startswith("_"):
                continue
            default = f.default
            if default is dataclasses.MISSING and f.default_factory is not dataclasses.MISSING:
                default = f.default_factory()
            out[f.name] = None if default is dataclasses.MISSING else default
        return out
    parameters = inspect.signature(kind).parameters.values()
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {p.name: None if p.default is p.empty else p.default for p in plain}


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name fits the pattern."""
    return re.fullmatch(pattern, name) is not None


def at_most(limit: int) -> Callable[[int], int]:
    """Shrinks to a limit."""
    return lambda value: min(value, limit)


def number(name: str, value: int, values: dict[str, Any], profile: Profile) -> int:
    """The small value of an integer attribute."""
    if value <= 1:
        return value
    if matches(NOT_LAYERS, name):
        return 0 if "shared" in name else min(value, 1) if "dense" in name else value
    if matches(LAYERS, name) and "head" not in name:
        return min(value, profile.layers)
    if matches(EXPERTS_NAME, name) and "shared" not in name:
        return min(value, 4)
    if matches(TOP_K_NAME, name):
        return min(value, 2)
    if matches(r"n_groups?|topk_group|num_expert_groups?|n_limited_groups", name):
        return 1 if "expert" in name or "n_group" in values or "topk_group" in values else value
    if matches(r"first_k_dense_replace|decoder_sparse_step|encoder_sparse_step|moe_layer_freq", name):
        return 1
    if matches(r"(\w+_)?vocab_size(_\w+)?", name):
        return min(value, VOCAB)
    if matches(POSITION_NAME, name):
        return min(value, POSITIONS)
    if matches(r"sliding_window|sliding_window_size|attention_window", name):
        return min(value, 8)
    if matches(r"num_queries|num_denoising|num_detection_tokens|num_query_tokens|num_object_queries", name):
        return min(value, 10)
    if matches(r"num_position_embeddings", name):
        return 64
    if matches(r"num_frames|frames_per_clip", name):
        return min(value, 4)
    if matches(r"mm_tokens_per_image", name):
        return 4
    return width(name, value, values) if profile.widths else value


def width(name: str, value: int, values: dict[str, Any]) -> int:
    """The small value of a feature size or a number of heads."""
    state_space = ("expand" in values and "state_size" in values) or name.startswith("mamba_")
    if isinstance(values.get("num_heads", values.get("num_attention_heads")), list | tuple):
        return value  # stages of growing width: leave the widths alone
    if matches(KV_NAME, name):
        return HEADS if value == values.get("num_attention_heads") else min(value, KV_HEADS)
    if matches(HEADS_NAME, name):
        return min(value, 2 * WIDTH // HEAD_DIM if state_space else HEADS)
    if matches(HEAD_DIM_NAME, name) or matches(r"qk_(nope|rope)_head_dim", name):
        return min(value, 2 * HEAD_DIM if name == "qk_head_dim" else HEAD_DIM)
    if name == "rotary_dim":
        return min(value, HEAD_DIM // 2)
    if matches(r"\w+lora_rank", name):
        return min(value, 32)
    if matches(WIDTH_NAME, name):
        return min(value, WIDTH)
    if name == "mamba_d_ssm":
        return min(value, 2 * WIDTH)
    if matches(INNER_NAME, name):
        return min(value, EXPERT_INNER if "moe" in name or "expert" in name else INNER)
    return value


def layer_count(values: dict[str, Any]) -> tuple[str, int] | None:
    """Name and value of the attribute that counts the layers."""
    for name in LAYER_NAMES:
        if isinstance(values.get(name), int) and values[name] > 0:
            return name, values[name]
    return None


def is_layer_index_list(name: str, value: Any, layers: int) -> bool:
    """Whether an attribute lists layers by number."""
    is_index_name = matches(r"\w*(index|indexes|indices|idxs|layer_ids|hook_ids|extract_layers|attention_layers)", name)
    return (
        is_index_name
        and isinstance(value, list | tuple)
        and len(value) > 0
        and len(value) < layers
        and all(isinstance(v, int) and 0 <= v <= layers for v in value)
    )


def per_layer(values: dict[str, Any], layers: int) -> dict[str, list[Any]]:
    """Attributes with one entry a layer."""
    return {
        name: list(value)
        for name, value in values.items()
        if isinstance(value, list | tuple) and len(value) == layers and layers > 2
    }


def chosen_layers(lists: dict[str, list[Any]], layers: int, want: int) -> list[int]:
    """Layers to keep: one of every kind (at most four), and at least `want`."""
    kinds: dict[str, int] = {}
    for i in range(layers):
        kinds.setdefault(str([value[i] for value in lists.values()]), i)
    keep = sorted(kinds.values())[:4]
    rest = [i for i in range(layers) if i not in keep]
    return sorted(keep + rest[: max(0, want - len(keep))])


def layer_lists(values: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """The number of layers, and all lists that speak about layers, shrunk together."""
    counter = layer_count(values)
    if counter is None:
        return {}
    name, layers = counter
    indices = {k: list(v) for k, v in values.items() if is_layer_index_list(k, v, layers)}
    want = min(layers, max([profile.layers, *(min(8, 2 * len(v)) for v in indices.values() if len(v) > 1)]))
    lists = {k: v for k, v in per_layer(values, layers).items() if k not in indices}
    keep = chosen_layers(lists, layers, want)
    out: dict[str, Any] = {k: [v[i] for i in keep] for k, v in lists.items()}
    for key, value in indices.items():
        out[key] = sorted({i * len(keep) // layers for i in value})
    out[name] = len(keep)
    return out


def picture(values: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """A small image size: four patches a side, or 64 pixels where there is no patch size."""
    out: dict[str, Any] = {}
    for name in ("image_size", "pretrain_image_size", "input_size"):
        size = values.get(name)
        patch = values.get("patch_size")
        if not profile.image or (name == "input_size" and patch is None):
            continue
        side = 4 * patch if isinstance(patch, int) and patch > 4 else 64
        if isinstance(size, int) and size > side:
            out[name] = side
        elif isinstance(size, list | tuple) and len(size) == 2 and min(size) > side:
            out[name] = [side, side] if isinstance(size, list) else (side, side)
    return out


def rope(value: Any, head_dim: int, sections: bool = False) -> Any:
    """Rope parameters with the sections of a multi-axis rope (added where `sections`) scaled to the head."""
    if not isinstance(value, dict):
        return value
    nested = any(isinstance(v, dict) for v in value.values())
    out = {key: rope(v, head_dim, sections) for key, v in value.items()}
    if nested:
        return out
    section = out.get("mrope_section", [2, 3, 3] if sections else None)
    if isinstance(section, list | tuple) and sum(section) > 0:
        half = max(1, int(head_dim * out.get("partial_rotary_factor", 1.0)) // 2)
        small = [s * half // sum(section) for s in section]
        small[0] += half - sum(small)
        out["mrope_section"] = small
    return out


def multi_axis_rope(kind: type) -> bool:
    """Whether the family's modeling code has a rope with sections (its default sections fit large heads)."""
    path = Path(inspect.getfile(kind))
    code = path.with_name(path.name.replace("configuration_", "modeling_"))
    return code.exists() and 'get("mrope_section", [' in code.read_text()


def small(config: Any, profile: Profile, tokens: TokenMap | None = None) -> Any:
    """A new config of the same class with small sizes; parts are shrunk too."""
    tokens = tokens if tokens is not None else TokenMap()
    settings = defaults(type(config))
    values = {k: v for k, v in vars(config).items() if not k.startswith("_")}
    kwargs: dict[str, Any] = {}
    for name, value in values.items():
        if is_config(value):
            kwargs[name] = small(value, profile, tokens)
        elif name not in settings or isinstance(value, bool):
            continue
        elif re.search(r"_token_(id|index)$|_token_ids$", name):
            if isinstance(value, int):
                kwargs[name] = tokens.small(value)
            elif isinstance(value, list | tuple) and all(isinstance(v, int) for v in value):
                kwargs[name] = type(value)(tokens.small(v) for v in value)
        elif settings[name] is None:
            continue  # derived from the others
        elif isinstance(value, int):
            kwargs[name] = number(name, value, values, profile)
        elif name in {"depths", "num_block_repeats"} and isinstance(value, list | tuple):
            kwargs[name] = type(value)(min(v, 2) for v in value)
    for name, value in (layer_lists(values, profile) | picture(values, profile)).items():
        if name in settings:
            old = values.get(name)
            kwargs[name] = tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value
    for name in ("rope_parameters", "rope_scaling"):
        if name in settings and isinstance(values.get(name), dict) and profile.widths:
            kwargs[name] = rope(values[name], kwargs.get("head_dim", HEAD_DIM), multi_axis_rope(type(config)))
    for name, default in settings.items():  # what the parent chose for this part and we did not touch
        value = values.get(name)
        simple = isinstance(value, bool | float) or name in {"hidden_sizes", "out_features"}
        is_choice = isinstance(value, str) or (simple and default is not None)
        if name not in kwargs and is_choice and value != default:
            kwargs[name] = value
        if value is None and name not in kwargs:
            kwargs.update((name, filled) for pattern, filled in UNSET if matches(pattern, name))
    for name, value in (("use_cache", False), ("use_mamba_kernels", False)):
        if name in settings:
            kwargs[name] = value
    kwargs |= EXCEPTIONS.get(getattr(config, "model_type", ""), {})
    return type(config)(**kwargs)
