"""Tiny ImageNet: 200 classes of ImageNet in small, as JPEG files in folders or in the zip they come in."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coset.core.errors import DataError
from coset.core.extras import require
from coset.data import search_path
from coset.data.dataset import DataSet
from coset.data.images import Labelled, image_set

FOLDER = "tiny-imagenet-200"

_CLASSES, _SIDE = 200, 64
_DAMAGE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def tiny_imagenet(flatten: bool) -> DataSet:
    """Tiny ImageNet: 100000 + 10000 colour images of 64x64, 200 classes; the validation images are the test set.

    Targets count the classes in the order of their WordNet ids, as torchvision's ImageFolder does. The training
    inputs take 4.9 GB, the test inputs 0.5 GB, and their pixels 1.4 GB more while loading. Fewer images will do, if
    each class of `wnids.txt` has some and each validation image has a line in `val_annotations.txt`.
    """
    source = _source()
    if source is None:
        raise search_path.absent(f"{FOLDER}.zip (or {FOLDER}/wnids.txt, unpacked)", "it is not downloaded by itself")
    if source.suffix == ".txt":
        return _read(_Folder(source.parent), flatten)
    try:
        packed = zipfile.ZipFile(source)
    except _DAMAGE as error:
        raise DataError(f"{source} is damaged or only half written ({error}): fetch it again") from error
    with packed:
        return _read(_Archive(source, packed), flatten)


def present() -> bool:
    """Whether its files are there, as far as their names say."""
    return _source() is not None


def _source() -> Path | None:
    return search_path.find(f"{FOLDER}/wnids.txt", f"{FOLDER}.zip")


@dataclass(frozen=True)
class _Folder:
    """The files under a folder, by their path in it."""

    root: Path

    def name(self, file: str) -> str:
        return str(self.root / file)

    def pictures(self, folder: str) -> list[str]:
        """The JPEG files in `folder`, sorted; none if there is no such folder."""
        return sorted(f"{folder}/{path.name}" for path in (self.root / folder).glob("*.JPEG"))

    def read(self, file: str) -> bytes:
        try:
            return (self.root / file).read_bytes()
        except OSError as error:
            raise DataError(f"{self.name(file)} cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class _Archive:
    """The same, of the folder in a zip."""

    path: Path
    packed: zipfile.ZipFile

    def name(self, file: str) -> str:
        return f"{FOLDER}/{file} in {self.path}"

    def pictures(self, folder: str) -> list[str]:
        return sorted(self._pictures.get(folder, []))

    def read(self, file: str) -> bytes:
        try:
            return self.packed.read(f"{FOLDER}/{file}")
        except KeyError as error:
            raise DataError(f"{self.name(file)} is missing: fetch the archive again") from error
        except _DAMAGE as error:
            raise DataError(f"{self.name(file)} is damaged ({error}): fetch the archive again") from error

    # Grouped once: to go through all names for each of the classes would take minutes.
    @cached_property
    def _pictures(self) -> dict[str, list[str]]:
        groups = defaultdict(list)
        for name in self.packed.namelist():
            file = name.removeprefix(f"{FOLDER}/")
            if file.endswith(".JPEG"):
                groups[file.rpartition("/")[0]].append(file)
        return groups


def _read(files: _Folder | _Archive, flatten: bool) -> DataSet:
    ids = _ids(files)
    words = {wnid: word for wnid, _, word in (line.partition("\t") for line in _lines(files, "words.txt"))}
    nameless = next((wnid for wnid in ids if wnid not in words), None)
    if nameless is not None:
        raise DataError(f"{files.name('words.txt')} has no name for {nameless}, which wnids.txt lists")
    return image_set(
        "tiny-imagenet",
        _train(files, ids),
        _test(files, ids),
        [words[wnid] for wnid in ids],
        (0.4802, 0.4481, 0.3975),
        (0.2770, 0.2691, 0.2821),
        flatten=flatten,
    )


def _ids(files: _Folder | _Archive) -> list[str]:
    """The WordNet ids of the classes, sorted."""
    ids = _lines(files, "wnids.txt")
    if not ids or len(ids) > _CLASSES or len(ids) != len(set(ids)):
        raise DataError(f"{files.name('wnids.txt')} must list 1 to {_CLASSES} different classes, one on each line")
    return sorted(ids)


def _train(files: _Folder | _Archive, ids: list[str]) -> Labelled:
    names: list[str] = []
    labels: list[int] = []
    for label, wnid in enumerate(ids):
        folder = f"train/{wnid}/images"
        pictures = files.pictures(folder)
        if not pictures:
            raise DataError(f"{files.name(folder)} holds no JPEG file, but wnids.txt lists {wnid}")
        names += pictures
        labels += [label] * len(pictures)
    return _pixels(files, names), np.array(labels, dtype=np.uint8)


def _test(files: _Folder | _Archive, ids: list[str]) -> Labelled:
    annotations = "val/val_annotations.txt"
    classes = {wnid: label for label, wnid in enumerate(ids)}
    labels: dict[str, int] = {}
    for line in _lines(files, annotations):
        # After the file and its class come the corners of a box.
        file, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in classes:
            raise DataError(f"{files.name(annotations)} gives {file} the class {wnid!r}, which wnids.txt does not list")
        labels[f"val/images/{file}"] = classes[wnid]
    if not labels:
        raise DataError(f"{files.name(annotations)} names no image")
    unlabelled = next((name for name in files.pictures("val/images") if name not in labels), None)
    if unlabelled is not None:
        raise DataError(f"{files.name(unlabelled)} has no line in {annotations}")
    return _pixels(files, list(labels)), np.array(list(labels.values()), dtype=np.uint8)


def _lines(files: _Folder | _Archive, file: str) -> list[str]:
    """The lines of a text file that are not blank."""
    lines = files.read(file).decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _pixels(files: _Folder | _Archive, names: list[str]) -> NDArray[np.uint8]:
    """The images (n, 3, 64, 64)."""
    pixels = np.empty((len(names), 3, _SIDE, _SIDE), dtype=np.uint8)
    for row, file in zip(pixels, names, strict=True):
        row[:] = _decode(files.read(file), files.name(file))
    return pixels


def _decode(content: bytes, name: str) -> NDArray[np.uint8]:
    """A JPEG file, in colour or grey, to pixels (3, 64, 64); `name` is for the error."""
    image = require("PIL.Image", "data")
    try:
        with image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
            if picture.size != (_SIDE, _SIDE):
                width, height = picture.size
                raise DataError(f"{name} is an image of {width}x{height}, not {_SIDE}x{_SIDE}")
            return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise DataError(f"{name} is damaged or not a JPEG file: fetch it again") from error
