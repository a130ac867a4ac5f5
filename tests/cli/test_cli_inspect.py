"""`coset inspect`: what it prints, what it writes, and how it takes models, weights and inputs."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import Result

import coset
from coset import symmetry as infer
from coset.core.checkpoint import save_state
from coset.core.state import allclose, of
from coset.zoo import build

Run = Callable[..., Result]


def inspect_json(run: Run, *words: object) -> dict[str, Any]:
    result = run("inspect", *words, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""  # no progress beside JSON
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def test_tables(run: Run) -> None:
    result = run("inspect", "mlp:6-5-5-3")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    groups = [line.split() for line in lines if line.startswith("layers.")]
    assert [words[:5] for words in groups] == [
        ["layers.0", "permutation", "1", "5", "3"],
        ["layers.1", "permutation", "1", "5", "3"],
    ]
    assert "layers.0.weight:0, layers.0.bias:0, ..." in result.stdout
    assert f"mlp:6-5-5-3: 2 groups, 10^{2 * math.log10(120):.1f} permutations" in lines
    assert "tensors moved: 5 of 6" in lines
    assert any(line.startswith("verified in float32") and "wrong permutation" in line for line in lines)
    assert any(line.split() == ["input", "model", "input", "1", "layers.0.weight:1"] for line in lines)
    assert any(line.split() == ["scaling", "layers.0", "1", "5", "exact"] for line in lines)
    assert "inferring" in result.stderr  # plain lines, as this is no terminal


def test_fibred_groups_and_repeats(run: Run) -> None:
    result = run("inspect", "vit:dim=16,depth=2,image_size=8")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["blocks.{0-1}.attention.qkv[1]", "permutation", "2", "4", "x", "4", "over", "qkv[0]"] in [
        words[:8] for words in lines
    ]


def test_narrow_terminals_fold_names_and_cut_no_number(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = run("inspect", "vit:dim=64,depth=1,image_size=8", "--meta")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["permutation", "1", "4", "x", "16", "over", "qkv[0]", "3"] in [words[1:9] for words in lines]


def test_json_round_trip(run: Run) -> None:
    record = inspect_json(run, "gpt:dim=16,depth=1,vocab=11,kv_heads=2,rope=true,swiglu=true")
    sym = coset.Symmetry.from_json(json.dumps(record["symmetry"]))
    assert record["log10_order"] == pytest.approx(sym.log_order / math.log(10))
    groups = [(group["name"], group["size"], group["copies"], len(group["members"])) for group in record["groups"]]
    assert groups == [(g.name, g.size, g.copies, len(g.members)) for g in sym.groups]
    assert record["verification"]["conclusive"] and record["verification"]["deviation"] < 1e-4
    assert {axis["op"] for axis in record["fixed"]} >= {"embedding", "constant"}
    assert set(record["seconds"]) == {"export", "inference", "verification"}
    assert record["tensors"]["all"] == len(sym.axes)
    assert len(record["scalings"]) == len(sym.scalings)


def test_files_are_written(run: Run, folder: Path) -> None:
    result = run("inspect", "mlp:4-3-2", "--output", "sym.json", "--plot", "net.png")
    assert result.exit_code == 0, result.stderr
    sym = coset.Symmetry.from_json((folder / "sym.json").read_text())
    assert [group.size for group in sym.groups] == [3]
    assert (folder / "net.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["cli_nets.py", "net.png", "sym.json"]


def test_module_factory_with_arguments(run: Run, folder: Path) -> None:
    record = inspect_json(run, "cli_nets:net", "--args", '{"width": 7}', "--input", "2x4")
    assert [group["size"] for group in record["groups"]] == [7]


def test_inputs_of_every_form(run: Run, folder: Path) -> None:
    record = inspect_json(run, "cli_nets:Keywords", "--input", "2x5:int<10", "--input", "scale=2x5x1:float")
    assert [group["size"] for group in record["groups"]] == [6]


def test_meta_needs_no_weights(run: Run) -> None:
    result = run("inspect", "mlp:4-100000-100000-2", "--meta")  # 40 GB of weights
    assert result.exit_code == 0, result.stderr
    assert "not verified" in result.stdout


def test_strict_refuses_what_is_otherwise_fixed(run: Run, folder: Path) -> None:
    words = ("cli_nets:Limited", "--input", "2x4")
    assert "renorm" in str(inspect_json(run, *words)["fixed"])
    result = run("inspect", *words, "--strict")
    assert result.exit_code == 2 and "renorm" in result.stderr


def test_checkpoint_is_loaded(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[nn.Module] = []

    def spy(model: nn.Module, *args: Any, **kwargs: Any) -> coset.Symmetry:
        models.append(model)
        return infer(model, *args, **kwargs)

    monkeypatch.setattr("coset.symmetries.infer.symmetry", spy)
    state = {name: x + 1 for name, x in of(build("mlp:4-3-2")).items()}
    save_state(state, "net.safetensors")
    inspect_json(run, "mlp:4-3-2", "--checkpoint", "net.safetensors")
    assert allclose(of(models[0]), state)


def test_unknown_keys_are_a_warning(run: Run, folder: Path) -> None:
    torch.save({"model": of(build("mlp:4-3-2")) | {"ema.decay": torch.ones(1)}}, "net.pt")
    result = run("inspect", "mlp:4-3-2", "--checkpoint", "net.pt")
    assert result.exit_code == 0
    assert result.stderr.startswith("building") and "warning: net.pt has tensors" in result.stderr
    assert "'ema.decay'" in result.stderr
