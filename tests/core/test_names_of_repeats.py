"""Names of repeated structure."""

import pytest

from coset.core.names import gather, label, owner, pattern, plural, span, tail


@pytest.mark.parametrize(
    ("name", "expected", "block", "last"),
    [
        ("layers.0", "layers.0", "", "layers.0"),
        ("stem", "stem", "", "stem"),
        ("", "", "", ""),
        ("0", "0", "", "0"),
        ("blocks.3.mlp.0", "blocks.*.mlp.0", "blocks.3", "mlp.0"),
        ("stages.1.0.conv2", "stages.*.*.conv2", "stages.1.0", "conv2"),
        ("blocks.0.attention.qkv[1]", "blocks.*.attention.qkv[1]", "blocks.0", "qkv[1]"),
        ("layers.2.3[0]", "layers.2.3[0]", "", "layers.2.3[0]"),
        ("encoder.layers.layer_11.mlp.0", "encoder.layers.layer_*.mlp.0", "encoder.layers.layer_11", "mlp.0"),
        ("blocks.0.branch5.2.0", "blocks.*.branch5.2.0", "blocks.0", "branch5.2.0"),
    ],
)
def test_names(name: str, expected: str, block: str, last: str) -> None:
    assert pattern(name) == expected
    assert owner(name) == block
    assert tail(name) == last


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["blocks.3.mlp.0"], "blocks.3.mlp.0"),
        ([f"blocks.{k}.mlp.0" for k in range(12)], "blocks.{0-11}.mlp.0"),
        (["blocks.0.fc", "blocks.2.fc"], "blocks.{0,2}.fc"),
        ([f"blocks.{k}.fc" for k in (0, 2, 4, 6, 8, 10)], "blocks.{0,2,4,6,...}.fc"),
        (["stages.1.0.conv2", "stages.2.0.conv2"], "stages.{1-2}.0.conv2"),
        (["constant blocks.0.rope.cos", "constant blocks.1.rope.cos"], "constant blocks.{0-1}.rope.cos"),
        (["", ""], ""),
    ],
)
def test_labels(names: list[str], expected: str) -> None:
    assert label(names) == expected


def test_gather_keeps_the_order() -> None:
    assert gather([3, 1, 5, 2, 4], lambda n: n % 2) == [[3, 1, 5], [2, 4]]


def test_span() -> None:
    assert span([16, 16]) == "16"
    assert span([64, 16, 32]) == "16 to 64"


def test_plural() -> None:
    assert [plural(count, "group") for count in (0, 1, 2)] == ["0 groups", "1 group", "2 groups"]
