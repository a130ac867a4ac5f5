"""Damage to files: of their bytes, of what their JSON says, of their tensors, and of what a path is."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as parse_tensors, save as pack_tensors
from torch import Tensor

LENGTH = 8  # bytes of a safetensors file that say how long its header is

# Raw JSON in the place of a value.
ODD = (
    *("null", "true", "false", "0", "-1", "1", "2", "3", "64", "0.5", "-0.0", "1e308", "-1e308", "1e999", "1e-400"),
    *("NaN", "Infinity", "-Infinity", str(10**25), str(2**63 - 1), str(2**63), str(2**64), str(2**31), "9" * 5000),
    *("100000", "1000000000000", '""', '"x"', '"\\u0000"', '"\\ud800"', '"\\u001b[31m"', '"' + "n" * 100_000 + '"'),
    *("[]", "{}", "[[]]", "[null]", '{"": ""}', "[" * 5000, "[" * 100 + "]" * 100, '{"a":' * 3000, "{", '"'),
    *('"os:system"', '"marker:run"', '"../../x"', '"/etc/passwd"', '"mlp:30-1000000000-2"', '"mlp:30-3-2"', '"gpt"'),
    *('"gpt:depth=1000000000"', '"../good.safetensors"', '"good.safetensors"', '["ab", "ab"]', "[1e308, 1e308]"),
    *(
        "[1000000000, 1000000000]",
        '{"concat": [0, 0]}',
        '["h", "h"]',
        '"__class__"',
        '"F64"',
        '"I8"',
        '"C64"',
        '"BOOL"',
    ),
    *(
        '{"command": "touch ran"}',
        '"{\\"sizes\\": [30, 1000000000, 2]}"',
        '["2x1000000000000"]',
        '["' + "9" * 5000 + '"]',
    ),
)


class Raw(str):
    """Text that stands in JSON as it is."""


def dump(value: Any) -> str:
    """JSON with raw parts, with some keys twice."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        pairs = value.get(PAIRS, list(value.items()))
        return "{" + ",".join(f"{json.dumps(name)}:{dump(inner)}" for name, inner in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    if isinstance(value, Nested):
        return json.dumps(dump(value.value))
    return json.dumps(value)


PAIRS = "\0pairs"  # under which a dict may say its items, some of them twice


class Nested:
    """JSON within a text of JSON."""

    def __init__(self, value: Any) -> None:
        self.value = value


def unfold(value: Any) -> Any:
    """With the texts that are objects of JSON as `Nested`."""
    if isinstance(value, dict):
        return {name: unfold(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [unfold(inner) for inner in value]
    if isinstance(value, str) and value.startswith("{"):
        return Nested(unfold(json.loads(value)))
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with a key of it, nested ones too."""
    if isinstance(value, Nested):
        yield value, "value"
        yield from places(value.value)
    elif isinstance(value, dict | list):
        for key in [key for key in value if key != PAIRS] if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def damage_json(value: Any, rng: random.Random) -> Any:
    """One to three changes somewhere in a value."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = list(places(value))
        if not found:
            return Raw(rng.choice(ODD))
        where, key = rng.choice(found)
        if isinstance(where, Nested):
            where.value = Raw(rng.choice(ODD))
            continue
        inner = where[key]
        kind = rng.randrange(8)
        if kind == 0:
            del where[key]
        elif kind == 1 and isinstance(where, dict):
            where[PAIRS] = [*((n, x) for n, x in where.items() if n != PAIRS), (key, inner)]
        elif kind == 2 and isinstance(where, dict):
            where[rng.choice(("extra", "", "\0", "a" * 10_000, "0.weight"))] = Raw(rng.choice(ODD))
        elif kind == 3 and isinstance(where, list):
            where.extend([inner] * rng.choice((1, 2, 1000)))
        elif kind == 4:
            other, name = rng.choice(found)
            where[key] = copy.deepcopy(other.value if isinstance(other, Nested) else other[name])
        elif kind == 5 and isinstance(inner, int) and not isinstance(inner, bool):
            where[key] = inner + rng.choice((-1, 1, 10**6, 10**12))
        elif kind == 6 and isinstance(inner, str):
            where[key] = rng.choice((inner[:-1], inner + "x", inner.upper(), inner * 1000, f"\x1b[2J{inner}"))
        else:
            where[key] = Raw(rng.choice(ODD))
    return value


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bits flipped, a part cut off, moved, set to zero or added."""
    if not content:
        return rng.randbytes(5)
    data, at = bytearray(content), rng.randrange(len(content))
    near = rng.randrange(min(len(content), 512))  # headers are at the beginning
    kind = rng.randrange(7)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 8))):
            data[rng.choice((near, at))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[rng.choice((near, at)) :]
    elif kind == 2:
        start = rng.randrange(len(content))
        data[at:at] = content[start : start + 64]
    elif kind == 3:
        data[at : at + 16] = bytes(len(data[at : at + 16]))
    elif kind == 4:
        data += rng.randbytes(rng.choice((1, 100, 10_000)))
    elif kind == 5:
        data = bytearray(rng.choice((b"", b"\0", b"{}", b"\xff\xfe", b"PK\x03\x04", rng.randbytes(64))))
    else:
        data[0:LENGTH] = rng.choice((b"\xff" * LENGTH, (2**40).to_bytes(LENGTH, "little"), bytes(LENGTH)))
    return bytes(data)


DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64]


def damage_tensors(tensors: dict[str, Tensor], rng: random.Random) -> dict[str, Tensor]:
    """Other dtypes, shapes, numbers and names."""
    tensors = dict(tensors)
    for name in rng.sample(list(tensors), min(len(tensors), rng.choice((1, 1, 2, len(tensors))))):
        x = tensors[name]
        kind = rng.randrange(10)
        if kind == 0:
            tensors[name] = x.to(rng.choice(DTYPES))
        elif kind == 1:
            shapes = [(-1,), (1, -1), (-1, 1), (1, 1, *x.shape), tuple(reversed(x.shape))]
            tensors[name] = x.reshape(rng.choice(shapes))
        elif kind == 2:
            tensors[name] = rng.choice((torch.empty(0), torch.tensor(1.0), x[:0], x[:1], torch.zeros(0, 10**9)))
        elif kind == 3:
            number = rng.choice((float("nan"), float("inf"), 3e38, -3e38, 1e-45, 0.0, -1.0, 2.0))
            tensors[name] = torch.full_like(x, number) if x.is_floating_point() else torch.full_like(x, 7)
        elif kind == 4:
            x = x.clone()
            x.view(-1)[:1] = float("nan") if x.is_floating_point() else -5
            tensors[name] = x
        elif kind == 5:
            del tensors[name]
        elif kind == 6:
            tensors[rng.choice(("x", f"{name}.x", "\x1b[31m", "n" * 50_000, "", name[1:]))] = tensors.pop(name)
        elif kind == 7:
            tensors[rng.choice(("extra", "scale/x", "mean/extra", "0.extra"))] = x
        elif kind == 8:
            tensors[name] = torch.cat([x.reshape(-1), x.reshape(-1)])
        else:
            tensors[name] = x * rng.choice((-1, 0, 1e30)) if x.is_floating_point() else x + 1
    return {name: x.contiguous().clone() for name, x in tensors.items()}


class Runs:
    """What a pickle calls when it is read by whoever runs what it names."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def damage_pickle(path: Path, rng: random.Random) -> None:
    """Other tensors, other objects, and code."""
    state = torch.load(path, weights_only=True)
    holder = next((x for x in state.values() if isinstance(x, dict)), state)
    name = rng.choice(list(holder))
    x = torch.randn(3, 30)
    odd: list[Any] = [
        *(torch.empty(10**12, device="meta"), x.to_sparse(), x.to_sparse_csr(), torch.zeros(1).expand(10**12)),
        *(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), x.as_strided((3, 30), (0, 0)), x.t(), torch.tensor(1.0)),
        *(x.to(torch.complex64).conj(), x.to(torch.complex128), torch.nn.Parameter(x), x.bool(), None, 3, "text", [x]),
        *({"x": x}, 10**25, float("nan"), b"bytes", torch.Size([1]), x.to(torch.float8_e4m3fn), torch.float32),
        *(Runs(os.system, "touch ran"), Runs(eval, "open('ran', 'w')"), Runs(exec, "open('ran', 'w')")),
        *(Runs(open, "ran", "w"), Runs(torch.zeros, 10**12), Runs(bytearray, 10**12), Runs(os.mkdir, "ran")),
    ]
    kind = rng.randrange(5)
    if kind == 0:
        with path.open("wb") as file:
            pickle.dump({name: rng.choice(odd)}, file)
        return
    if kind == 1:
        holder = damage_tensors({n: v for n, v in holder.items() if isinstance(v, Tensor)} or {"x": x}, rng)
        torch.save(rng.choice((holder, {"state_dict": holder}, [holder])), path)
        return
    if kind == 2:
        holder[rng.choice((3, None, (1, 2), "\x1b[31m", "n" * 50_000))] = rng.choice((x, *odd))
    else:
        holder[name] = rng.choice(odd)
    torch.save(state, path, _use_new_zipfile_serialization=rng.random() < 0.7)


def damage_safetensors(content: bytes, rng: random.Random) -> bytes:
    """The header or what is said beside the tensors, or tensors in a file that is whole."""
    length = int.from_bytes(content[:LENGTH], "little")
    header, body = json.loads(content[LENGTH : LENGTH + length]), content[LENGTH + length :]
    metadata = header.get("__metadata__", {})
    kind = rng.randrange(4)
    if kind == 0:
        return pack_tensors(damage_tensors(parse_tensors(content), rng), metadata)
    if kind == 1:
        text = dump(damage_json(unfold(header), rng)).encode("utf-8", "replace")
        return len(text).to_bytes(LENGTH, "little") + text + body
    if kind == 2:
        return damage_bytes(content, rng)
    said = {name: unfold(text) for name, text in metadata.items() if text.startswith("{")}
    if not said:
        return damage_bytes(content, rng)
    name = rng.choice(list(said))
    said_now = dump(damage_json(said[name].value, rng))
    return pack_tensors(parse_tensors(content), {**metadata, name: said_now})


def damage_path(path: Path, rng: random.Random) -> None:
    """Something else than a file that can be read."""
    path.rename(path.with_name("moved"))
    kind = rng.randrange(7)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to("nowhere")
    elif kind == 3:
        path.symlink_to(path.name)
    elif kind == 4:
        path.symlink_to("/dev/zero")
    elif kind == 5:
        with socket.socket(socket.AF_UNIX) as one:
            here = Path.cwd()
            os.chdir(path.parent)  # such names are short
            one.bind(path.name)
            os.chdir(here)


def damage(target: Path, rng: random.Random) -> None:
    """Damage a file, or one in a folder, in a way of its kind."""
    files = sorted(path for path in target.rglob("*") if path.is_file()) if target.is_dir() else [target]
    path = rng.choice(files)
    kind = rng.random()
    if kind < 0.04:
        damage_path(path, rng)
        return
    content = path.read_bytes()
    if kind < 0.2:
        path.write_bytes(damage_bytes(content, rng))
    elif path.suffix == ".safetensors":
        path.write_bytes(damage_safetensors(content, rng))
    elif path.suffix in (".pt", ".pth"):
        damage_pickle(path, rng)
    elif path.suffix == ".jsonl":
        lines = content.decode().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = rng.choice((dump(damage_json(json.loads(lines[at]), rng)), lines[at][:9], "", "[]", "\0"))
        path.write_text("\n".join(lines) + rng.choice(("", "\n")), errors="replace")
    else:
        path.write_text(dump(damage_json(unfold(json.loads(content)), rng)), errors="replace")
