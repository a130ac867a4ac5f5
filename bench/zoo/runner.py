"""Run a suite: one forked process a model, a time limit each, results appended to JSONL as they come."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from bench.zoo.measure import export_only, measure
from bench.zoo.model_call import ModelCall, StageError, one_line
from bench.zoo.report import Record
from coset.core.memory import peak_mib

Attempts = Callable[[str], Iterator[ModelCall]]
STAGES = ("start", "build", "call", "trace", "done")


def run_one(name: str, attempts: Attempts, stub: bool) -> Record:
    """The record of one model: the first attempt that can be traced, else the furthest one."""
    start, base = time.perf_counter(), peak_mib()
    record: Record = {"name": name, "stub": stub, "built": False, "called": False, "traced": False}
    tried: list[str] = []
    try:
        for call in attempts(name):
            tried.append(call.label)
            with call.context():
                answer = (export_only if stub else measure)(call.model, call.args, call.kwargs)
            if answer["traced"] or not record["called"]:
                record.pop("error", None)
                record |= {"built": True, "called": True, "attempt": call.label} | answer
            if answer["traced"]:
                break
    except StageError as error:
        if not record["called"]:
            record |= {"built": error.stage == "call", "stage": error.stage, "error": error.reason}
    except Exception as error:
        if not record["called"]:
            record |= {"stage": "build", "error": one_line(error)}
    if record["called"]:
        record["stage"] = "done" if record["traced"] else "trace"
    record["tried"] = tried
    record["total_seconds"] = time.perf_counter() - start
    record["peak_mib"] = peak_mib()
    record["extra_mib"] = peak_mib() - base
    return record


def child(name: str, attempts: Attempts, stub: bool, out: Connection) -> None:
    """Body of the forked process: quiet, one thread, sends one record."""
    import torch

    os.setsid()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with (
        Path(os.devnull).open("w") as null,
        contextlib.redirect_stdout(null),
        contextlib.redirect_stderr(null),
    ):
        record = run_one(name, attempts, stub)
    out.send(json.dumps(record, default=str))
    out.close()


@dataclass
class Running:
    """A model being measured."""

    name: str
    process: BaseProcess
    out: Connection
    since: float


def failed(run: Running, stub: bool, stage: str, reason: str) -> Record:
    """The record of a model whose process sent nothing."""
    seconds = time.perf_counter() - run.since
    flags = {"built": False, "called": False, "traced": False}
    return {"name": run.name, "stub": stub, "stage": stage, "error": reason, "total_seconds": seconds} | flags


def collect(run: Running, stub: bool, limit: float) -> Record | None:
    """The record of a model if it is over (answered, died or out of time), else None."""
    if run.out.poll():
        with contextlib.suppress(EOFError):
            record: Record = json.loads(run.out.recv())
            run.process.join()
            return record
    if run.process.is_alive() and time.perf_counter() - run.since < limit:
        return None
    alive = run.process.is_alive()
    if alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.process.pid or 0, signal.SIGKILL)
    run.process.join()
    reason = f"no answer within {limit:.0f} s" if alive else f"process died with code {run.process.exitcode}"
    return failed(run, stub, "timeout" if alive else "crash", reason)


def load(path: Path, stub: bool) -> dict[str, Record]:
    """Records of an earlier run of the same kind; a half-written last line is dropped."""
    records: dict[str, Record] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                record = json.loads(line)
                if record.get("stub") == stub:
                    records[record["name"]] = record
    return records


def run_all(
    names: Sequence[str],
    attempts: Attempts,
    log: Path,
    jobs: int,
    limit: float,
    stub: bool,
    retry: bool = False,
) -> list[Record]:
    """Measure every model that `log` does not hold yet, `jobs` at a time; records in the order of names.

    With `retry`, models that did not get through are measured again.
    """
    records = load(log, stub)
    if retry:
        records = {k: r for k, r in records.items() if r["traced"] and (stub or r.get("verified"))}
    todo = [name for name in names if name not in records]
    context = multiprocessing.get_context("fork")
    running: list[Running] = []
    total, finished = len(todo), 0
    with log.open("a") as sink:
        while todo or running:
            while todo and len(running) < jobs:
                name = todo.pop(0)
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=child, args=(name, attempts, stub, there), daemon=False)
                process.start()
                there.close()
                running.append(Running(name, process, here, time.perf_counter()))
            wait([r.out for r in running], timeout=0.5)
            for run in list(running):
                record = collect(run, stub, limit)
                if record is None:
                    continue
                running.remove(run)
                run.out.close()
                records[run.name] = record
                sink.write(json.dumps(record) + "\n")
                sink.flush()
                os.fsync(sink.fileno())
                finished += 1
                stage = record.get("stage", "")
                note = record.get("error", "") if stage != "done" else record.get("attempt", "")
                print(
                    f"[{finished}/{total}] {run.name:32s} {stage:7s} {record['total_seconds']:6.1f}s  {note}"[:150],
                    file=sys.stderr,
                    flush=True,
                )
    return [records[name] for name in names if name in records]
