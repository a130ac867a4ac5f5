"""What makes flows over networks work: one thing changed at a time, at an equal budget; and how large they must be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from coset_papers.outcome import Claim, Outcome, noted_once
from coset_papers.settings import Settings
from coset_papers.weightflow.measure import collected, cost, fresh, generated, whole
from coset_papers.weightflow.networks import SIZES, Sizes, title
from coset_papers.weightflow.published import FLOWS
from coset_papers.weightflow.study import Recipe, Subject
from coset_papers.weightflow.verdicts import claim

Rows = list[dict[str, Any]]
CHOSEN = "chosen"  # what all variations have in common but one
NORMALIZED = "normalized"
OPTIMIZER, MUON, RISE = "optimizer", "Muon", 3
DECAY = "weight decay of networks"


@dataclass(frozen=True)
class Variation:
    """factor: what differs; name: how."""

    factor: str
    name: str
    subject: Subject
    recipe: Recipe


def ablation(settings: Settings) -> Outcome:
    """Accuracy, loss and average of the samples of each variation."""
    sizes = SIZES[settings.scale]
    every = list(variations(sizes))
    subjects = dict.fromkeys(each.subject for each in every)
    known = {one: collected(settings, one)["networks"] for one in subjects}
    ends = {one: fresh(settings, one) for one in subjects}
    rows = [
        _row(settings, sizes, each, known[each.subject]) | {"trained": ends[each.subject]["accuracy"]["mean"]}
        for each in every
    ]
    trained = ends[sizes.subject]
    data = {
        "title": title(sizes.subject),
        "base": asdict(sizes.ablation.base),
        "rows": rows,
        "trained": {"accuracy": trained["accuracy"], "loss": trained["loss"], "average": whole(trained)},
    }
    return Outcome(data, noted_once(list(ablation_claims(settings.scale, rows))))


def scaling(settings: Settings) -> Outcome:
    """Accuracy and loss of samples by the width of the transformer."""
    sizes = SIZES[settings.scale]
    base = sizes.ablation.base
    known = collected(settings, sizes.subject)["networks"]
    rows = []
    for width in sizes.ablation.widths:
        wide = replace(base, plan=replace(base.plan, architecture=replace(base.plan.architecture, width=width)))
        if wide != base:  # which the ablation has, too
            wide = replace(wide, matching=replace(base.matching, compile=False))
        one = Variation("width", str(width), sizes.subject, wide)
        rows.append({"width": width} | _row(settings, sizes, one, known))
    trained = fresh(settings, sizes.subject)
    accuracies = [row["accuracy"]["mean"] for row in rows]
    claims = (
        claim(
            settings.scale,
            f"{title(sizes.subject)}: the wider the transformer of the flow, the better its samples",
            None,
            ", ".join(f"width {row['width']} {row['accuracy']['mean']:.4f}" for row in rows),
            accuracies == sorted(accuracies),
            f"At {_steps(rows[-1])} steps for each; fresh networks {trained['accuracy']['mean']:.4f}.",
        ),
    )
    data = {"title": title(sizes.subject), "rows": rows, "trained": {key: trained[key] for key in ("accuracy", "loss")}}
    return Outcome(data, claims)


def variations(sizes: Sizes) -> Iterator[Variation]:
    """The chosen flow, and those that differ from it in one thing."""
    subject, given = sizes.subject, sizes.ablation
    base, plan = given.base, given.base.plan
    yield Variation(CHOSEN, "", subject, base)
    yield Variation("population", f"{sizes.thesis.runs} runs, many iterations", sizes.thesis, given.trajectories)
    for count in given.populations:
        yield Variation("population", f"{count} networks", subject, _fewer(base, subject.runs, count))
    yield Variation("network", "relational", subject, given.relational)
    independent = replace(plan, coupling="independent")
    yield Variation("coupling", "independent", subject, replace(base, plan=independent))
    yield Variation("coupling", "optimal transport", subject, given.transport)
    yield Variation("geometry", "euclidean", subject, replace(base, plan=replace(plan, geometry="euclidean")))
    normalized = replace(base, plan=replace(plan, geometry="normalized"))
    yield Variation("geometry", NORMALIZED, subject, normalized)
    yield Variation("errors of outputs", "not counted", subject, replace(base, outputs=False))
    yield Variation("prediction", "end point", subject, replace(base, plan=replace(plan, predict="endpoint")))
    yield Variation("times", "all alike", subject, _level(base))
    yield Variation("times", f"all alike, {NORMALIZED}", subject, _level(normalized))
    matching = base.matching
    rate = RISE * (matching.rate or matching.RATES[matching.optimizer])
    yield Variation(OPTIMIZER, f"Adam, {RISE} times the rate", subject, _learned(base, "adam", rate))
    yield Variation(OPTIMIZER, MUON, subject, _learned(base, "muon", None))
    decayed = replace(subject, training=replace(subject.training, weight_decay=given.decay))
    yield Variation(DECAY, f"{given.decay:g}", decayed, base)


def ablation_claims(scale: str, rows: Rows) -> Iterator[Claim]:
    """What each factor does."""
    chosen = rows[0]["accuracy"]["mean"]
    note = (
        "One training of each, by the sign alone. Each flow takes about as many steps, of about the same time; "
        "relational networks and transport take longer for a step, and so fewer of them."
    )
    words = {
        "population": ("more networks, of independent runs, make better samples", None),
        "network": ("one token a unit is better than the relational transformer, in equal time", None),
        "coupling": ("coupling networks with their own starts is better than independent or OT coupling", None),
        "geometry": ("the geometric flow is the best", ", ".join(f"{name} {value}" for name, value in FLOWS.items())),
        "errors of outputs": ("counting errors of outputs makes better samples", None),
        "prediction": ("predicting velocities is better than predicting end points", None),
    }
    for factor, (text, published) in words.items():
        found = [row for row in rows if row["factor"] == factor]
        if not found:
            continue
        means = [row["accuracy"]["mean"] for row in found]
        others = ", ".join(f"{row['name']} {mean:.4f}" for row, mean in zip(found, means, strict=True))
        rising = factor != "population" or means[1:] == sorted(means[1:])
        yield claim(scale, text, published, f"chosen {chosen:.4f}; {others}", max(means) < chosen and rising, note)
    yield _alike(scale, rows, note)
    yield _faster(scale, rows, note)
    yield _forgetful(scale, rows, note)


def _alike(scale: str, rows: Rows, note: str) -> Claim:
    """What it does to let all times count alike, of the chosen flow and of the one whose errors differ most by time."""
    found = {(row["factor"], row["name"]): row["accuracy"]["mean"] for row in rows}
    plain, alike = found["geometry", NORMALIZED], found["times", f"all alike, {NORMALIZED}"]
    return claim(
        scale,
        "letting all times of paths count alike makes the normalized flow better",
        None,
        f"{NORMALIZED} {plain:.4f}, with all times alike {alike:.4f}; chosen {found[CHOSEN, '']:.4f}, with all times "
        f"alike {found['times', 'all alike']:.4f}",
        alike > plain,
        note,
    )


def _faster(scale: str, rows: Rows, note: str) -> Claim:
    found = {row["name"]: row["accuracy"]["mean"] for row in rows if row["factor"] in (CHOSEN, OPTIMIZER)}
    words = {name or "chosen, by Adam": mean for name, mean in found.items()}
    return claim(
        scale,
        "Muon learns faster than Adam",
        None,
        ", ".join(f"{name} {mean:.4f}" for name, mean in words.items()),
        max(found, key=found.__getitem__) == MUON,
        note,
    )


def _forgetful(scale: str, rows: Rows, note: str) -> Claim:
    """What it does to the samples that networks decay more as they are trained, and forget where they began."""
    pairs = {
        row["factor"]: (row["accuracy"]["mean"], row["trained"]) for row in rows if row["factor"] in (CHOSEN, DECAY)
    }
    behind = {factor: trained - made for factor, (made, trained) in pairs.items()}
    decay = next(row["name"] for row in rows if row["factor"] == DECAY)
    return claim(
        scale,
        "networks that decay more as they are trained, and so forget their starts, are easier to generate",
        None,
        "; ".join(
            f"{name} {made:.4f} of {trained:.4f}"
            for name, (made, trained) in zip(("chosen", f"weight decay {decay}"), pairs.values(), strict=True)
        ),
        behind[DECAY] < behind[CHOSEN],
        f"By how far samples are behind networks that were trained in the same way. {note}",
    )


def _learned(recipe: Recipe, optimizer: Literal["adam", "muon"], rate: float | None) -> Recipe:
    return replace(recipe, matching=replace(recipe.matching, optimizer=optimizer, rate=rate))


def _level(recipe: Recipe) -> Recipe:
    return replace(recipe, matching=replace(recipe.matching, level=True))


def _row(settings: Settings, sizes: Sizes, one: Variation, known: int) -> dict[str, Any]:
    settings.say(f"weightflow: {one.factor} {one.name}")
    took = cost(settings, one.subject, one.recipe)
    made = generated(settings, one.subject, one.recipe, sizes.count, sizes.fewer_steps)
    networks = one.recipe.networks or known
    matching = one.recipe.matching
    return {
        "factor": one.factor,
        "name": one.name,
        "networks": networks,
        "steps": matching.epochs * (networks // min(matching.batch_size, networks)),
        "accuracy": made["accuracy"],
        "loss": made["loss"],
        "average": whole(made),
        **took,
    }


def _fewer(base: Recipe, whole: int, count: int) -> Recipe:
    """As many steps on fewer networks."""
    batch = base.matching.batch_size
    epochs = round(base.matching.epochs * (whole // batch) / max(count // batch, 1))
    return replace(base, networks=count, matching=replace(base.matching, epochs=epochs))


def _steps(row: dict[str, Any]) -> int:
    steps: int = row["steps"]
    return steps
