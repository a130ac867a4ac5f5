"""The page of figures of papers, from the records of `coset reproduce` under papers/results."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from coset.core.errors import CosetError
from coset_papers.catalogue import PAPERS, exhibits
from coset_papers.settings import SCALES
from tools.docs_markdown import Record, grid, read, short

FIELDS = {"figure", "title", "scale", "command", "device", "versions", "claims", "data"}
VERDICTS = {True: "holds", False: "**does not hold**", None: "-"}
INTRODUCTION = """# Figures of papers, measured

Written by `make docs` from `papers/results`, which `coset reproduce` wrote; [reproduce.md](reproduce.md) says how. Each
claim of a paper stands beside what was found here. A dash is no verdict: the two cannot be compared, or the experiment
was too small.
"""


def papers(results: Path) -> tuple[str, dict[str, Figure]]:
    """The page, and its pictures by file name."""
    records = _records(results)
    text, pictures = [INTRODUCTION], {}
    for paper, title in PAPERS.items():
        text.append(f"## {paper}\n\n{title}.\n")
        for name, exhibit in exhibits().items():
            if not name.startswith(f"{paper}/"):
                continue
            of_figure = [records[name, scale] for scale in reversed(SCALES) if (name, scale) in records]
            for record in of_figure:
                picture = f"{name.replace('/', '-')}-{record['scale']}.png"
                pictures[picture] = exhibit.draw(record["data"])
                text.append(_section(name.partition("/")[2], record, picture))
    return "\n".join(text), pictures


def _records(folder: Path) -> dict[tuple[str, str], Record]:
    """By figure and scale."""
    records = {}
    for file in sorted(folder.glob("*.json")):
        record = read(file)
        if missing := FIELDS - record.keys():
            raise CosetError(f"{file.name} lacks a figure ({', '.join(sorted(missing))}): run its command again.")
        records[record["figure"], record["scale"]] = record
    return records


def _section(figure: str, record: Record, picture: str) -> str:
    claims = record["claims"]
    rows = [
        (claim["text"], _value(claim["published"]), _value(claim["ours"]), VERDICTS[claim["holds"]]) for claim in claims
    ]
    notes = dict.fromkeys(claim["note"] for claim in claims if claim["note"])
    parts = [
        f"### {figure}: {record['title']}\n",
        f"![{record['title']}](img/{picture})\n",
        grid(("the paper", "published", "found", ""), rows),
        *(f"{note}\n" for note in [*notes, record.get("note", "")] if note),
        f"`{record['command']}` ({record['device']}, torch {record['versions']['torch']}{_cost(record)}).\n",
    ]
    return "\n".join(parts)


def _cost(record: Record) -> str:
    """The minutes of a run in one go; and memory, which older records do not have."""
    minutes = f", {record['seconds'] / 60:.1f} minutes" if record.get("whole") else ""
    return f"{minutes}, {record['GiB']:.1f} GiB" if "GiB" in record else minutes


def _value(value: object) -> str:
    return short(value, "{:.4g}") if isinstance(value, float) else short(value, "{}")
