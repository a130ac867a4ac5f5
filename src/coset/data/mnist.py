"""MNIST and Fashion-MNIST, in the idx format of their authors."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coset.data import download, hashes, search_path
from coset.data.dataset import DataSet
from coset.data.images import Labelled, image_set

URLS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
}

# Of the unpacked files, which any gzip may have packed.
HASHES = {
    "mnist": {
        "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
}

# Of the packed files that are downloaded, whose md5 sums are those that torchvision publishes.
PACKED = {
    "mnist": {
        "train-images-idx3-ubyte": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte": "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte": "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte": "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte": "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
}

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def mnist(flatten: bool) -> DataSet:
    """MNIST: 60000 + 10000 grey images of 28x28 handwritten digits."""
    classes = [str(digit) for digit in range(10)]
    train, test = _labelled("mnist", "train"), _labelled("mnist", "t10k")
    return image_set("mnist", train, test, classes, (0.1307,), (0.3081,), flatten=flatten)


def fashion_mnist(flatten: bool) -> DataSet:
    """Fashion-MNIST: 60000 + 10000 grey images of 28x28 pieces of clothing."""
    train, test = _labelled("fashion-mnist", "train"), _labelled("fashion-mnist", "t10k")
    return image_set("fashion-mnist", train, test, FASHION_CLASSES, (0.2860,), (0.3530,), flatten=flatten)


def _labelled(name: str, part: str) -> Labelled:
    images = _array(name, f"{part}-images-idx3-ubyte")
    return images[:, None], _array(name, f"{part}-labels-idx1-ubyte")


def _array(name: str, file: str) -> NDArray[np.uint8]:
    expected = HASHES[name][file]
    path = search_path.find(f"{name}/{file}.gz", f"{name}/{file}") or _download(name, file)
    return parse(hashes.read(path, expected))


def _download(name: str, file: str) -> Path:
    url = f"{URLS[name]}/{file}.gz"
    try:
        packed = download.fetch(url)
    except download.UnreachableError as error:
        raise search_path.absent(f"{name}/{file}.gz", str(error)) from error
    hashes.verify(packed, url, PACKED[name][file])
    path = search_path.cache() / name / f"{file}.gz"
    download.store(path, packed)
    return path


def parse(content: bytes) -> NDArray[np.uint8]:
    """Bytes of an idx file of unsigned bytes to an array.

    The header is big-endian: two zero bytes, the type (8), the number of dimensions, then the length
    of each as 32 bits.
    """
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
