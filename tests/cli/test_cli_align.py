"""`coset align`, `apply`, `merge` and `barrier` on small checkpoints, good and bad ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import Result

import coset
from coset import zoo
from coset.alignment import align as alignment
from coset.core import state as states
from coset.core.checkpoint import INDEX, LazyState, load_state, save_state
from coset.core.files import write_json
from coset.symmetries.comparison import generic

SPEC = "mlp:64-16-12-10"
Run = Callable[..., Result]
State = dict[str, Tensor]


@pytest.fixture
def pair(folder: Path) -> tuple[State, State]:
    """a.safetensors and b.safetensors, random networks."""
    states_of_both = []
    for seed, name in enumerate("ab"):
        state = generic(states.of(zoo.build(SPEC)), torch.Generator().manual_seed(seed))
        save_state(state, folder / f"{name}.safetensors")
        states_of_both.append(state)
    return states_of_both[0], states_of_both[1]


def output(state: State) -> Tensor:
    model = zoo.build(SPEC)
    with torch.no_grad():
        result: Tensor = states.call(model, state, (torch.randn(5, 64, generator=torch.Generator().manual_seed(0)),))
    return result


def align(run: Run, *more: object) -> Result:
    return run(
        "align", "a.safetensors", "b.safetensors", "--model", SPEC, "-o", "out.safetensors", "--overwrite", *more
    )


def test_align_writes_the_same_function_nearer_to_the_first(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    result = align(run)
    assert result.exit_code == 0, result.stderr
    assert "same function" in result.stdout
    aligned = load_state(folder / "out.safetensors")
    torch.testing.assert_close(output(aligned), output(pair[1]), rtol=1e-4, atol=1e-4)
    before, after = (states.norm(states.sub(pair[0], state)) for state in (pair[1], aligned))
    assert after < before


def test_align_json(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    report = json.loads(align(run, "--json", "--restarts", "3", "--seed", "1").stdout)
    assert report["output_change"] < 1e-9
    assert report["objective"] == pytest.approx(max(report["objectives"]))
    assert len(report["objectives"]) == 3
    aligned = load_state(folder / "out.safetensors")
    assert report["distance_after"] == pytest.approx(float(states.norm(states.sub(pair[0], aligned))), rel=1e-4)


def test_apply_replays_and_undoes(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    assert align(run).exit_code == 0
    assert run("apply", "out.element.safetensors", "b.safetensors", "-o", "again.safetensors").exit_code == 0
    assert states.allclose(load_state(folder / "again.safetensors"), load_state(folder / "out.safetensors"))
    words = ("apply", "out.element.safetensors", "again.safetensors", "-o", "back.safetensors", "--inverse", "--json")
    assert json.loads(run(*words).stdout)["tensors"] == 6
    assert states.allclose(load_state(folder / "back.safetensors"), pair[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_kept(run: Run, folder: Path, pair: tuple[State, State], dtype: torch.dtype) -> None:
    save_state(states.to(pair[1], dtype=dtype), folder / "b.safetensors")
    assert align(run).exit_code == 0
    assert {x.dtype for x in load_state(folder / "out.safetensors").values()} == {dtype}


def test_pickles_are_read(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    torch.save({"state_dict": pair[1]}, folder / "b.pt")
    result = run("align", "a.safetensors", "b.pt", "--model", SPEC, "-o", "out.safetensors")
    assert result.exit_code == 0, result.stderr


def test_shards_are_streamed_to_shards(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    (folder / "b").mkdir()
    names = list(pair[1])
    shards = {"one.safetensors": names[:3], "two.safetensors": names[3:]}
    for file, inside in shards.items():
        save_state({name: pair[1][name] for name in inside}, folder / "b" / file)
    weight_map = {name: file for file, inside in shards.items() for name in inside}
    write_json(folder / "b" / INDEX, {"weight_map": weight_map})
    result = run("align", "a.safetensors", "b", "--model", SPEC, "--meta", "-o", "out")
    assert result.exit_code == 0, result.stderr
    assert "not checked" in result.stdout
    assert align(run).exit_code == 0
    assert states.allclose(load_state(folder / "out"), load_state(folder / "out.safetensors"))


def test_unknown_tensors_are_carried_over(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    extra = {"ema.decay": torch.tensor([0.5])}
    save_state({**pair[1], **extra}, folder / "b.safetensors")
    result = align(run)
    assert result.exit_code == 0
    assert "'ema.decay'" in result.stderr and "carried over" in result.stderr
    assert torch.equal(load_state(folder / "out.safetensors")["ema.decay"], extra["ema.decay"])


def test_a_symmetry_from_a_file(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    assert run("inspect", SPEC, "--output", "sym.json").exit_code == 0
    words = ("align", "a.safetensors", "b.safetensors", "--symmetry", "sym.json", "-o", "other.safetensors")
    assert run(*words).exit_code == 0
    assert align(run).exit_code == 0
    assert states.allclose(load_state(folder / "other.safetensors"), load_state(folder / "out.safetensors"))


@pytest.mark.parametrize("method", ["activations", "sinkhorn"])
def test_methods_that_need_data(run: Run, folder: Path, pair: tuple[State, State], method: str) -> None:
    assert "--data" in align(run, "--method", method).stderr
    result = align(run, "--method", method, "--data", "digits")
    assert result.exit_code == 0, result.stderr


def test_scale(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    report = json.loads(align(run, "--scale", "--json").stdout)
    assert 0 < report["output_change"] < 1e-6  # the factors are rounded to float32


BAD: dict[str, tuple[Callable[[Path, State], object], str]] = {
    "NaN": (
        lambda folder, b: save_state({**b, "layers.0.bias": b["layers.0.bias"] * torch.nan}, folder / "b.safetensors"),
        "'layers.0.bias'",
    ),
    "infinite": (
        lambda folder, b: save_state({**b, "layers.1.weight": b["layers.1.weight"] / 0}, folder / "b.safetensors"),
        "'layers.1.weight'",
    ),
    "wrong shape": (
        lambda folder, b: save_state({**b, "layers.0.bias": torch.zeros(3)}, folder / "b.safetensors"),
        "has shape (3,) where (16,) is expected",
    ),
    "missing": (
        lambda folder, b: save_state({n: x for n, x in b.items() if n != "layers.2.bias"}, folder / "b.safetensors"),
        "Missing 'layers.2.bias'",
    ),
    "half-written": (
        lambda folder, b: (folder / "b.safetensors").write_bytes((folder / "b.safetensors").read_bytes()[:-100]),
        "not a complete safetensors file",
    ),
    "empty": (lambda folder, b: (folder / "b.safetensors").write_bytes(b""), "not a complete safetensors file"),
    "absent": (lambda folder, b: (folder / "b.safetensors").unlink(), "There is no file or folder b.safetensors"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_checkpoints(run: Run, folder: Path, pair: tuple[State, State], name: str) -> None:
    spoil, message = BAD[name]
    spoil(folder, pair[1])
    result = align(run)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not (folder / "out.safetensors").exists()


def test_a_pickle_with_code_is_refused(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    torch.save(zoo.build(SPEC), folder / "b.pt")
    result = run("align", "a.safetensors", "b.pt", "--model", SPEC, "-o", "out.safetensors")
    assert result.exit_code == 2
    assert "more than plain tensors" in result.stderr


@pytest.mark.parametrize("target", ["a.safetensors", "b.safetensors"])
def test_inputs_are_never_overwritten(run: Run, folder: Path, pair: tuple[State, State], target: str) -> None:
    before = (folder / target).read_bytes()
    result = run("align", "a.safetensors", "b.safetensors", "--model", SPEC, "-o", target)
    assert result.exit_code == 2
    assert "never overwritten" in result.stderr
    assert (folder / target).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "best"), "no method 'best'"),
        (("--device", "tpu"), "--device tpu cannot be used"),
        (("--data", "imagenet", "--method", "activations"), "no data set 'imagenet'"),
    ],
)
def test_bad_options(run: Run, folder: Path, pair: tuple[State, State], words: tuple[str, ...], message: str) -> None:
    result = align(run, *words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_model_or_a_symmetry_is_needed(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    result = run("align", "a.safetensors", "b.safetensors", "-o", "out.safetensors")
    assert result.exit_code == 2
    assert "--model" in result.stderr


def test_bad_elements(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    result = run("apply", "a.safetensors", "b.safetensors", "-o", "out.safetensors")
    assert result.exit_code == 2
    assert "holds no element" in result.stderr
    assert align(run).exit_code == 0
    other = generic(states.of(zoo.build("mlp:64-8-10")), torch.Generator().manual_seed(0))
    save_state(other, folder / "other.safetensors")
    result = run("apply", "out.element.safetensors", "other.safetensors", "-o", "new.safetensors")
    assert result.exit_code == 2
    assert not (folder / "new.safetensors").exists()


def test_merge(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    words = ("merge", "a.safetensors", "b.safetensors", "a.safetensors", "--model", SPEC, "-o", "m.safetensors")
    report = json.loads(run(*words, "--data", "digits", "--json").stdout)
    assert set(report["test_accuracy"]) == {"ends", "plain average", "merged"}
    assert load_state(folder / "m.safetensors").keys() == pair[0].keys()
    assert run(*words[:-1], "n.safetensors", "--weights", "1,0,1").exit_code == 0
    assert states.allclose(load_state(folder / "n.safetensors"), pair[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a.safetensors",), "two checkpoints or more"),
        (("a.safetensors", "b.safetensors", "--weights", "1"), "2 solutions need 2 weights"),
        (("a.safetensors", "b.safetensors", "--weights", "1,x"), "numbers separated by commas"),
        (("a.safetensors", "b.safetensors", "--reference", "7"), "no solution 7 among 2"),
    ],
)
def test_bad_merges(run: Run, folder: Path, pair: tuple[State, State], words: tuple[str, ...], message: str) -> None:
    result = run("merge", *words, "--model", SPEC, "-o", "m.safetensors")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_barrier(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    words = ("barrier", "a.safetensors", "b.safetensors", "--model", SPEC, "--data", "digits", "--points", "5")
    result = run(*words, "--html", "page.html")
    assert result.exit_code == 0, result.stderr
    assert "not aligned" in result.stdout and "weights" in result.stdout
    page = (folder / "page.html").read_text()
    assert "not aligned" in page and "http" not in page.replace("http://www.w3.org", "")
    report = json.loads(run(*words, "--json").stdout)
    assert len(report["weights"]["loss"]) == 5
    assert report["weights"]["loss"][-1] == pytest.approx(report["not aligned"]["loss"][-1], rel=1e-4)


def test_data_that_does_not_fit_the_model(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    words = ("a.safetensors", "b.safetensors", "--model", SPEC, "--data", "breast-cancer")
    for command in (("barrier", *words), ("merge", *words, "-o", "m.safetensors")):
        result = run(*command)
        assert result.exit_code == 2
        assert "MLP cannot be called on inputs of shape" in " ".join(result.stderr.split())
    assert not (folder / "m.safetensors").exists()


def test_align_calls_coset_align_on_lazy_checkpoints(
    run: Run, folder: Path, pair: tuple[State, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def spy(*args: Any, **more: Any) -> Any:
        calls.append(args)
        return whole(*args, **more)

    whole = alignment.align
    monkeypatch.setattr(alignment, "align", spy)
    report = json.loads(align(run, "--json").stdout)
    ((a, b, sym, method),) = calls
    assert isinstance(a, LazyState) and isinstance(b, LazyState) and method == "weights"
    assert report["objective"] == coset.align(pair[0], pair[1], sym).objective


def test_help_names_the_methods(run: Run) -> None:
    for command in ("align", "merge", "barrier"):
        text = " ".join(run(command, "--help").stdout.replace("│", " ").split())
        assert "auto, weights, activations, learned or sinkhorn" in text
