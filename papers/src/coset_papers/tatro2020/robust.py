"""Curves between networks trained under attack: tatro2020 Figures 4, 8 and 9."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, Record, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.settings import Settings
from coset_papers.tatro2020.criteria import NOTICEABLE, SHARE, claim, mean
from coset_papers.tatro2020.curve_kinds import ALIGNED, UNALIGNED
from coset_papers.tatro2020.curve_losses import along, dips, middles
from coset_papers.tatro2020.networks import SIZES, absent, robust, shorter
from coset_papers.tatro2020.plotting import line
from coset_papers.tatro2020.study import CurveStudy

BOTH = (UNALIGNED, ALIGNED)
CLEAN, ROBUST = "clean", "robust"
AttackRows = dict[str, dict[str, list[Record]]]


def fig4(settings: Settings) -> Outcome:
    """Figure 4: clean and robust accuracy along robust curves, for CIFAR100."""
    return _accuracies(settings, "cifar100")


def fig9(settings: Settings) -> Outcome:
    """Figure 9: the same for CIFAR10."""
    return _accuracies(settings, "cifar10")


def fig8(settings: Settings) -> Outcome:
    """Figure 8: the robust loss along robust curves."""
    one = robust(settings.scale, "cifar100")
    curves = _curves(settings, one)[ROBUST]
    heights = {kind: mean([row["height"] for row in curves[kind]]) for kind in BOTH}
    claims = (
        claim(
            settings.scale,
            f"{one.title}: alignment greatly reduces the robust loss barrier",
            "greatly (a plot)",
            f"barrier of the robust loss: unaligned {heights[UNALIGNED]:.3f}, aligned {heights[ALIGNED]:.3f} nats",
            heights[ALIGNED] <= SHARE * heights[UNALIGNED],
            f"Greatly: to at most {SHARE:g} of it. {_note(one, 'cifar100')}",
        ),
    )
    return Outcome(_data(settings, one) | {"curves": {ROBUST: curves}}, claims)


def draw_accuracies(data: Any) -> Figure:
    """Clean on the left, robust on the right."""
    figure, (row,) = panels(1, 2, f"Curves between robust networks: {data['title']}")
    for axes, (name, curves) in zip(row, data["curves"].items(), strict=True):
        for kind, rows in curves.items():
            line(axes, rows, "accuracy", kind)
        style(axes, "t", f"{name} test accuracy (%)")
    legend(figure, row[0], 2)
    return figure


def draw_fig8(data: Any) -> Figure:
    """One panel."""
    figure, ((axes,),) = panels(1, 1, "Curves between robust networks", 3.1)
    for kind, rows in data["curves"][ROBUST].items():
        line(axes, rows, "loss", kind)
    style(axes, "t", "robust test loss (nats)", data["title"])
    legend(figure, axes, 2)
    return figure


def _accuracies(settings: Settings, images: str) -> Outcome:
    one = robust(settings.scale, images)
    curves = _curves(settings, one)
    return Outcome(
        _data(settings, one) | {"curves": curves},
        without_repeated_notes(robust_claims(settings.scale, one.title, curves, _note(one, images))),
    )


def robust_claims(scale: str, title: str, curves: AttackRows, note: str) -> list[Claim]:
    """What Section 5 says."""
    drop = {name: {kind: mean(dips(curves[name][kind])) for kind in BOTH} for name in (CLEAN, ROBUST)}
    gain = {name: {kind: mean(middles(curves[name][kind])) for kind in BOTH} for name in (CLEAN, ROBUST)}
    claims = [
        claim(
            scale,
            f"{title}: barriers in clean and robust accuracy along the unaligned curve",
            "a plot",
            f"below the ends by {_points(drop, UNALIGNED)}",
            all(drop[name][UNALIGNED] > NOTICEABLE for name in drop),
            f"A barrier: more than {100 * NOTICEABLE:g} point. {note}",
        )
    ]
    for name, words in ((CLEAN, "eliminates or greatly reduces"), (ROBUST, "significantly alleviates")):
        plain, aligned = drop[name][UNALIGNED], drop[name][ALIGNED]
        claims.append(
            claim(
                scale,
                f"{title}: alignment {words} the barrier in {name} accuracy",
                "a plot",
                f"from {100 * plain:.1f} to {100 * aligned:.1f} points",
                aligned <= SHARE * plain,
                f"Reduced: to at most {SHARE:g} of it.",
            )
        )
    claims.append(
        claim(
            scale,
            f"{title}: the middle of the aligned curve is more accurate and more robust than the ends",
            "clean +5.3, robust +1.3 points for ResNet32 on CIFAR100; both rise for TinyTen",
            f"aligned {_points(gain, ALIGNED, '+')}; unaligned {_points(gain, UNALIGNED, '+')}",
            all(gain[name][ALIGNED] > 0 for name in gain),
            "More: by the sign alone.",
        )
    )
    return claims


def _curves(settings: Settings, one: CurveStudy) -> AttackRows:
    measure = SIZES[settings.scale].measure
    return {
        name: {kind: along(one, settings, measure, kind, attacked=name == ROBUST) for kind in BOTH}
        for name in (CLEAN, ROBUST)
    }


def _data(settings: Settings, one: CurveStudy) -> dict[str, Any]:
    return {"title": one.title, "study": one.key(), "measure": asdict(SIZES[settings.scale].measure)}


def _points(values: dict[str, dict[str, float]], kind: str, sign: str = "") -> str:
    return ", ".join(f"{name} {100 * values[name][kind]:{sign}.1f}" for name in values) + " points"


def _note(one: CurveStudy, images: str) -> str:
    assert one.plan.attack is not None
    attack = one.plan.attack
    words = f"Attacks of {attack.steps} steps within {255 * attack.epsilon:g}/255, the same for training and test."
    return f"{words} {shorter(one)} {absent(one.data, images)}".strip()


exhibit("tatro2020/fig4", "clean and robust accuracy along curves between robust networks", fig4, draw_accuracies)
exhibit("tatro2020/fig8", "robust loss along curves between robust networks", fig8, draw_fig8)
exhibit("tatro2020/fig9", "clean and robust accuracy, with ten classes", fig9, draw_accuracies)
