"""Tiny Shakespeare: windows of characters and what follows them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from coset.core.errors import DataError
from coset.data import load, names, search_path, tiny_shakespeare

TEXT = "To be, or not to be: that is the question.\n" * 30


@pytest.fixture
def small(net: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short text on the net, whose hash is expected in place of the real one's."""
    monkeypatch.setattr(tiny_shakespeare, "HASH", "sha256:" + hashlib.sha256(TEXT.encode()).hexdigest())
    (net / "input.txt").write_text(TEXT)
    return net / "input.txt"


def test_targets_are_the_characters_that_follow(small: Path) -> None:
    data = load("tinyshakespeare", context=16)
    assert data.classes is not None and list(data.classes) == sorted(set(TEXT))
    cut = len(TEXT) * 9 // 10
    for split, text in ((data.train, TEXT[:cut]), (data.test, TEXT[cut:])):
        assert split.inputs.dtype == split.targets.dtype == torch.int64
        assert split.inputs.shape == split.targets.shape == ((len(text) - 1) // 16, 16)
        read, following = ("".join(data.classes[k] for k in part.flatten()) for part in split)
        assert read == text[: len(read)] and following == text[1 : len(read) + 1]
    assert load("tinyshakespeare", context=128).train.inputs.shape[1] == 128
    assert torch.equal(data.input_scale.apply(data.test.inputs), data.test.inputs.float())


def test_it_is_downloaded_once_and_by_its_hash(small: Path) -> None:
    small.write_text(TEXT + "?")
    with pytest.raises(DataError, match=r"input\.txt should have sha256"):
        load("tinyshakespeare", context=16)
    assert not search_path.cache().exists()
    small.write_text(TEXT)
    load("tinyshakespeare", context=16)
    small.unlink()
    load("tinyshakespeare", context=16)
    (search_path.cache() / "text" / "tinyshakespeare.txt").unlink()
    with pytest.raises(DataError, match=r"^text/tinyshakespeare\.txt is in none of .*could not be down"):
        load("tinyshakespeare", context=16)


@pytest.mark.parametrize("context", [0, -3, 10**6])
def test_windows_that_do_not_fit_are_refused(small: Path, context: int) -> None:
    with pytest.raises(DataError, match=rf"has no window of {context} characters: its test split has \d+"):
        load("tinyshakespeare", context=context)


def test_other_sets_have_no_context() -> None:
    with pytest.raises(DataError, match="digits is no text, so context=64 cannot be chosen"):
        load("digits", context=64)


def test_the_real_text(use_real: Callable[[str], Path]) -> None:
    use_real("text/tinyshakespeare.txt")
    data = load("tinyshakespeare")
    assert "tinyshakespeare" in names() and data.classes is not None
    assert len(data.classes) == 65 and data.classes[:2] == ("\n", " ")
    assert data.train.inputs.shape == (3921, 256) and data.test.inputs.shape == (435, 256)
    assert "".join(data.classes[k] for k in data.train.inputs[0, :14]) == "First Citizen:"
