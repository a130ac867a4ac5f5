"""Synthetic inputs for a transformers model, by the names in its forward signature."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.zoo.small_config import FIRST_SPECIAL, is_config

BATCH, LENGTH, FIRST_PLAIN = 2, 10, 10
MODALITIES = (
    "input_ids", "pixel_values", "input_features", "input_values", "bbox", "past_values", "future_values",
    "future_time_features", "decoder_input_ids", "inputs", "hidden_states", "grid_thw", "image_grid_thw",
    "spatial_shapes", "image_sizes", "image", "states", "actions", "rewards", "returns_to_go", "timesteps",
    "flattened_patches", "pixel_values_videos", "visual_feats", "visual_pos", "visual_embeds",
)  # fmt: skip
SAMPLES = 4000
IDS = {"input_ids", "decoder_input_ids", "inputs", "qformer_input_ids"}
OMIT = object()
"""An input that is first left out."""


@dataclass
class CallInputs:
    """Data the model reads (arguments of the traced call) and constants that only shape the call."""

    label: str
    data: dict[str, Tensor]
    constants: dict[str, Any]


def parts(config: Any) -> Iterator[Any]:
    """A config and all configs inside it, outermost first."""
    yield config
    for value in vars(config).values():
        if is_config(value):
            yield from parts(value)


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first attribute of that name in the config or its parts that is set."""
    for name in names:
        for part in parts(config):
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def side(size: Any, default: int = 64) -> int:
    """One side of a picture, however the config writes it."""
    if isinstance(size, dict):
        size = next(iter(size.values()), default)
    while isinstance(size, list | tuple) and size:
        size = size[-1]
    return int(size) if isinstance(size, int) and size > 1 else default


def vision_part(config: Any) -> Any:
    """The config that describes the picture."""
    for part in parts(config):
        if getattr(part, "image_size", None) is not None:
            return part
    for part in parts(config):
        if getattr(part, "patch_size", None) is not None:
            return part
    return config


class InputMaker:
    """Draws inputs by name; each name has a few shapes, the likeliest first."""

    def __init__(self, config: Any, signature: set[str], seed: int = 0) -> None:
        self.config = config
        self.signature = signature
        self.generator = torch.Generator().manual_seed(seed)
        vision = vision_part(config)
        self.channels = side(find(vision, "num_channels", "in_channels", "in_chans", "input_channels"), 3)
        self.patch = side(find(vision, "patch_size"), 16)
        size = find(vision, "image_size", "input_size", "img_size")
        pair = isinstance(size, list | tuple) and len(size) == 2
        self.width = side(size, 64)
        self.height = side(size[0], 64) if pair else self.width
        self.frames = side(find(vision, "num_frames", "frames_per_clip"), 2)
        self.mel = int(find(config, "num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel", default=80))
        self.vocab = int(find(config, "vocab_size", default=FIRST_SPECIAL))

    def normal(self, *shape: int) -> Tensor:
        """Normal noise."""
        return torch.randn(*shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Uniform integers."""
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def ids(self, length: int = LENGTH) -> Tensor:
        """Plain token ids, away from the special ones."""
        return self.integers(min(FIRST_PLAIN, self.vocab // 2), min(self.vocab, FIRST_SPECIAL), BATCH, length)

    def images(self) -> list[Tensor]:
        """Pictures, films, or rows of flat patches."""
        c, h, w, p, f = self.channels, self.height, self.width, self.patch, self.frames
        still: list[tuple[int, ...]] = [(BATCH, c, h, w), (BATCH, c, 64, 64), (BATCH, c, 224, 224)]
        film: list[tuple[int, ...]] = [(BATCH, f, c, h, w), (BATCH, c, f, h, w)]
        video = find(self.config, "num_frames", "frames_per_clip") is not None
        shapes = film + still if video else still[:1] + film[:1] + still[1:] + film[1:]
        if {"grid_thw", "image_grid_thw"} & self.signature:
            flat = (16 * BATCH, c * side(find(self.config, "temporal_patch_size"), 1) * p * p)
            shapes = [flat, (16 * BATCH, c, p, p), *shapes]
        if {"spatial_shapes", "pixel_position_ids", "image_position_ids"} & self.signature:
            shapes = [(BATCH, 16, c * p * p), *shapes]
        return [self.normal(*shape) for shape in dict.fromkeys(shapes)]

    def sounds(self) -> list[Tensor]:
        """Features over time, in either order, or the raw wave."""
        m = self.mel
        long = int(find(self.config, "max_source_positions", default=32))
        rows = int(find(self.config, "max_length", "spec_size", default=64))
        other = find(self.config, "feature_projection_input_dim", "input_dim", "input_size", default=m)
        shapes: list[tuple[int, ...]] = [(BATCH, m, 2 * long), (BATCH, 64, m), (BATCH, 64, side(other, m))]
        shapes += [(BATCH, 64, width) for width in (128, 160, 320)]
        shapes += [(BATCH, rows, m), (BATCH, 1, rows, m)]
        return [self.normal(*shape) for shape in dict.fromkeys(shapes)]

    def series(self) -> list[Tensor]:
        """Past values of a time series."""
        length = int(find(self.config, "context_length", default=32))
        lags = max(find(self.config, "lags_sequence", default=[0]) or [0])
        columns = int(find(self.config, "num_input_channels", default=1))
        shapes = [(BATCH, length, columns), (BATCH, length + lags), (BATCH, length)]
        return [self.normal(*shape) for shape in shapes]

    def options(self, name: str) -> list[Any]:
        """Values to try for an input."""
        grid = torch.tensor([[1, 4, 4]] * BATCH)
        if name in IDS:
            codebooks = find(self.config, "num_codebooks", default=None)
            several = [self.ids()[:, None].repeat(1, codebooks, 1)] if isinstance(codebooks, int) else []
            return [self.ids(), *several]
        if name in {"pixel_values", "image", "input", "pixel_values_videos", "pixel_values_images"}:
            return self.images()
        if name in {"hidden_states", "query_embeds", "inputs_embeds"}:
            width = find(self.config, "hidden_size", default=64)
            images = self.images() if name == "hidden_states" else []
            return [*images, self.normal(BATCH, LENGTH, width)]
        if name in {"input_features", "audio_mel"}:
            return self.sounds()
        if name in {"input_values", "padding_mask"}:
            wave = [self.normal(BATCH, SAMPLES), self.normal(BATCH, 1, SAMPLES)]
            rows = find(self.config, "max_length")
            return self.sounds()[-2:] + wave if rows and find(self.config, "num_mel_bins") else wave
        if name == "bbox":
            corner = self.integers(0, 20, BATCH, LENGTH, 2)
            boxes = torch.cat([corner, corner + self.integers(1, 20, BATCH, LENGTH, 2)], -1)
            return [boxes, boxes / 100.0, self.normal(BATCH, LENGTH, 8)]
        if name in {"grid_thw", "image_grid_thw"}:
            return [grid]
        if name == "spatial_shapes":
            return [torch.tensor([[4, 4]] * BATCH)]
        if name == "image_sizes":
            return [OMIT, torch.tensor([[self.height, self.width]] * BATCH)]
        if name in {"attention_mask", "decoder_attention_mask", "encoder_attention_mask"}:
            return [torch.ones(BATCH, LENGTH, dtype=torch.long)]
        if name == "pixel_attention_mask":
            return [torch.ones(BATCH, 16, dtype=torch.long)]
        if name == "past_values":
            return self.series()
        if name in {"past_time_features", "future_time_features"}:
            length = int(find(self.config, "context_length", default=32))
            lags = max(find(self.config, "lags_sequence", default=[0]) or [0])
            features = int(find(self.config, "num_time_features", default=0))
            ahead = int(find(self.config, "prediction_length", default=8))
            return [self.normal(BATCH, ahead if name.startswith("future") else length + lags, features)]
        if name == "future_values":
            return [self.normal(BATCH, int(find(self.config, "prediction_length", default=8)))]
        if name == "past_observed_mask":
            return [torch.ones_like(value) for value in self.series()]
        if name in {"input_features_mask", "audio_mel_mask"}:
            ones = torch.ones(BATCH, 64, dtype=torch.bool)
            return [~ones if name == "audio_mel_mask" else ones]
        if name in {"pixel_position_ids", "image_position_ids"}:
            return [torch.cartesian_prod(torch.arange(4), torch.arange(4)).repeat(BATCH, 1, 1)]
        if name in {"states", "actions"}:
            return [self.normal(BATCH, LENGTH, int(find(self.config, f"{name[:-1]}_dim", "act_dim", default=4)))]
        if name in {"rewards", "returns_to_go"}:
            return [self.normal(BATCH, LENGTH, 1)]
        if name == "timesteps":
            return [torch.arange(LENGTH).repeat(BATCH, 1)]
        if name == "visual_feats":
            return [self.normal(BATCH, 5, int(find(self.config, "visual_feat_dim", default=64)))]
        if name == "visual_pos":
            return [torch.rand(BATCH, 5, 4, generator=self.generator)]
        if name == "visual_embeds":
            return [self.normal(BATCH, 5, int(find(self.config, "visual_embedding_dim", default=64)))]
        return []


def with_picture_tokens(model: Any, inputs: dict[str, Any], maker: InputMaker) -> dict[str, Any] | None:
    """The inputs with as many picture tokens in the text as the picture gives features, or None."""
    token = find(model.config, "image_token_id", "image_token_index")
    if token is None or not hasattr(model, "get_image_features") or "pixel_values" not in inputs:
        return None
    accepts = set(inspect.signature(model.get_image_features).parameters)
    accepted = {k: v for k, v in inputs.items() if k in accepts and k != "input_ids"}
    output = model.get_image_features(**accepted)
    features = getattr(output, "pooler_output", None)
    if features is None:
        features = output[0] if isinstance(output, tuple) else output
    if isinstance(features, list | tuple):
        count = sum(int(f.shape[:-1].numel()) for f in features)
    else:
        count = int(features.shape[:-1].numel())
    text = maker.ids(4)
    middle = torch.full((BATCH, count // BATCH), int(token))
    inputs = inputs | {"input_ids": torch.cat([text[:, :2], middle, text[:, 2:]], 1)}
    if "mm_token_type_ids" in maker.signature:
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == int(token)).long()
    return inputs


def candidates(model: Any) -> Iterator[CallInputs]:
    """Inputs to try, the most complete first: everything the model reads, then its main input only."""
    signature = inspect.signature(model.forward).parameters
    required = [
        name
        for name, p in signature.items()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    main = getattr(model, "main_input_name", "input_ids")
    full = [name for name in signature if name in MODALITIES or name in required]
    if "pixel_values" in full and main != "pixel_values_videos" and "pixel_values_videos" not in required:
        full = [name for name in full if name != "pixel_values_videos"]
    lean = [name for name in signature if name == main or name in required]
    seq2seq = [*lean, *(n for n in signature if n == "decoder_input_ids" and n not in lean)]
    text = [*required, *(n for n in signature if n == "input_ids" and n not in required)]
    tried: list[list[str]] = []
    for label, names in (("all", full), ("seq2seq", seq2seq), ("main", lean), ("text", text)):
        if names in tried or not names:
            continue
        tried.append(names)
        maker = InputMaker(model.config, set(signature))
        options = [maker.options(name) for name in names]
        for values in itertools.islice(itertools.product(*options), 12):
            inputs = {n: v for n, v in zip(names, values, strict=True) if v is not OMIT}
            placed = None
            if label == "all" and "input_ids" in inputs:
                try:
                    with torch.no_grad():
                        placed = with_picture_tokens(model, inputs, maker)
                except Exception:
                    placed = None
            if placed is not None:
                yield split(label + "+image", placed, fixed_text=True)
            yield split(label, inputs, fixed_text=False)


def split(label: str, inputs: dict[str, Any], fixed_text: bool) -> CallInputs:
    """Floating inputs and token ids are data; what only shapes the call is constant."""
    data: dict[str, Tensor] = {}
    constants: dict[str, Any] = {}
    for name, value in inputs.items():
        ids = name in IDS and not fixed_text
        if isinstance(value, Tensor) and ((value.is_floating_point() and "mask" not in name) or ids):
            data[name] = value
        else:
            constants[name] = value
    return CallInputs(label + ":" + ",".join(inputs), data, constants)
