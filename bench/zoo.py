"""Infer and verify the symmetry of other people's models, and say what stays fixed and why.

    python bench/zoo.py torchvision  [--only NAME,..] [--out F.json] [--jobs N] [--limit N]
    python bench/zoo.py transformers [--only NAME,..] [--out F.json] [--jobs N] [--limit N]
    python bench/zoo.py transformers --stub      # only build, call and export; no symmetry
    python bench/zoo.py report F.json            # print the table of an earlier run

torchvision: every classification model, random weights, eval mode, random batch-norm statistics.
transformers: every family of the model mapping, built from a small config by a generic harness
(small sizes where the config has them, SDPA and then eager attention, synthetic inputs by name, a fixed
linear readout). What cannot be built or called is listed with its reason, and not counted.

Each model runs in its own process under a time limit. Records are appended to F.jsonl as they come,
so a killed run continues where it stopped (`--retry` also repeats what did not get through, `--fresh`
starts anew); the last step writes F.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench import zoo_report, zoo_runner


def suite(name: str) -> tuple[list[str], zoo_runner.Attempts]:
    """Names of the models of a suite and the function that builds one."""
    if name == "torchvision":
        from bench import zoo_torchvision

        return zoo_torchvision.names(), zoo_torchvision.attempts
    from bench import zoo_transformers

    return zoo_transformers.names(), zoo_transformers.attempts


def versions(name: str) -> dict[str, str]:
    """What was measured with what."""
    import importlib.metadata

    found = {"python": platform.python_version(), "torch": torch.__version__}
    found[name] = importlib.metadata.version(name)
    return found


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["torchvision", "transformers", "report"])
    parser.add_argument("file", nargs="?", type=Path, help="records to print (report only)")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--out", type=Path, help="JSON file for the records")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--limit", type=int, default=0, help="only the first N models")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of one model")
    parser.add_argument("--stub", action="store_true", help="export only, no symmetry")
    parser.add_argument("--retry", action="store_true", help="measure again what did not get through")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's records")
    return parser.parse_args()


def main() -> None:
    """Run a suite and print its tables."""
    options = parse()
    if options.suite == "report":
        if options.file is None:
            raise SystemExit("report needs the JSON file of a run")
        print(zoo_report.text(json.loads(options.file.read_text())["records"]))
        return
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # the library beside this file
    names, attempts = suite(options.suite)
    if options.only:
        wanted = options.only.split(",")
        unknown = sorted(set(wanted) - set(names))
        if unknown:
            raise SystemExit(f"no such model in {options.suite}: {', '.join(unknown)}")
        names = [name for name in names if name in wanted]
    if options.limit:
        names = names[: options.limit]
    out: Path = options.out or Path(f"zoo-{options.suite}{'-stub' if options.stub else ''}.json")
    log = out.with_suffix(".jsonl")
    if options.fresh:
        log.unlink(missing_ok=True)
    start = time.perf_counter()
    records = zoo_runner.run_all(names, attempts, log, options.jobs, options.seconds, options.stub, options.retry)
    summary: dict[str, Any] = {
        "suite": options.suite,
        "versions": versions(options.suite),
        "jobs": options.jobs,
        "seconds": time.perf_counter() - start,
        "counts": zoo_report.counts(records),
        "records": records,
    }
    part = out.with_suffix(".part")
    part.write_text(json.dumps(summary, indent=1))
    part.replace(out)
    print(zoo_report.text(records))
    print(f"{summary['seconds']:.0f} s with {options.jobs} jobs, written to {out}")


if __name__ == "__main__":
    main()
