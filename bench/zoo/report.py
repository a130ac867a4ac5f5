"""Tables from the records of a run."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]


def generic(reason: str) -> str:
    """A reason with names and numbers taken out, so that equal causes are counted together."""
    return re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'..'", reason))[:110]


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A plain table; the first column is flush left, the others flush right."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def short(value: Any, form: str = "{:.0e}") -> str:
    """A number for a table, or a dash."""
    return "-" if value is None else form.format(value)


def rows(records: Iterable[Record]) -> list[list[str]]:
    """One line a traced model."""
    out = []
    for r in records:
        seconds = r.get("seconds", {})
        if not r["traced"]:
            continue
        out.append(
            [
                r["name"],
                short(r.get("groups"), "{}"),
                short(r.get("log10_order"), "{:.0f}"),
                f"{r.get('moved', '-')}/{int(r.get('tensors', 0)) - int(r.get('unused', 0))}",
                short(r.get("deviation")),
                short(r.get("recheck")),
                short(r.get("sensitivity")),
                short(r.get("control")),
                "yes" if r.get("verified") else ("-" if r.get("stub") else "NO"),
                *(short(seconds.get(k), "{:.2f}") for k in ("export", "inference", "verification")),
                short(r.get("extra_mib"), "{:.0f}"),
            ]
        )
    return out


HEADER = [
    "model",
    "groups",
    "log10|G|",
    "moved",
    "deviation",
    "recheck",
    "input",
    "control",
    "verified",
    "export",
    "infer",
    "verify",
    "MiB",
]


def counts(records: Sequence[Record]) -> dict[str, int]:
    """How many models reached each stage."""
    checked = [r for r in records if not r.get("stub")]
    out = {"models": len(records)}
    for stage in ("built", "called", "traced"):
        out[stage] = sum(bool(r.get(stage)) for r in records)
    if checked:
        out["with groups"] = sum(bool(r.get("groups")) for r in checked)
        out["conclusive"] = sum(bool(r.get("conclusive")) for r in checked)
        out["verified"] = sum(bool(r.get("verified")) for r in checked)
        out["wrong"] = sum(bool(r.get("wrong")) for r in checked)
        out["tensors"] = sum(int(r.get("tensors", 0)) for r in checked if r.get("verified"))
        out["unused"] = sum(int(r.get("unused", 0)) for r in checked if r.get("verified"))
        out["moved"] = sum(int(r.get("moved", 0)) for r in checked if r.get("verified"))
    return out


def failures(records: Iterable[Record]) -> list[tuple[str, str, list[str]]]:
    """(stage, reason, names) of what did not get through, most frequent first."""
    groups: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for r in records:
        if r.get("error"):
            groups[(r.get("stage", ""), generic(r["error"]))].append(r["name"])
    return sorted(((s, e, n) for (s, e), n in groups.items()), key=lambda item: (-len(item[2]), item[0], item[1]))


def reasons(records: Iterable[Record]) -> list[tuple[str, str, int, int]]:
    """(op, reason, axes, models) of what stays fixed, over all models."""
    axes: collections.Counter[tuple[str, str]] = collections.Counter()
    models: collections.Counter[tuple[str, str]] = collections.Counter()
    for r in records:
        for op, reason, count in r.get("fixed", ()):
            axes[(op, generic(reason))] += int(count)
            models[(op, generic(reason))] += 1
    return [(op, reason, n, models[(op, reason)]) for (op, reason), n in axes.most_common()]


def text(records: Sequence[Record]) -> str:
    """The whole report."""
    parts = [grid(HEADER, rows(records)), ""]
    failing = failures(records)
    if failing:
        parts += ["Not through, by stage and reason:"]
        parts += [
            f"  {len(names):3d}  {stage:8s} {reason}\n         {', '.join(names)}" for stage, reason, names in failing
        ]
        parts += [""]
    fixed = reasons(records)
    if fixed:
        lines = [[f"{op}: {reason}", str(n), str(m)] for op, reason, n, m in fixed[:60]]
        parts += ["What stays fixed:", grid(["op: reason", "axes", "models"], lines), ""]
    unknown = collections.Counter(op for r in records for op in r.get("unknown_ops", ()))
    if unknown:
        parts += ["Unknown ops (models): " + ", ".join(f"{op} ({n})" for op, n in unknown.most_common()), ""]
    parts += [", ".join(f"{key} {value}" for key, value in counts(records).items())]
    return "\n".join(parts)
