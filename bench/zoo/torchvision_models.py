"""The classification models of torchvision, with random weights, at a small input size they accept."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.zoo.model_call import ModelCall, StageError, one_line, randomize_norm_statistics

SIZES = {"vit_": 64, "vit_h_14": 56, "swin_": 64, "swin_v2": 64, "maxvit": 224, "inception_v3": 75, "alexnet": 63}
"""Smallest handy input by prefix; everything else takes 64. The longest matching prefix wins."""


def names() -> list[str]:
    """All classification models, in torchvision's order."""
    import torchvision

    return list(torchvision.models.list_models(module=torchvision.models))


def size(name: str) -> int:
    """The input's height and width for a model."""
    match = max((p for p in SIZES if name.startswith(p)), key=len, default="")
    return SIZES.get(match, 64)


def attempts(name: str) -> Iterator[ModelCall]:
    """The model in eval mode with random norm statistics, and a batch of two images."""
    import torchvision

    torch.manual_seed(0)
    options: dict[str, object] = {"weights": None}
    if name.startswith("vit_"):
        options["image_size"] = size(name)
    if name in {"googlenet", "inception_v3"}:
        options["init_weights"] = True
    try:
        model = torchvision.models.get_model(name, **options).eval()
    except Exception as error:
        raise StageError("build", one_line(error)) from error
    randomize_norm_statistics(model)
    image = torch.randn(2, 3, size(name), size(name))
    try:
        with torch.no_grad():
            model(image)
    except Exception as error:
        raise StageError("call", one_line(error)) from error
    yield ModelCall(model, (image,), {}, label=f"{size(name)}px")
