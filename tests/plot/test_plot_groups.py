"""The picture of a model: what is coloured, what is grey, and that it fits."""

import itertools
import json
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import coset
from coset.plot import groups, save
from coset.plot.families import families
from coset.plot.groups import _segments
from coset.plot.palette import FIXED
from coset.symmetries.group import Concat, Fixed, IndexSet, Interleave, Product, Units

MLP = {
    "groups": {"one": 8, "two": 6},
    "tensors": {
        "0.weight": ["one", 4],
        "0.bias": ["one"],
        "1.weight": ["two", "one"],
        "1.bias": ["two"],
        "2.weight": [3, "two"],
        "2.scale": [],
    },
}


def symmetry(spec: object) -> coset.Symmetry:
    return coset.Symmetry.from_json(json.dumps(spec))


def rectangles(figure: Figure) -> dict[str, int]:
    """Colour -> number of rectangles."""
    result = {}
    for collection in figure.axes[0].collections:
        assert isinstance(collection, PatchCollection)
        result[to_hex(collection.get_facecolor()[0])] = len(collection.get_paths())
    return result


def test_each_axis_has_the_colour_of_its_group() -> None:
    sym = symmetry(MLP)
    one, two = (next(f.colours[name] for f in families(sym) if name in f.colours) for name in ("one", "two"))
    counts = rectangles(groups(sym, "mlp"))
    assert counts[one] == 3 + 1  # two of layer 0, one of layer 1, and the legend
    assert counts[two] == 3 + 1
    assert counts[FIXED] == 2  # the input of layer 0 and the output of layer 2; the scalar is not drawn


def test_a_group_that_cannot_move_is_grey() -> None:
    spec = {"groups": {"one": {"size": 8, "movable": False}}, "tensors": {"0.weight": ["one", 4]}}
    assert rectangles(groups(symmetry(spec)))[FIXED] == 2


def test_the_top_edge_is_the_axis_that_moves() -> None:
    sym = symmetry({"groups": {"stream": 8}, "tensors": {"positions": [1, 5, 7, "stream"]}})
    (family,) = families(sym)
    counts = rectangles(groups(sym))
    assert counts[family.colours["stream"]] == 1 + 1  # and the legend
    assert counts[FIXED] == 1


def test_repeated_blocks_share_a_hue_and_differ_in_shade() -> None:
    spec = {
        "groups": {"stem": 4, **{f"blocks.{k}.mlp": 8 for k in range(3)}},
        "tensors": {f"blocks.{k}.mlp.weight": [f"blocks.{k}.mlp", "stem"] for k in range(3)},
    }
    first, second = families(symmetry(spec))
    assert (first.label, len(set(first.colours.values()))) == ("blocks.{0-2}.mlp", 3)
    assert second.label == "stem"


SETS = {
    "heads": IndexSet("heads", 4),
    "inner": IndexSet("inner", 16, over=("heads",)),
    "still": IndexSet("still", 8, movable=False),
}
HEADS, INNER, STILL = Units("heads", 4), Units("inner", 16), Units("still", 8)


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (HEADS, [("heads", 0, 1)]),
        (Fixed(3), [(None, 0, 1)]),
        (STILL, [(None, 0, 1)]),
        (Product((HEADS, INNER)), [("heads", 0, 0.5), *[("inner", 0.5, 0.5)] * 4]),  # a gap between the copies
        (Product((HEADS, Fixed(9))), [("heads", 0, 0.5), (None, 0.5, 0.5)]),
        (Product((HEADS, Concat((STILL, STILL)))), [("heads", 0, 0.5), (None, 0.5, 0.5)]),
        (Concat((HEADS, Fixed(4))), [("heads", 0, 1), (None, 0, 1)]),
        (Interleave((HEADS, Fixed(4))), [("heads", 0, 1), (None, 0, 1)] * 4),
    ],
)
def test_segments(axis: object, expected: list[tuple[str | None, float, float]]) -> None:
    result = list(_segments(axis, SETS, 0.0, 1.0, 0.0, 1.0))  # type: ignore[arg-type]
    assert [(piece.group, piece.offset, piece.depth) for piece in result] == expected
    lanes = {piece.offset for piece in result}
    for lane in lanes:  # the pieces of a lane come one after the other and fill it
        pieces = [piece for piece in result if piece.offset == lane]
        assert pieces[0].start == 0 and pieces[-1].start + pieces[-1].length == pytest.approx(1)
        for before, after in itertools.pairwise(pieces):
            assert 0 < after.start - (before.start + before.length) < 0.02


def test_long_models_are_wrapped() -> None:
    spec = {
        "groups": {"stream": 64, **{f"blocks.{k}.mlp": 256 for k in range(100)}},
        "tensors": {
            **{f"blocks.{k}.norm.weight": ["stream"] for k in range(100)},
            **{f"blocks.{k}.mlp.weight": [f"blocks.{k}.mlp", "stream"] for k in range(100)},
            **{f"blocks.{k}.out.weight": ["stream", f"blocks.{k}.mlp"] for k in range(100)},
        },
    }
    width, height = groups(symmetry(spec), "long").get_size_inches()
    assert 1 < width / height < 2 and width < 30


def test_nothing_to_draw() -> None:
    assert groups(symmetry({"groups": {}, "tensors": {}}), "empty").axes
    assert groups(symmetry({"groups": {}, "tensors": {"scale": []}})).axes


def test_no_global_state() -> None:
    before = dict(mpl.rcParams)
    groups(symmetry(MLP), "mlp")
    assert dict(mpl.rcParams) == before


def test_files_are_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = groups(symmetry(MLP), "mlp")
    for name in ("net.png", "net.svg", "net.pdf"):
        save(figure, tmp_path / name)
    before = (tmp_path / "net.png").read_bytes()
    assert before.startswith(b"\x89PNG")

    def half(path: Path, **kwargs: object) -> None:
        Path(path).write_bytes(before[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", half)
    with pytest.raises(OSError):
        save(figure, tmp_path / "net.png")
    assert (tmp_path / "net.png").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.pdf", "net.png", "net.svg"]
