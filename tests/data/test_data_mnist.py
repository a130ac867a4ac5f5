"""Finding, checking and downloading files, on a small stand-in for MNIST."""

import gzip
import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coset.core.errors import DataError
from coset.data import DataSet, cifar, download, hashes, load, mnist, search_path

URLS = [*mnist.URLS.values(), cifar.URL]  # before tests put a folder there
GENERATOR = np.random.default_rng(0)
IMAGES = {part: GENERATOR.integers(0, 256, (n, 28, 28), np.uint8) for part, n in (("train", 30), ("t10k", 20))}
LABELS = {part: GENERATOR.integers(0, 10, len(images), np.uint8) for part, images in IMAGES.items()}


def contents() -> dict[str, bytes]:
    sums_of_files = {}
    for part in IMAGES:
        for kind, array in (("images-idx3", IMAGES[part]), ("labels-idx1", LABELS[part])):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            sums_of_files[f"{part}-{kind}-ubyte"] = header + array.tobytes()
    return sums_of_files


@pytest.fixture(autouse=True)
def expected(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The stand-in's hashes, in place of MNIST's."""
    sums = {name: "sha256:" + hashlib.sha256(content).hexdigest() for name, content in contents().items()}
    monkeypatch.setitem(mnist.HASHES, "mnist", sums)
    packed = {name: "sha256:" + hashlib.sha256(pack(content)).hexdigest() for name, content in contents().items()}
    monkeypatch.setitem(mnist.PACKED, "mnist", packed)
    return sums


def pack(content: bytes) -> bytes:
    """As its author packed it."""
    return gzip.compress(content, mtime=0)


def write(folder: Path, packed: bool = True) -> Path:
    folder.mkdir(parents=True)
    for name, content in contents().items():
        if packed:
            (folder / f"{name}.gz").write_bytes(pack(content))
        else:
            (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def mnist_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder mnist of good files under COSET_DATA."""
    monkeypatch.setenv("COSET_DATA", str(tmp_path / "given"))
    return write(tmp_path / "given" / "mnist")


def assert_right(data: DataSet) -> None:
    for split, part in ((data.train, "train"), (data.test, "t10k")):
        pixels = torch.tensor(IMAGES[part]).unsqueeze(1).float()
        torch.testing.assert_close(split.inputs, (pixels / 255 - 0.1307) / 0.3081)
        assert split.targets.tolist() == LABELS[part].tolist()


def test_reads_packed_files(mnist_folder: Path) -> None:
    assert_right(load("mnist"))


def test_reads_plain_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSET_DATA", str(tmp_path / "given"))
    write(tmp_path / "given" / "mnist", packed=False)
    assert_right(load("mnist"))


def test_reads_the_system_folder() -> None:
    write(search_path.SYSTEM / "mnist")
    assert_right(load("mnist"))


def test_folders_are_tried_in_order(mnist_folder: Path) -> None:
    name = "mnist/train-labels-idx1-ubyte.gz"
    for folder in (search_path.cache(), search_path.SYSTEM):
        write(folder / "mnist")
    assert search_path.find(name) == mnist_folder.parent / name
    (mnist_folder.parent / name).unlink()
    assert search_path.find(name) == search_path.cache() / name
    (search_path.cache() / name).unlink()
    assert search_path.find(name) == search_path.SYSTEM / name
    (search_path.SYSTEM / name).unlink()
    assert search_path.find(name) is None


def test_a_mistyped_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSET_DATA", "/no/such/folder")
    with pytest.raises(DataError, match="COSET_DATA is /no/such/folder, which is not a folder"):
        load("mnist")


@pytest.mark.parametrize("level", [0, 1])
def test_another_gzip_of_the_same_content_is_good(mnist_folder: Path, level: int) -> None:
    name = "t10k-images-idx3-ubyte"
    (mnist_folder / f"{name}.gz").write_bytes(gzip.compress(contents()[name], level, mtime=7))
    assert_right(load("mnist"))


def test_a_wrong_content_is_named_with_both_hashes(mnist_folder: Path, expected: dict[str, str]) -> None:
    name = "train-images-idx3-ubyte"
    wrong = bytearray(contents()[name])
    wrong[-1] ^= 1
    (mnist_folder / f"{name}.gz").write_bytes(gzip.compress(wrong))
    with pytest.raises(DataError) as caught:
        load("mnist")
    message = str(caught.value)
    assert str(mnist_folder / f"{name}.gz") in message
    assert expected[name].removeprefix("sha256:") in message
    assert hashlib.sha256(wrong).hexdigest() in message


@pytest.mark.parametrize("length", [0, 5, 300])
def test_a_half_written_file_is_named(mnist_folder: Path, length: int) -> None:
    path = mnist_folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz (is damaged or only half|should have)"):
        load("mnist")


def test_each_file_is_checked_once_until_it_changes(mnist_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    verify = hashes.verify

    def counts(content: bytes, name: str, expected: str) -> None:
        checked.append(name)
        verify(content, name, expected)

    monkeypatch.setattr(hashes, "verify", counts)
    load("mnist")
    assert len(checked) == 4
    load("mnist")
    assert len(checked) == 4
    changed = mnist_folder / "train-labels-idx1-ubyte.gz"
    changed.write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match="should have sha256"):
        load("mnist")
    assert checked[4:] == [str(changed)]


def test_a_failed_check_is_not_remembered(mnist_folder: Path) -> None:
    (mnist_folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    for _ in range(2):
        with pytest.raises(DataError, match="should have sha256"):
            load("mnist")


def test_what_is_missing_is_downloaded_once(mnist_folder: Path, net: Path) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    (mnist_folder / name).rename(net / name)
    assert_right(load("mnist"))
    assert [path.name for path in (search_path.cache() / "mnist").iterdir()] == [name]
    (net / name).unlink()
    assert_right(load("mnist"))


def test_a_bad_download_leaves_nothing(mnist_folder: Path, net: Path) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    (mnist_folder / name).unlink()
    another_gzip = gzip.compress(contents()[name[:-3]], mtime=7)
    for bad in (pack(b"something else"), b"<html>", pack(contents()[name[:-3]])[:-9], another_gzip):
        (net / name).write_bytes(bad)
        with pytest.raises(DataError, match=name):
            load("mnist")
        assert not search_path.cache().exists()


def test_what_is_downloaded_is_unpacked_after_its_hash_is_right(
    mnist_folder: Path, net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(packed: bytes, name: str) -> bytes:
        raise AssertionError(name)

    monkeypatch.setattr(hashes, "unpack", unpack)
    name = "train-images-idx3-ubyte.gz"  # the first that is read
    (mnist_folder / name).unlink()
    (net / name).write_bytes(pack(b"something else"))
    with pytest.raises(DataError, match=f"{name} should have sha256"):
        load("mnist")


def test_a_few_bytes_do_not_unpack_to_any_number(mnist_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "LARGEST", 2**20)
    (mnist_folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(2**21)))
    with pytest.raises(DataError, match=r"holds more than 1 MiB, and no file of data does"):
        load("mnist")


def test_data_come_over_https() -> None:
    assert all(url.startswith("https://") for url in URLS)


def test_offline_is_one_sentence(mnist_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on the discard port of this machine.
    monkeypatch.setitem(mnist.URLS, "mnist", "http://127.0.0.1:9/mnist")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (mnist_folder / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError) as caught:
        load("mnist")
    message = str(caught.value)
    assert message.startswith(f"mnist/train-images-idx3-ubyte.gz is in none of {mnist_folder.parent}, ")
    assert "http://127.0.0.1:9/mnist/train-images-idx3-ubyte.gz could not be downloaded" in message
    assert "set COSET_DATA" in message
    assert "\n" not in message


def test_a_download_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(url: str, timeout: float) -> Any:
        assert 0 < timeout <= 60
        raise TimeoutError("timed out")

    monkeypatch.setattr("urllib.request.urlopen", silent)
    with pytest.raises(DataError, match=r"could not be downloaded \(timed out\)"):
        load("mnist")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match="file cannot be written: No space left"):
        download.store(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["file"]


def test_a_cache_that_cannot_be_made_is_named(net: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the home should be")
    for name, content in contents().items():
        (net / f"{name}.gz").write_bytes(pack(content))
    with pytest.raises(DataError, match="cannot be written"):
        load("mnist")
