import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from coset.core.errors import DataError
from coset.data import load, names, search_path

FOLDER = "tiny-imagenet-200"
# Not sorted, as in the release.
WNIDS = ["n02124075", "n01443537", "n04067472"]
WORDS = {"n01443537": "goldfish, Carassius auratus", "n02124075": "Egyptian cat", "n04067472": "reel"}


def picture(seed: int, *, grey: bool = False, side: int = 64) -> bytes:
    """A JPEG file of smooth random colours, which survive the compression nearly."""
    small = np.random.default_rng(seed).integers(0, 256, (2, 2) if grey else (2, 2, 3), dtype=np.uint8)
    packed = io.BytesIO()
    Image.fromarray(small).resize((side, side)).save(packed, "JPEG", quality=95)
    return packed.getvalue()


def decoded(content: bytes) -> NDArray[np.float64]:
    """Pixels (3, 64, 64) in [0, 1]; of a grey file three times the same."""
    pixels = np.asarray(Image.open(io.BytesIO(content))) / 255
    return np.moveaxis(pixels, 2, 0) if pixels.ndim == 3 else np.stack([pixels] * 3)


def tree() -> dict[str, bytes]:
    """The files of a small set: 3 classes of 3, 2 and 1 images, and 4 validation images, one of them grey."""
    files = {
        "wnids.txt": "".join(f"{wnid}\n" for wnid in WNIDS).encode(),
        "words.txt": b"n00001740\tentity\n" + "".join(f"{k}\t{v}\n" for k, v in WORDS.items()).encode(),
    }
    for k, wnid in enumerate(WNIDS):
        files |= {f"train/{wnid}/{wnid}_boxes.txt": b"not read", f"train/{wnid}/images/.DS_Store": b"not read"}
        for i in range(3 - k):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = picture(10 * k + i, grey=i == 1)
    classes = [WNIDS[0], WNIDS[2], WNIDS[0], WNIDS[1]]
    files["val/val_annotations.txt"] = "".join(
        f"val_{i}.JPEG\t{c}\t0\t3\t9\t9\n" for i, c in enumerate(classes)
    ).encode()
    files |= {f"val/images/val_{i}.JPEG": picture(100 + i, grey=i == 2) for i in range(4)}
    return files | {"test/images/test_0.JPEG": b"not read"}


def unpacked(files: dict[str, bytes]) -> Path:
    folder = search_path.cache() / FOLDER
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def zipped(files: dict[str, bytes]) -> Path:
    path = search_path.cache() / f"{FOLDER}.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir(f"{FOLDER}/")
        for name, content in reversed(files.items()):
            packed.writestr(f"{FOLDER}/{name}", content)
    return path


Layout = Callable[[dict[str, bytes]], Path]
LAYOUTS: list[Layout] = [unpacked, zipped]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pixels_and_labels_are_those_of_the_files(layout: Layout) -> None:
    files = tree()
    layout(files)
    data = load("tiny-imagenet")
    assert data.name == "tiny-imagenet"
    assert data.classes == ("goldfish, Carassius auratus", "Egyptian cat", "reel")
    assert data.train.targets.tolist() == [0, 0, 1, 1, 1, 2]
    assert data.test.targets.tolist() == [1, 2, 1, 0]
    train = [
        f"train/{w}/images/{w}_{i}.JPEG"
        for w, count in zip(sorted(WNIDS), (2, 3, 1), strict=True)
        for i in range(count)
    ]
    test = [f"val/images/val_{i}.JPEG" for i in range(4)]
    mean, std = np.array([0.4802, 0.4481, 0.3975]), np.array([0.2770, 0.2691, 0.2821])
    for split, target in ((data.train, train), (data.test, test)):
        assert split.inputs.dtype == torch.float32
        assert split.inputs.shape == (len(target), 3, 64, 64)
        for result, name in zip(split.inputs, target, strict=True):
            expected = (decoded(files[name]) - mean[:, None, None]) / std[:, None, None]
            np.testing.assert_allclose(result, expected, atol=1e-5)


def test_a_folder_and_its_zip_are_the_same_and_can_be_flat() -> None:
    zipped(tree())
    packed = load("tiny-imagenet")
    unpacked(tree())
    result = load("tiny-imagenet", flatten=True)
    assert torch.equal(result.train.inputs, packed.train.inputs.flatten(1))
    assert torch.equal(result.test.inputs, packed.test.inputs.flatten(1))


def test_the_zip_is_not_unpacked_and_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tree())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(path, elsewhere)
    monkeypatch.setenv("COSET_DATA", str(elsewhere))
    load("tiny-imagenet")
    assert list(elsewhere.iterdir()) == [elsewhere / path.name]
    assert not list(search_path.cache().iterdir())


def test_more_than_nine_images_of_a_class_and_other_line_ends_are_fine() -> None:
    files = tree()
    for i in range(12):
        files[f"train/{WNIDS[2]}/images/{WNIDS[2]}_{i}.JPEG"] = picture(i)
    for name in ("wnids.txt", "words.txt", "val/val_annotations.txt"):
        files[name] = files[name].replace(b"\n", b"\r\n") + b"\r\n"
    unpacked(files)
    assert load("tiny-imagenet").train.targets.bincount().tolist() == [2, 3, 12]


def test_it_has_a_name_and_says_where_to_put_it() -> None:
    assert "tiny-imagenet" in names()
    with pytest.raises(DataError, match=r"^tiny-imagenet-200\.zip .*is in none of .*not downloaded.* set COSET_DATA$"):
        load("tiny-imagenet")


TRAIN, VAL = f"train/{WNIDS[0]}/images/{WNIDS[0]}_2.JPEG", "val/images/val_3.JPEG"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (TRAIN, picture(0)[:500], rf"{TRAIN}.* is damaged or not a JPEG file"),
        (TRAIN, b"", rf"{TRAIN}.* is damaged or not a JPEG file"),
        (VAL, b"\x89PNG\r\n\x1a\n", rf"{VAL}.* is damaged or not a JPEG file"),
        (VAL, picture(0, side=32), rf"{VAL}.* is an image of 32x32, not 64x64"),
        (VAL, None, rf"{VAL}.* (cannot be read: No such file|is missing)"),
        ("words.txt", None, r"words\.txt.* (cannot be read: No such file|is missing)"),
        ("words.txt", b"n01443537\tgoldfish\n", r"words\.txt.* has no name for n02124075"),
        ("val/val_annotations.txt", None, r"val_annotations\.txt.* (cannot be read: No such file|is missing)"),
        ("val/val_annotations.txt", b"", r"val_annotations\.txt.* names no image"),
        (
            "val/val_annotations.txt",
            b"val_0.JPEG\tn5\t1\t1\t1\t1",
            r"annotations\.txt.* gives val_0.JPEG the class 'n5'",
        ),
        ("val/val_annotations.txt", b"val_0.JPEG", r"annotations\.txt.* gives val_0.JPEG the class ''"),
        ("val/images/val_4.JPEG", picture(0), r"val_4\.JPEG.* has no line in val/val_annotations"),
        ("wnids.txt", b"\n", r"wnids\.txt.* must list 1 to 200 different classes"),
        ("wnids.txt", b"n01443537\nn01443537\n", r"wnids\.txt.* must list 1 to 200 different classes"),
        ("wnids.txt", b"\n".join(b"n%d" % k for k in range(201)), r"wnids\.txt.* must list 1 to 200 different classes"),
        (f"train/{WNIDS[2]}/images/{WNIDS[2]}_0.JPEG", None, rf"train/{WNIDS[2]}/images.* holds no JPEG file"),
    ],
)
def test_what_is_wrong_is_named(layout: Layout, file: str, content: bytes | None, message: str) -> None:
    files = tree()
    if content is None:
        del files[file]
    else:
        files[file] = content
    layout(files)
    with pytest.raises(DataError, match=message) as caught:
        load("tiny-imagenet")
    assert str(search_path.cache()) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_zip_is_refused() -> None:
    path = zipped(tree())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip is damaged or only half written"):
        load("tiny-imagenet")


def test_a_broken_file_in_a_zip_is_named() -> None:
    path = zipped(tree())
    content = bytearray(path.read_bytes())
    start = content.index(f"{FOLDER}/{TRAIN}".encode()) + len(f"{FOLDER}/{TRAIN}")
    content[start + 100 : start + 200] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^{FOLDER}/{TRAIN} in .*\.zip is damaged .*fetch the archive again$"):
        load("tiny-imagenet")
