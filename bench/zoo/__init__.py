"""Infer and verify the symmetry of other people's models, and say what stays fixed and why.

torchvision: every classification model, random weights, eval mode, random batch-norm statistics.
transformers: every family of the model mapping, built from a small config by a generic harness
(small sizes where the config has them, SDPA and then eager attention, synthetic inputs by name, a fixed
linear readout). What cannot be built or called is listed with its reason, and not counted.

Each model runs in its own process under a time limit. Records are appended to F.jsonl as they come,
so a killed run continues where it stopped (`--retry` also repeats what did not get through, `--fresh`
starts anew); the last step writes F.json. `report F.json` prints the tables of an earlier run.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.zoo import report, runner
from coset.core.errors import CosetError


def suite(name: str) -> tuple[list[str], runner.Attempts]:
    """Names of the models of a suite and the function that builds one."""
    if name == "torchvision":
        from bench.zoo import torchvision_models

        return torchvision_models.names(), torchvision_models.attempts
    from bench.zoo import transformers_models

    return transformers_models.names(), transformers_models.attempts


def versions(name: str) -> dict[str, str]:
    """What was measured with what."""
    packages = {name: importlib.metadata.version(name)}
    return {"python": platform.python_version(), "torch": torch.__version__, **packages}


def select(suite_names: list[str], only: str, limit: int) -> list[str]:
    """The models of a suite that are to be measured."""
    if only:
        words = only.split(",")
        unknown = sorted(set(words) - set(suite_names))
        if unknown:
            raise CosetError(f"There is no such model in the suite: {', '.join(unknown)}.")
        suite_names = [name for name in suite_names if name in words]
    return suite_names[:limit] if limit else suite_names


def main(
    suite_name: Annotated[str, typer.Argument(metavar="SUITE", help="torchvision, transformers or report.")],
    file: Annotated[Path | None, typer.Argument(help="Records to print, of report only.")] = None,
    only: Annotated[str, typer.Option(help="Names, separated by commas.")] = "",
    out: Annotated[Path | None, typer.Option(help="JSON file for the records.")] = None,
    jobs: Annotated[int, typer.Option(help="Models at once.", min=1)] = max(1, (os.cpu_count() or 2) - 2),
    limit: Annotated[int, typer.Option(help="Only the first so many models.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="Time limit of one model.")] = 120.0,
    stub: Annotated[bool, typer.Option("--stub", help="Export only, no symmetry.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Measure again what did not get through.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget an earlier run's records.")] = False,
) -> None:
    """Run a suite and print its tables."""
    if suite_name == "report":
        if file is None:
            raise CosetError("report needs the JSON file of a run.")
        print(report.text(json.loads(file.read_text())["records"]))
        return
    if suite_name not in ("torchvision", "transformers"):
        raise CosetError(f"There is no suite {suite_name!r}, only torchvision, transformers and report.")
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))  # the library beside this folder
    names, attempts = suite(suite_name)
    names = select(names, only, limit)
    out = out or Path(f"zoo-{suite_name}{'-stub' if stub else ''}.json")
    log = out.with_suffix(".jsonl")
    if fresh:
        log.unlink(missing_ok=True)
    start = time.perf_counter()
    records = runner.run_all(names, attempts, log, jobs=jobs, limit=seconds, stub=stub, retry=retry)
    summary: dict[str, Any] = {
        "suite": suite_name,
        "versions": versions(suite_name),
        "jobs": jobs,
        "seconds": time.perf_counter() - start,
        "counts": report.counts(records),
        "records": records,
    }
    part = out.with_suffix(".part")
    part.write_text(json.dumps(summary, indent=1))
    part.replace(out)
    print(report.text(records))
    print(f"{summary['seconds']:.0f} s with {jobs} jobs, written to {out}")
