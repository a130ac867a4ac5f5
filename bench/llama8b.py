"""The symmetry of a Llama-3-8B shape without its weights: seconds and peak memory.

Needs transformers.
"""

from __future__ import annotations

import math
import platform
import resource
import time
from typing import Annotated

import torch
import typer

import coset
from bench.record import Out, report


def main(layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 32, out: Out = None) -> None:
    """Build the model on the meta device, infer its symmetry, and print the record."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        use_cache=False,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        tokens = torch.zeros(1, 16, dtype=torch.long)
    sym = coset.symmetry(model, (), {"input_ids": tokens})
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    tensors = {tensor for group in sym.groups for tensor, _ in group.members}
    record = {
        "command": f"python -m bench llama8b --layers {layers}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(seconds, 2),
        "stages": {name: round(value, 2) for name, value in sym.seconds.items()},
        "peak_gib": round(peak, 3),
        "peak_gib_before": round(before, 3),
        "groups": len(sym.groups),
        "permutations": sum(group.copies for group in sym.groups),
        "log10_order": round(sym.log_order / math.log(10)),
        "tensors": len(model.state_dict()),
        "moved": len(tensors),
    }
    report(record, out)
