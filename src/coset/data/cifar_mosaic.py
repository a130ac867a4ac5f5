"""CIFAR-10 as lossless WebP mosaics: a batch of 10000 images as one picture, 20 images to a row."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coset.core.extras import require
from coset.data import hashes
from coset.data.images import Labelled

HASHES = {
    "data_batch_1.webp": "sha256:154fb00cef1a2849b5062f33b62ac819526f6e817cbbb1ae99ff18348cff9c5a",
    "data_batch_2.webp": "sha256:fbb4b0f7c5b311db38d549920be6a9da9ab17f0e184f21b53296db2238b6b40d",
    "data_batch_3.webp": "sha256:09bde2623b19abed0afea2d9fe81008c4d6c834c5f394d5d276b98de5fadfbd4",
    "data_batch_4.webp": "sha256:1d2dbc1530aef5cd7287e781e30be7e21bdb04a5e9d04cbea7db9a8602856f49",
    "data_batch_5.webp": "sha256:17ca449148e6799cd3f83716a7dcf196f11c7e1248f2fea7084c92f2ea883abd",
    "test_batch.webp": "sha256:ae718156bd9eb4b16bc563d6667b2816c9656192af4dff3ffde1eb9fe7cdb8de",
    "labels.npz": "sha256:4ea5fbf1f71f3ff6afc4a16f0df2de0ac1914f98b72d80206c78e56446186d4d",
}

_SIDE, _COLUMNS = 32, 20


def batch(path: Path) -> NDArray[np.uint8]:
    """The images (n, 3, 32, 32) of one mosaic, row by row."""
    image = require("PIL.Image", "data")
    picture = np.asarray(image.open(io.BytesIO(hashes.read(path, HASHES[path.name]))))
    rows = picture.shape[0] // _SIDE
    tiles = picture.reshape(rows, _SIDE, _COLUMNS, _SIDE, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(rows * _COLUMNS, 3, _SIDE, _SIDE)


def labelled(paths: Sequence[Path]) -> tuple[Labelled, Labelled]:
    """Training and test set from the files of `HASHES`, in that order."""
    *train, test, labels = paths
    with np.load(io.BytesIO(hashes.read(labels, HASHES[labels.name])), allow_pickle=False) as arrays:
        y_train, y_test = arrays["y_train"], arrays["y_test"]
    return (np.concatenate([batch(path) for path in train]), y_train), (batch(test), y_test)
