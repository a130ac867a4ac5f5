import hashlib
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coset.core.errors import DataError
from coset.data import DataSet, cifar, cifar_mosaic, hashes, load, safe_pickle, search_path


def python2_pickle(value: dict[bytes, Any]) -> bytes:
    """What Python 2's cPickle wrote for a dict of strings, lists, small integers and arrays (n, 3072)."""
    memo = 0

    def put(code: bytes) -> bytes:
        nonlocal memo
        memo += 1
        return code + (b"q" + bytes([memo]) if memo < 256 else b"r" + struct.pack("<I", memo))

    def encode(item: Any) -> bytes:
        if isinstance(item, bytes):
            return put(b"U" + bytes([len(item)]) + item)
        if isinstance(item, int):
            return b"K" + bytes([item])
        if isinstance(item, list):
            groups = [put(b"]")]
            for start in range(0, len(item), 1000):
                groups += [b"(", *(encode(part) for part in item[start : start + 1000]), b"e"]
            return b"".join(groups)
        shape = b"M" + struct.pack("<H", len(item)) + b"M\x00\x0c\x86"
        parts = [
            put(b"cnumpy.core.multiarray\n_reconstruct\n"),
            put(b"cnumpy\nndarray\n"),
            put(b"K\x00\x85U\x01b\x87R"),
            put(b"(K\x01" + shape + b"cnumpy\ndtype\n"),
            put(b"U\x02u1K\x00K\x01\x87R"),
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T",
            struct.pack("<I", item.nbytes) + item.tobytes() + b"tb",
        ]
        return b"".join(parts)

    pairs = [put(b"\x80\x02}") + b"("]
    for key, item in value.items():
        pairs += [encode(key), encode(item)]
    return b"".join(pairs) + b"u."


GENERATOR = np.random.default_rng(0)


def batch(n: int, **labels: int) -> dict[bytes, Any]:
    """A small batch with random pixels and, for each name, random labels below a number."""
    value: dict[bytes, Any] = {b"data": GENERATOR.integers(0, 256, (n, 3072), np.uint8)}
    return value | {name.encode(): GENERATOR.integers(0, classes, n).tolist() for name, classes in labels.items()}


BATCHES_10 = {name: batch(7, labels=10) for name in cifar.HASHES_10}
BATCHES_100 = {
    "cifar-100-python/train": batch(9, fine_labels=100, coarse_labels=20),
    "cifar-100-python/test": batch(5, fine_labels=100, coarse_labels=20),
    "cifar-100-python/meta": {
        b"fine_label_names": [b"fine %d" % i for i in range(100)],
        b"coarse_label_names": [b"coarse %d" % i for i in range(20)],
    },
}


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Small batches, whose hashes are expected in place of CIFAR's."""
    files = {name: python2_pickle(value) for name, value in (BATCHES_10 | BATCHES_100).items()}
    for name, content in files.items():
        table = cifar.HASHES_10 if name in cifar.HASHES_10 else cifar.HASHES_100
        monkeypatch.setitem(table, name, md5(content))
    return files


@pytest.fixture
def cached(small: dict[str, bytes]) -> Path:
    """The small batches as files in the cache."""
    for name, content in small.items():
        path = search_path.cache() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return search_path.cache()


def assert_images(inputs: torch.Tensor, data: np.ndarray, mean: list[float], std: list[float]) -> None:
    """The inputs are the normalized images of rows (red plane, green plane, blue plane)."""
    for channel in range(3):
        plane = torch.tensor(data[:, 1024 * channel : 1024 * (channel + 1)]).reshape(-1, 32, 32)
        expected = (plane.float() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(inputs[:, channel], expected)


def test_cifar10_joins_the_batches_in_order(cached: Path) -> None:
    data = load("cifar10")
    *train, test = BATCHES_10.values()
    mean, std = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
    assert_images(data.train.inputs, np.concatenate([part[b"data"] for part in train]), mean, std)
    assert_images(data.test.inputs, test[b"data"], mean, std)
    assert data.train.targets.tolist() == [label for part in train for label in part[b"labels"]]
    assert data.test.targets.tolist() == test[b"labels"]
    assert data.classes is not None
    assert data.classes[3] == "cat"
    assert load("cifar10", flatten=True).train.inputs.shape == (35, 3072)


@pytest.mark.parametrize(("coarse", "kind", "classes"), [(False, "fine", 100), (True, "coarse", 20)])
def test_cifar100_has_fine_labels_unless_asked(cached: Path, coarse: bool, kind: str, classes: int) -> None:
    data = load("cifar100", coarse=coarse) if coarse else load("cifar100")
    train = BATCHES_100["cifar-100-python/train"]
    assert_images(data.train.inputs, train[b"data"], [0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762])
    assert data.train.targets.tolist() == train[f"{kind}_labels".encode()]
    assert data.classes == tuple(f"{kind} {i}" for i in range(classes))


def test_a_wrong_batch_is_refused_before_it_is_unpickled(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cached / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({}))
    monkeypatch.setattr(safe_pickle, "parse", lambda content, name: pytest.fail(f"unpickled {name}"))
    with pytest.raises(DataError, match="data_batch_1 should have md5"):
        load("cifar10")


def test_the_archive_is_downloaded_and_unpacked_once(
    small: dict[str, bytes], net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = net / "cifar-100-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in small.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    with pytest.raises(DataError, match=r"cifar-100-python\.tar\.gz should have md5"):
        load("cifar100")
    assert not search_path.cache().exists()
    monkeypatch.setitem(cifar.ARCHIVE_HASHES, archive.name, md5(archive.read_bytes()))
    first = load("cifar100")
    archive.unlink()
    assert torch.equal(load("cifar100").train.inputs, first.train.inputs)
    assert first.test.targets.tolist() == BATCHES_100["cifar-100-python/test"][b"fine_labels"]
    stored = sorted(path.name for path in search_path.cache().rglob("*") if path.is_file())
    assert stored == ["meta", "test", "train"]


def test_a_missing_batch_is_named(cached: Path) -> None:
    (cached / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(DataError, match=r"^cifar-10-batches-py/data_batch_4 is in none of .*could not be down"):
        load("cifar10")


def test_of_incomplete_mosaics_the_missing_one_is_named() -> None:
    folder = search_path.cache() / "cifar-10"
    folder.mkdir(parents=True)
    for name in cifar_mosaic.HASHES_10:
        (folder / Path(name).name).touch()
    (folder / "data_batch_5.webp").unlink()
    with pytest.raises(DataError, match=r"^cifar-10/data_batch_5\.webp is in none of .*could not be down"):
        load("cifar10")


class Attack:
    """Unpickling it with the standard library calls a function of the attacker's choice."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_cannot_run_code(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "ran"
    attacks = (Attack(os.mkdir, str(target)), Attack(exec, f"import os; os.mkdir({str(target)!r})"))
    for attack in attacks:
        content = pickle.dumps({b"data": attack}, protocol)
        with pytest.raises(DataError, match=r"batch is not a plain pickle.* was not loaded: it names "):
            safe_pickle.parse(content, "batch")
        assert not target.exists()
    pickle.loads(content)
    assert target.exists(), "the attack itself must work, or the test proves nothing"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}",
        b"not a pickle",
        b"cnumpy\nload\n(U\x03abctR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(K\x01K\x02tR.",
        b"cnumpy\nndarray.tofile\n.",
        b"cbuiltins\ngetattr\n.",
        b"]q\x01.",
    ],
)
def test_broken_or_odd_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^batch "):
        safe_pickle.parse(content, "batch")


@pytest.fixture(scope="module")
def real(real_data: Path) -> DataSet:
    if not (real_data / "cifar-10" / "labels.npz").is_file():
        pytest.skip("the mosaics of CIFAR-10 are not here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COSET_DATA", str(real_data))
        return load("cifar10")


def test_the_mosaics_are_normalized(real: DataSet) -> None:
    assert real.train.inputs.shape == (50000, 3, 32, 32)
    assert real.test.inputs.shape == (10000, 3, 32, 32)
    assert real.train.targets.bincount().tolist() == [5000] * 10
    assert real.test.targets.bincount().tolist() == [1000] * 10
    # The published constants are rounded to four digits.
    std, mean = torch.std_mean(real.train.inputs, dim=(0, 2, 3))
    assert mean.abs().max() < 3e-4
    assert (std - 1).abs().max() < 3e-4


def test_the_mosaics_are_the_canonical_release(real: DataSet, real_data: Path) -> None:
    """Rebuild a canonical batch from what was loaded: its md5 is that of the release."""
    pixels = (255 * real.input_scale.invert(real.train.inputs[10000:20000])).round().to(torch.uint8)
    with np.load(real_data / "cifar-10" / "labels.npz") as labels:
        names = labels["filenames_train"][10000:20000].tolist()
    rebuilt = python2_pickle(
        {
            b"batch_label": b"training batch 2 of 5",
            b"labels": real.train.targets[10000:20000].tolist(),
            b"data": pixels.reshape(10000, 3072).numpy(),
            b"filenames": names,
        }
    )
    hashes.verify(rebuilt, "data_batch_2", cifar.HASHES_10["cifar-10-batches-py/data_batch_2"])
    read = safe_pickle.parse(rebuilt, "data_batch_2")
    assert np.array_equal(read[b"data"], pixels.reshape(10000, 3072).numpy())


def test_a_wrong_mosaic_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10" / "test_batch.webp"
    path.parent.mkdir()
    path.write_bytes(b"RIFF")
    with pytest.raises(DataError, match=r"test_batch\.webp should have sha256"):
        cifar_mosaic.batch(path)


def test_the_mosaics_of_cifar100(use_real: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In an order of their own, so that only what all images have in common can be compared with the release."""
    use_real("cifar-100/labels.npz")
    data = load("cifar100")
    assert data.train.inputs.shape == (50000, 3, 32, 32)
    assert data.train.targets.bincount().tolist() == [500] * 100
    assert data.test.targets.bincount().tolist() == [100] * 100
    std, mean = torch.std_mean(data.train.inputs, dim=(0, 2, 3))  # the published constants are rounded
    assert mean.abs().max() < 3e-4
    assert (std - 1).abs().max() < 3e-4
    blank = np.zeros((10000, 3, 32, 32), np.uint8)
    monkeypatch.setattr(cifar_mosaic, "batch", lambda path: blank)  # the pictures are those of above
    groups = load("cifar100", coarse=True)
    assert groups.train.targets.bincount().tolist() == [2500] * 20
    assert data.classes is not None and groups.classes is not None
    members: dict[str, set[str]] = {}
    for fine, coarse in zip(data.test.targets.tolist(), groups.test.targets.tolist(), strict=True):
        members.setdefault(groups.classes[coarse], set()).add(data.classes[fine])
    assert members["trees"] == {"maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"}
    assert members["fish"] == {"aquarium_fish", "flatfish", "ray", "shark", "trout"}
    assert {len(names) for names in members.values()} == {5}


def test_the_release_of_cifar100_is_preferred_to_mosaics(cached: Path) -> None:
    folder = cached / "cifar-100"
    folder.mkdir()
    for name in cifar_mosaic.HASHES_100:
        (folder / Path(name).name).touch()
    assert load("cifar100").test.targets.tolist() == BATCHES_100["cifar-100-python/test"][b"fine_labels"]
    (cached / "cifar-100-python" / "train").unlink()
    with pytest.raises(DataError, match=r"labels\.npz should have sha256"):
        load("cifar100")
