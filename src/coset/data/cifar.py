"""CIFAR-10 and CIFAR-100, from the python batches of their author or from mosaics."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from coset.data import cifar_mosaic, download, hashes, safe_pickle, search_path
from coset.data.dataset import DataSet
from coset.data.images import Labelled, image_set

URL = "https://www.cs.toronto.edu/~kriz"
ARCHIVE_HASHES = {
    "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
    "cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85",
}
HASHES_10 = {
    "cifar-10-batches-py/data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "md5:40351d587109b95175f43aff81a1287e",
}
HASHES_100 = {
    "cifar-100-python/train": "md5:16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
    "cifar-100-python/meta": "md5:7973b15100ade9c7d40fb424638fde48",
}

CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GROUPS_100 = (
    *("aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables"),
    *("household_electrical_devices", "household_furniture", "insects", "large_carnivores"),
    *("large_man-made_outdoor_things", "large_natural_outdoor_scenes", "large_omnivores_and_herbivores"),
    *("medium_mammals", "non-insect_invertebrates", "people", "reptiles", "small_mammals", "trees"),
    *("vehicles_1", "vehicles_2"),
)
"""The 20 coarse classes, as the release names them."""


def cifar10(flatten: bool) -> DataSet:
    """CIFAR-10: 50000 + 10000 colour images of 32x32, ten classes."""
    mosaics = _mosaics(HASHES_10, cifar_mosaic.HASHES_10)
    if mosaics is not None:
        train, test = cifar_mosaic.labelled(mosaics, "y")
    else:
        *batches, last = _obtain("cifar-10-python.tar.gz", HASHES_10, cifar_mosaic.HASHES_10)
        parts = [_batch(path, HASHES_10, b"labels") for path in batches]
        train = (np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
        test = _batch(last, HASHES_10, b"labels")
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return image_set("cifar10", train, test, CLASSES_10, mean, std, flatten=flatten)


def cifar100(flatten: bool, coarse: bool) -> DataSet:
    """CIFAR-100: 50000 + 10000 colour images of 32x32, 100 classes, or their 20 groups if `coarse`."""
    kind = "coarse" if coarse else "fine"
    mosaics = _mosaics(HASHES_100, cifar_mosaic.HASHES_100)
    if mosaics is not None:
        train, test = cifar_mosaic.labelled(mosaics, kind)
        classes = GROUPS_100 if coarse else cifar_mosaic.class_names(mosaics[-1])
    else:
        *parts, meta = _obtain("cifar-100-python.tar.gz", HASHES_100, cifar_mosaic.HASHES_100)
        train, test = (_batch(path, HASHES_100, f"{kind}_labels".encode()) for path in parts)
        names = safe_pickle.parse(hashes.read(meta, HASHES_100["cifar-100-python/meta"]), str(meta))
        classes = [name.decode() for name in names[f"{kind}_label_names".encode()]]
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return image_set("cifar100", train, test, classes, mean, std, flatten=flatten)


def _mosaics(batches: Collection[str], pictures: Collection[str]) -> list[Path] | None:
    """The mosaics, if they are here and the batches, which are the release itself, are not."""
    return None if search_path.find_all(batches) is not None else search_path.find_all(pictures)


def _batch(path: Path, expected: dict[str, str], labels: bytes) -> Labelled:
    """Images and the labels under the key `labels`, of one python batch."""
    content = hashes.read(path, expected[f"{path.parent.name}/{path.name}"])
    batch = safe_pickle.parse(content, str(path))
    return batch[b"data"].reshape(-1, 3, 32, 32), np.array(batch[labels], dtype=np.uint8)


def _obtain(archive: str, names: Collection[str], otherwise: Collection[str]) -> list[Path]:
    """Paths of the batches, from the archive on the net if they are nowhere here.

    `otherwise` names the files that would have done as well.
    """
    paths = search_path.find_all(names)
    if paths is not None:
        return paths
    url = f"{URL}/{archive}"
    try:
        packed = download.fetch(url)
    except download.UnreachableError as error:
        raise search_path.absent(_lacking(names, otherwise), str(error)) from error
    hashes.verify(packed, url, ARCHIVE_HASHES[archive])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for name in names:
            member = tar.extractfile(name)
            assert member is not None, "a verified archive holds its batches as files"
            download.store(search_path.cache() / name, member.read())
    return [search_path.cache() / name for name in names]


def _lacking(*layouts: Collection[str]) -> str:
    """The first missing file of the layout of which most is here, which is the one to complete."""
    fullest = max(layouts, key=lambda names: sum(search_path.find(name) is not None for name in names))
    return next(name for name in fullest if search_path.find(name) is None)
