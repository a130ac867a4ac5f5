"""CIFAR as lossless WebP mosaics: a batch of 10000 images as one picture, 20 images to a row.

CIFAR-100's are in a fixed shuffled order, not in that of the release.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coset.core.extras import require
from coset.data import hashes
from coset.data.images import Labelled

HASHES_10 = {
    "cifar-10/data_batch_1.webp": "sha256:154fb00cef1a2849b5062f33b62ac819526f6e817cbbb1ae99ff18348cff9c5a",
    "cifar-10/data_batch_2.webp": "sha256:fbb4b0f7c5b311db38d549920be6a9da9ab17f0e184f21b53296db2238b6b40d",
    "cifar-10/data_batch_3.webp": "sha256:09bde2623b19abed0afea2d9fe81008c4d6c834c5f394d5d276b98de5fadfbd4",
    "cifar-10/data_batch_4.webp": "sha256:1d2dbc1530aef5cd7287e781e30be7e21bdb04a5e9d04cbea7db9a8602856f49",
    "cifar-10/data_batch_5.webp": "sha256:17ca449148e6799cd3f83716a7dcf196f11c7e1248f2fea7084c92f2ea883abd",
    "cifar-10/test_batch.webp": "sha256:ae718156bd9eb4b16bc563d6667b2816c9656192af4dff3ffde1eb9fe7cdb8de",
    "cifar-10/labels.npz": "sha256:4ea5fbf1f71f3ff6afc4a16f0df2de0ac1914f98b72d80206c78e56446186d4d",
}
HASHES_100 = {
    "cifar-100/train_1.webp": "sha256:ba906f26d277c88cdae486c8918c5f2e1d445fcfecbdb69af456df30e0ef16be",
    "cifar-100/train_2.webp": "sha256:a5479ed8802b46df85833a95e512bd09fd9328002e22ee9e020c9920d31e0b17",
    "cifar-100/train_3.webp": "sha256:0e0293936d0d41d78cafbe7f7f545c8154c69f3dbdf5fb9429fa60f2c85800a6",
    "cifar-100/train_4.webp": "sha256:22180857e1c0cd16e61b45d407089880338af19544afc65b1717afa2999c35f6",
    "cifar-100/train_5.webp": "sha256:47cd3c1c7d0468ce71823834b9524f88e39822aa6be2d5cccd6140c42921cfc7",
    "cifar-100/test.webp": "sha256:25dc4b64ecce3d6be03dc47169de1fb182ae98f53d3b4eb3c21a4ad7f7aa60fc",
    "cifar-100/labels.npz": "sha256:d6b220ef1135ac0335eda26ed6d51d521d7861768abe5ab0c5265e26c9fdba57",
}

_SIDE, _COLUMNS = 32, 20


def batch(path: Path) -> NDArray[np.uint8]:
    """The images (n, 3, 32, 32) of one mosaic, row by row."""
    image = require("PIL.Image", "data")
    picture = np.asarray(image.open(io.BytesIO(_read(path))))
    rows = picture.shape[0] // _SIDE
    tiles = picture.reshape(rows, _SIDE, _COLUMNS, _SIDE, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(rows * _COLUMNS, 3, _SIDE, _SIDE)


def labelled(paths: Sequence[Path], kind: str) -> tuple[Labelled, Labelled]:
    """Training and test set from the files of a table of hashes, in its order.

    `kind` is how the file of labels calls those that are meant: y, fine or coarse.
    """
    *train, test, labels = paths
    with np.load(io.BytesIO(_read(labels)), allow_pickle=False) as arrays:
        y_train, y_test = arrays[f"{kind}_train"], arrays[f"{kind}_test"]
    return (np.concatenate([batch(path) for path in train]), y_train), (batch(test), y_test)


def class_names(labels: Path) -> list[str]:
    """The 100 fine classes that the file of CIFAR-100's labels names."""
    with np.load(io.BytesIO(_read(labels)), allow_pickle=False) as arrays:
        return [name.decode() for name in arrays["classes"]]


def _read(path: Path) -> bytes:
    return hashes.read(path, (HASHES_10 | HASHES_100)[f"{path.parent.name}/{path.name}"])
