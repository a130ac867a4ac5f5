"""Run an exhibit, write its record and its picture; draw a record again, on this machine or another."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import torch

from coset._version import __version__
from coset.core import json_reader
from coset.core.errors import CosetError
from coset.core.files import write_json
from coset.core.lock import locked
from coset.core.names import plural
from coset.plot import save
from coset_papers.catalogue import Exhibit, find
from coset_papers.outcome import Record
from coset_papers.settings import Settings

PICTURE = ".png"


def reproduce(name: str, settings: Settings) -> Record:
    """Compute the exhibit `name`, and write `out/<paper>-<figure>-<scale>.json` and `.png`; the record.

    Its GiB are the most memory that the work took: on CUDA of the device, else of the process. Its seconds and GiB are
    also those of earlier calls, for this figure or another, whose work it uses. It is `whole` if all of these are
    known, which those of a training are that was told to `Settings.working`. A record of another seed or device is not
    replaced.
    """
    exhibit = find(name)
    settings.out.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('/', '-')}-{settings.scale}"
    with locked(settings.out / f".{stem}.lock", f"The record of {name} in {settings.out}"):
        file = settings.out / f"{stem}.json"
        if file.exists():
            _refuse_other(file, settings)
        write_json(file, _computed(name, exhibit, settings))
        record_of_file = read(file)
        _draw(file, record_of_file)
    return record_of_file


def _refuse_other(file: Path, settings: Settings) -> None:
    """Refuse to replace the record of another seed or device, which has the same name."""
    before = read(file)
    for key, own in (("seed", settings.seed), ("command", _command(before["figure"], settings))):
        if before.get(key) != own:
            raise CosetError(f"{file} holds a record with another {key} ({before.get(key)}): choose another folder.")


def _command(name: str, settings: Settings) -> str:
    return f"coset reproduce {name} --scale {settings.scale} --device {settings.device} --seed {settings.seed}"


def _computed(name: str, exhibit: Exhibit, settings: Settings) -> Record:
    start = time.perf_counter()
    outcome = exhibit.compute(settings)
    settings.peak()
    return {
        "figure": name,
        "title": exhibit.title,
        "command": _command(name, settings),
        "scale": settings.scale,
        "seed": settings.seed,
        "device": _device(settings.device),
        "versions": {"coset": __version__, "torch": torch.__version__},
        "seconds": time.perf_counter() - start + settings.ledger.seconds,
        "GiB": max(settings.ledger.peaks),
        "whole": settings.ledger.whole,
        "claims": [asdict(claim) for claim in outcome.claims],
        "data": outcome.data,
    }


def redraw(file: Path) -> Path:
    """Draw the picture of a record, beside it; where it is."""
    if file.suffix == PICTURE:
        raise CosetError(f"{file} is where its picture would be: give the record a name that ends in .json.")
    record = read(file)
    try:
        return _draw(file, record)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CosetError(
            f"{file} does not hold the data of {record['figure']} ({error!r}): it was written by another version, or "
            "changed."
        ) from error


def _draw(file: Path, record: Record) -> Path:
    picture = file.with_suffix(PICTURE)
    save(find(record["figure"]).draw(record["data"]), picture)
    return picture


def read(file: Path) -> Record:
    """A record as `reproduce` wrote it."""
    record = json_reader.read(file, error=CosetError)
    if not (isinstance(record, dict) and {"figure", "claims", "data"} <= record.keys()):
        raise CosetError(f"{file} is no record of a figure, as `coset reproduce` writes it.")
    return record


def _device(name: str) -> str:
    device = torch.device(name)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {plural(torch.get_num_threads(), 'thread')}"
