"""Tiny Shakespeare: a million characters of plays (Karpathy 2015), to be continued one by one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from coset.core.errors import DataError
from coset.data import download, hashes, search_path
from coset.data.dataset import DataSet, Split, Standardization

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
HASH = "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
FILES = ("text/tinyshakespeare.txt", "tinyshakespeare/input.txt")


def tiny_shakespeare(context: int) -> DataSet:
    """The first nine tenths in windows of `context` characters, and the rest; targets are the characters that follow.

    Windows do not overlap: joined, the inputs of a split are its text, but for what does not fill a window at its end.
    """
    path = search_path.find(*FILES) or _download()
    text = hashes.read(path, HASH).decode()
    characters = sorted(set(text))
    number = {character: k for k, character in enumerate(characters)}
    cut = len(text) * 9 // 10
    train, test = (_windows(part, number, context) for part in (text[:cut], text[cut:]))
    as_it_is = Standardization(torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.int64))
    return DataSet("tinyshakespeare", train, test, tuple(characters), as_it_is)


def _windows(text: str, number: Mapping[str, int], context: int) -> Split:
    tokens: Tensor = torch.tensor([number[character] for character in text])
    count = (len(tokens) - 1) // context if context > 0 else 0
    if count < 1:
        raise DataError(f"tinyshakespeare has no window of {context} characters: its test split has {len(text)}")
    inputs, targets = (tokens[start : start + count * context].view(count, context) for start in (0, 1))
    return Split(inputs, targets)


def _download() -> Path:
    try:
        content = download.fetch(URL)
    except download.UnreachableError as error:
        raise search_path.absent(FILES[0], str(error)) from error
    hashes.verify(content, URL, HASH)
    path = search_path.cache() / FILES[0]
    download.store(path, content)
    return path
