"""Safetensors by offset: beside the format's own library, and of files larger than memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from coset.core.checkpoint import DTYPES, Shard, write_stream
from coset.core.errors import StateError

TENSORS = {
    **{f"of {code}": torch.arange(6).reshape(2, 3).to(dtype) for code, dtype in DTYPES.items()},
    "one": torch.tensor(3.5),
    "none": torch.zeros(0, 4),
    "": torch.ones(5, dtype=torch.int8),
    "größe": torch.ones(1, 1, 1, dtype=torch.float16),
}
LAYOUT = {name: (x.dtype, tuple(x.shape)) for name, x in TENSORS.items()}


def test_both_libraries_read_what_both_write(tmp_path: Path) -> None:
    own, other = tmp_path / "own.safetensors", tmp_path / "other.safetensors"
    write_stream(own, LAYOUT, TENSORS.__getitem__, {"a": "ü\n"})
    save_file(TENSORS, other, {"format": "pt", "a": "ü\n"})
    for file in (own, other):
        shard, reference = Shard(file), load_file(file)
        assert shard.metadata == {"format": "pt", "a": "ü\n"} and shard.extents.keys() == reference.keys()
        for name, x in reference.items():
            y = shard.read(name)
            assert y.dtype == x.dtype == TENSORS[name].dtype and y.shape == x.shape
            assert y.flatten().view(torch.uint8).equal(x.flatten().view(torch.uint8))


def test_conjugate_views_are_written_as_what_they_are(tmp_path: Path) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    write_stream(tmp_path / "x.safetensors", {"x": (x.dtype, (2,))}, lambda name: x)
    assert load_file(tmp_path / "x.safetensors")["x"].equal(x.resolve_conj())


def of_header(header: object, content: bytes = bytes(24)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
DAMAGED = {
    "nothing": b"",
    "seven bytes": bytes(7),
    "a header that is longer than the file": (2**63).to_bytes(8, "little") + b"{}",
    "a header without an end": of_header({"x": ENTRY})[:40],
    "a header that is a list": of_header([]),
    "no JSON": of_header(b"{'x': 1}"),
    "no UTF-8": of_header(b'{"\xff": 1}'),
    "deep JSON": of_header(b"[" * 100_000),
    "a number of 5,000 digits": of_header(
        b'{"x": {"dtype": "F32", "shape": [' + b"1" * 5000 + b'], "data_offsets": 0}}'
    ),
    "half a surrogate pair": of_header(b'{"\\ud800": ' + json.dumps(ENTRY).encode() + b"}"),
    "a name twice": of_header(b'{"x": %b, "x": %b}' % ((json.dumps(ENTRY).encode(),) * 2)),
    "metadata that is no text": of_header({"__metadata__": {"a": 1}, "x": ENTRY}),
    "an entry that is a list": of_header({"x": []}),
    "an entry without a shape": of_header({"x": {"dtype": "F32", "data_offsets": [0, 24]}}),
    "an unknown field": of_header({"x": ENTRY | {"more": 1}}),
    "a dtype that is a number": of_header({"x": ENTRY | {"dtype": 1}}),
    "a negative size": of_header({"x": ENTRY | {"shape": [-2, -3]}}),
    "a size that is a fraction": of_header({"x": ENTRY | {"shape": [2.0, 3]}}),
    "a size that is true": of_header({"x": ENTRY | {"shape": [True, 6]}}),
    "sizes that overflow": of_header({"x": ENTRY | {"shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}}, b""),
    "a shape of too many bytes": of_header({"x": ENTRY | {"shape": [2, 4]}}),
    "offsets the other way": of_header({"x": ENTRY | {"data_offsets": [24, 0]}}),
    "offsets beyond the file": of_header({"x": ENTRY}, bytes(20)),
    "bytes of no tensor": of_header({"x": ENTRY}, bytes(25)),
    "a gap": of_header({"x": ENTRY | {"data_offsets": [8, 32]}}, bytes(32)),
    "tensors over one another": of_header({"x": ENTRY, "y": ENTRY}),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    with pytest.raises(StateError, match=r"x\.safetensors is not a complete safetensors file: .*\.$"):
        Shard(file)


def test_a_dtype_that_torch_lacks_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(of_header({"x": ENTRY | {"dtype": "F4"}}))
    with pytest.raises(StateError, match=r"'x' .* has dtype F4, which torch cannot hold"):
        Shard(file)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(StateError, match="it is no plain file"):
        Shard(tmp_path / "x.safetensors")


def test_whatever_the_library_of_the_format_refuses_is_refused(tmp_path: Path) -> None:
    """Bytes of a file changed at random: what both take, both read alike."""
    whole, file = tmp_path / "whole.safetensors", tmp_path / "x.safetensors"
    some = {name: TENSORS[name] for name in ("of F32", "of BF16", "of BOOL", "one", "none")}
    save_file(some, whole, {"a": "b"})
    content, source = whole.read_bytes(), random.Random(0)
    length = int.from_bytes(content[:8], "little")
    verdicts = set()
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(source.randint(1, 3)):
            changed[source.randrange(8 + length)] = source.choice(b'0123456789{}[],:"F \\-.\x00\xff')
        file.write_bytes(changed)
        try:
            with safe_open(file, "pt") as reference:
                shapes = {name: reference.get_slice(name).get_shape() for name in reference.keys()}  # noqa: SIM118
        except SafetensorError:
            with pytest.raises(StateError):
                Shard(file)
            verdicts.add(False)
            continue
        try:
            shard = Shard(file)
        except StateError:
            continue  # stricter where readers differ
        verdicts.add(True)
        assert {name: list(extent.shape) for name, extent in shard.extents.items()} == shapes
    assert verdicts == {True, False}


def sparse(file: Path, count: int, size: int) -> None:
    """A file of `count` tensors of `size` bytes, which takes no room on the disk; the last number of the last is 7."""
    header = {
        f"w{k}": {"dtype": "U8", "shape": [size], "data_offsets": [k * size, (k + 1) * size]} for k in range(count)
    }
    file.write_bytes(of_header(header, b""))
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size + count * size)
        opened.seek(-1, os.SEEK_END)
        opened.write(b"\7")


READ = """
import resource, sys
import coset
from coset.core.memory import peak_mib
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), -1))
state = coset.open_state(sys.argv[1])
before = peak_mib()
last = list(state)[-1]
assert state.shape(last).numel() == int(sys.argv[3]) and int(state[last][-1]) == 7, state[last][-1]
for name in list(state)[:3]:
    assert not state[name].any()
print(peak_mib() - before)
"""


def peak(file: Path, room: int, size: int) -> float:
    """MiB that tensors of a file take, in a process with so many bytes of memory more than torch itself."""
    words = [sys.executable, "-c", READ, str(file), str(room), str(size)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no account of memory")
def test_a_file_larger_than_memory_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    sparse(tmp_path / "x.safetensors", 200, 2**24)  # 3.1 GiB
    assert peak(tmp_path / "x.safetensors", 2**28, 2**24) < 64


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no account of memory")
def test_a_file_larger_than_the_memory_of_the_machine_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sparse(tmp_path / "x.safetensors", 2 * memory // 2**26, 2**26)
    assert peak(tmp_path / "x.safetensors", 2**29, 2**26) < 256


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, largest_file: Callable[[int], None]) -> None:
    file = tmp_path / "x.safetensors"
    write_stream(file, LAYOUT, TENSORS.__getitem__)
    before = file.read_bytes()
    largest_file(4000)
    with pytest.raises(OSError, match="File too large"):
        write_stream(file, {"x": (torch.float32, (5000,))}, lambda name: torch.zeros(5000))
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
