"""Losses along paths between two networks: rossi2023 Figures 3, 4, 11, 12 and A15."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from coset import mixture
from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.rossi2023.barriers import ALIGNED as BY_WASSERSTEIN, NAIVE as NOT_MOVED, barriers
from coset_papers.rossi2023.criteria import SHARE, TOO_SMALL, ZERO, nearly_zero, noticeable, with_error
from coset_papers.rossi2023.networks import PUBLISHED, SIZES, measure_of, mlp, resnet
from coset_papers.rossi2023.plotting import ALIGNED, NAIVE, both, curve
from coset_papers.rossi2023.study import COMPARED, PosteriorStudy
from coset_papers.settings import Settings

FAR_FROM_GUESSING = 0.8  # of the loss of guessing, at most
THRESHOLDS = f"No barrier: at most {ZERO} nats; nearly none: at most {SHARE:g} of the naive one. {PUBLISHED}"


def fig3(settings: Settings) -> Outcome:
    """Figure 3: the test loss along the mixture and along the geodesic."""
    study = mlp(settings.scale, "cifar10")
    measure = measure_of(settings.scale, study)
    (along,) = barriers(study, settings, measure, NOT_MOVED)
    (mixed,) = barriers(study, settings, measure, NOT_MOVED, mixture)
    (aligned,) = barriers(study, settings, measure, BY_WASSERSTEIN)
    data = {"title": study.title, "study": study.key(), "measure": asdict(measure)}
    data |= {"geodesic": along, "mixture": mixed, "aligned": aligned}
    flat = mixed["test"]["height"]
    claim = Claim(
        "the likelihood is nearly constant along the mixture, while the geodesic meets a barrier",
        None,
        f"barrier on test data: mixture {flat:.3f}, geodesic {along['test']['height']:.3f}",
        not noticeable(flat) and noticeable(along["test"]["height"]),
        "A mixture can have no barrier: log((1-t) p0 + t p1) is at least the chord (1-t) log p0 + t log p1 for every "
        f"example, so its height is 0 but for sampling. {PUBLISHED}",
    )
    return Outcome(data, (claim,))


def draw_fig3(data: Any) -> Figure:
    """Train and test side by side."""
    figure, (row,) = panels(1, 2, f"Between two posteriors: {data['title']}")
    for axes, split in zip(row, ("test", "train"), strict=True):
        curve(axes, data["geodesic"][split], NAIVE, "Wasserstein geodesic")
        curve(axes, data["aligned"][split], ALIGNED, "geodesic after alignment")
        curve(axes, data["mixture"][split], HUES[0], "mixture")
        style(axes, "t", f"{split} loss (nats)")
    legend(figure, row[0], 3)
    return figure


def fig4(settings: Settings) -> Outcome:
    """Figure 4: barriers with and without alignment, on training and test data."""
    scale = settings.scale
    width = 1.0 if scale == "paper" else None  # Table 3: 16 channels
    studies = [mlp(scale, "mnist"), mlp(scale, "cifar10"), resnet(scale, "cifar10", width)]
    rows = _barrier_rows(settings, studies)
    claims = [claim for row in rows for claim in _zero_claims(scale, row)]
    residual = next(study for study in studies if not study.model.startswith("mlp"))
    (row,) = [row for row in rows if row["study"] == residual.key()]
    (row["activations"],) = barriers(residual, settings, measure_of(scale, residual), "activations")
    return Outcome({"shown": rows}, without_repeated_notes([*claims, _by_activations(scale, row)]))


def fig_a15(settings: Settings) -> Outcome:
    """Figure A15: a hundred classes."""
    rows = _barrier_rows(settings, [resnet(settings.scale, "cifar100"), resnet(settings.scale, "cifar10")])
    hundred, ten = rows
    heights = [row["aligned"]["test"]["height"] for row in rows]
    published = "a barrier stays for CIFAR100"
    note = PUBLISHED
    if settings.scale == "smoke":
        note = TOO_SMALL
    elif settings.scale == "short":
        note = "Pairs of digits, which have a hundred classes too, stand for CIFAR100."
    chance = math.log(100)
    has_learned = max(hundred["naive"]["test"]["endpoints"]) < FAR_FROM_GUESSING * chance
    if not has_learned:
        note += f" No verdict: the networks have hardly learned, their loss is near log 100 = {chance:.2f}."
    claim = Claim(
        "with a hundred classes alignment finds no solution without a barrier",
        published,
        f"after alignment on test data: {hundred['title']} {heights[0]:.3f}, {ten['title']} {heights[1]:.3f}",
        not nearly_zero(heights[0], hundred["naive"]["test"]["height"])
        if has_learned and settings.scale != "smoke"
        else None,
        note,
    )
    return Outcome({"shown": rows}, (claim,))


def fig11(settings: Settings) -> Outcome:
    """Figure 11: filter response norm and layer norm."""
    width = 2.0 if settings.scale == "paper" else None
    names = {"FRN": "frn", "LN": "ln"}
    rows = _barrier_rows(
        settings, [resnet(settings.scale, "cifar10", width, norm) for norm in names.values()], list(names)
    )
    frn, ln = ({split: row["aligned"][split]["height"] for split in ("train", "test")} for row in rows)
    return Outcome(
        {"shown": rows},
        (
            _lower("both norms can be aligned", settings.scale, rows),
            Claim(
                "layer norm has lower barriers than FRN after alignment",
                None,
                f"test: LN {ln['test']:.3f}, FRN {frn['test']:.3f}; train: {ln['train']:.3f}, {frn['train']:.3f}",
                None if settings.scale == "smoke" else ln["test"] < frn["test"],
                TOO_SMALL if settings.scale == "smoke" else PUBLISHED,
            ),
        ),
    )


def fig12(settings: Settings) -> Outcome:
    """Figure 12: with and without data augmentation."""
    width = 2.0 if settings.scale == "paper" else None
    names = {"no augmentation": False, "augmentation": True}
    studies = [resnet(settings.scale, "cifar10", width, augment=augment) for augment in names.values()]
    rows = _barrier_rows(settings, studies, list(names))
    return Outcome(
        {"shown": rows},
        (_lower("similar low barriers are recovered with and without augmentation", settings.scale, rows),),
    )


def draw_curves(data: Any) -> Figure:
    """A panel for each network."""
    rows = data["shown"]
    figure, (row,) = panels(1, len(rows), "The loss between two posteriors, naive and after alignment")
    for axes, one in zip(row, rows, strict=True):
        both(axes, one["naive"], one["aligned"])
        if "activations" in one:
            curve(axes, one["activations"]["test"], HUES[0], "matched by activations, test")
        style(axes, "t", "loss (nats)", one["title"])
    legend(figure, row[-1], 5)
    return figure


def _barrier_rows(
    settings: Settings, studies: list[PosteriorStudy], names: list[str] | None = None
) -> list[dict[str, Any]]:
    """Naive and aligned barriers of each study; those that a scale makes equal are shown once."""
    rows: dict[str, dict[str, Any]] = {}
    for k, study in enumerate(studies):
        title = study.title if names is None else f"{names[k]}: {study.title}"
        if title in rows:
            continue
        measure = measure_of(settings.scale, study)
        (naive,), (aligned,) = (barriers(study, settings, measure, cost) for cost in (NOT_MOVED, BY_WASSERSTEIN))
        rows[title] = {"title": title, "study": study.key(), "measure": asdict(measure)}
        rows[title] |= {"naive": naive, "aligned": aligned}
    return list(rows.values())


def _zero_claims(scale: str, row: dict[str, Any]) -> tuple[Claim, ...]:
    is_mlp = row["title"].startswith("MLP")
    judged = scale != "smoke"
    note = THRESHOLDS if judged else TOO_SMALL
    if not is_mlp and judged:
        epochs, samples = row["study"]["method"]["epochs"], row["measure"]["samples"]
        note = f"{THRESHOLDS} Here {epochs} epochs, and {samples} networks are drawn."
    naive, aligned = ([row[key][split]["height"] for split in ("train", "test")] for key in ("naive", "aligned"))
    words = [
        f"train {with_error([row[key]], 'train')}, test {with_error([row[key]], 'test')}"
        for key in ("naive", "aligned")
    ]
    if is_mlp:
        text, holds = "no noticeable barrier after alignment", not any(noticeable(height) for height in aligned)
    else:
        pairs = zip(aligned, naive, strict=True)
        text, holds = "a nearly zero barrier after alignment", all(nearly_zero(*pair) for pair in pairs)
    return (
        Claim(
            f"{row['title']}: a barrier without alignment",
            None,
            words[0],
            all(noticeable(height) for height in naive) if judged or is_mlp else None,
        ),
        Claim(f"{row['title']}: {text}", None, words[1], holds if judged else None, note),
    )


def _by_activations(scale: str, row: dict[str, Any]) -> Claim:
    """Not of the paper: what else can be done where weights do not tell units apart."""
    weights, activations = (row[key]["test"]["height"] for key in ("aligned", "activations"))
    return Claim(
        f"{row['title']}: matching activations instead of distributions of weights leaves a lower barrier",
        "not in the paper",
        f"test barrier {activations:.3f}, by the Wasserstein distance {weights:.3f}",
        None if scale == "smoke" else activations < weights,
        TOO_SMALL if scale == "smoke" else f"Correlations on at most {COMPARED} training examples.",
    )


def _lower(text: str, scale: str, rows: list[dict[str, Any]]) -> Claim:
    words, holds = [], True
    for row in rows:
        naive, aligned = (row[key]["test"]["height"] for key in ("naive", "aligned"))
        words.append(f"{row['title'].partition(':')[0]} {naive:.3f} to {aligned:.3f}")
        holds = holds and aligned < naive / 2
    epochs = SIZES[scale].resnet.epochs
    note = TOO_SMALL if scale == "smoke" else f"Lower: at most half. {epochs} epochs. {PUBLISHED}"
    return Claim(text, None, "test barrier " + ", ".join(words), None if scale == "smoke" else holds, note)


exhibit("rossi2023/fig3", "the loss along the mixture and along the geodesic", fig3, draw_fig3)
exhibit("rossi2023/fig4", "barriers between posteriors, naive and aligned", fig4, draw_curves)
exhibit("rossi2023/fig11", "barriers with filter response norm and with layer norm", fig11, draw_curves)
exhibit("rossi2023/fig12", "barriers with and without data augmentation", fig12, draw_curves)
exhibit("rossi2023/figA15", "barriers with a hundred classes", fig_a15, draw_curves)
