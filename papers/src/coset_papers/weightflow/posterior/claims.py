"""What should hold of a posterior if flows are to stand for chains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from coset_papers.outcome import Claim
from coset_papers.weightflow.posterior.cases import EUCLIDEAN
from coset_papers.weightflow.posterior.quality import LEVELS

HELD_OUT, OTHERS, PRIOR = "held-out chains", "other chains", "draws of the prior"
MIXED = 1.05  # of R-hat
CLOSE = 0.02  # nats per example
NEAR = 0.05  # nats per example
COVERED = 0.1  # of the test targets
SHARE, LEAST = 0.1, 10.0  # of draws, that they are worth
ERRORS = 3.0  # standard errors


def posterior_claims(scale: str, row: dict[str, Any]) -> Iterator[Claim]:
    """Of one row of the data."""
    kinds, title = row["kinds"], row["title"]
    flows = {name: one for name, one in kinds.items() if "weights" in one}

    def claim(text: str, ours: str, holds: bool, note: str = "") -> Claim:
        judged = scale != "smoke"
        return Claim(f"{title}: {text}", None, ours, holds if judged else None, note)

    chains = row["chains"]
    yield claim(
        "the chains have mixed",
        f"R-hat of predictions up to {chains['r_hat']:.3f}, effective sample size from {chains['ess']:.0f}",
        chains["r_hat"] < MIXED,
        f"Mixed: R-hat below {MIXED}. R-hat below 1.01 is what is recommended.",
    )
    for name, one in flows.items():
        reference = kinds[HELD_OUT]
        yield claim(
            f"the {name} predicts as well as held-out chains",
            f"test nll {one['nll']:.3f}, chains {reference['nll']:.3f}; rmse {one['rmse']:.3f} and "
            f"{reference['rmse']:.3f}",
            one["nll"] <= reference["nll"] + CLOSE,
            f"As well: within {CLOSE} nats per example.",
        )
        covers = [[kinds[kind]["coverage"][f"{level:g}"] for level in LEVELS] for kind in (name, HELD_OUT)]
        yield claim(
            f"and its intervals cover as many targets as theirs ({name})",
            "; ".join(
                f"{level:.0%} intervals {mine:.0%}, chains {theirs:.0%}"
                for level, mine, theirs in zip(LEVELS, *covers, strict=True)
            ),
            all(abs(mine - theirs) <= COVERED for mine, theirs in zip(*covers, strict=True)),
            f"As many: to {100 * COVERED:g} points, of {row['points'][1]} test targets.",
        )
        fewest = [_settled(counts, reference["nll"]) for counts in (one["moved"], row["moved"])]
        yield claim(
            f"draws of the {name} take fewer gradients than those of the prior until they predict as chains do",
            f"{_gradients(fewest[0])}, from the prior {_gradients(fewest[1])}; nll after {', '.join(one['moved'])} "
            f"gradients {_losses(one['moved'])}, from the prior {_losses(row['moved'])}; chains {reference['nll']:.3f}",
            fewest[0] is not None and (fewest[1] is None or fewest[0] < fewest[1]),
            f"As chains do: within {NEAR} nats, from then on. The gradients are those of Hamiltonian Monte Carlo that "
            "begins at these draws, each a chain of its own, with its warm-up.",
        )
        rivals = {other: kinds[other]["sliced"] for other in ("VI", "symmetrized VI")}
        yield claim(
            f"the {name} is closer to held-out chains than a variational posterior is",
            f"sliced Wasserstein distance modulo symmetry {one['sliced']:.4f}, "
            + ", ".join(f"{other} {value:.4f}" for other, value in rivals.items())
            + f"; chains from one another {kinds[OTHERS]['sliced']:.4f}",
            one["sliced"] < min(rivals.values()),
        )
        effective = chains["ess"] / chains["seconds"]
        yield claim(
            f"the {name} draws faster than chains",
            f"{one['per_second']:.0f} networks a second, chains {effective:.0f} effective ones of "
            f"{reference['per_second']:.0f}, "
            + ", ".join(f"{other} {kinds[other]['per_second']:.0f}" for other in (*rivals, "deep ensemble")),
            one["per_second"] > effective,
            "Draws of a flow are independent. To learn it is not counted, nor are the chains that it learned from; of "
            "an ensemble its training is.",
        )
        weights, evidence = one["weights"], row["evidence"]
        enough = weights["ess"] > max(SHARE * weights["count"], LEAST)
        yield claim(
            f"importance weights make draws of the {name} exact",
            f"worth {weights['ess']:.1f} of {weights['count']} draws; log w has the deviation "
            f"{weights['deviation']:.1f}",
            enough,
            f"Holds if draws are worth more than {SHARE:.0%} of their number, and {LEAST:g}. The errors of the density "
            "in all directions multiply, so that, where there are many, small ones leave all the weight to one draw.",
        )
        bounds = {other: kinds[other]["bound"] for other in rivals}
        if name == EUCLIDEAN and weights["lower"] is not None:  # the density of the other is not one of weights
            yield claim(
                f"the {name} has less divergence from the posterior than the images of a Gaussian",
                f"KL {evidence['log'] - weights['lower']:.1f} nats; "
                + ", ".join(f"{other} {evidence['log'] - bound:.1f}" for other, bound in bounds.items()),
                weights["lower"] > max(bounds.values()),
                "Of all images under permutations and signs, where those of signs count as if no two overlapped. The "
                "divergence of a flow is ruled by few draws that went astray: the median of log w is "
                f"{evidence['log'] - weights['median']:.1f} below log Z.",
            )
        error = math.hypot(weights["error"], evidence["error"])
        yield Claim(
            f"{title}: importance weights of the {name} give the evidence that annealing gives",
            None,
            f"log Z {weights['log_evidence']:.2f} +- {weights['error']:.2f}, annealing {evidence['log']:.2f} +- "
            f"{evidence['error']:.2f} (worth {evidence['ess']:.1f} particles); mean log w over the flow and over "
            f"held-out draws {_number(weights['lower'])} and {weights['upper']:.2f}",
            abs(weights["log_evidence"] - evidence["log"]) <= ERRORS * error if enough and scale != "smoke" else None,
            f"Within {ERRORS:g} standard errors; without a verdict where the draws are worth too little. Where the "
            "particles are worth little, annealing finds too little evidence. The mean of log w over draws of the flow "
            "lies KL(flow, posterior) below log Z, over draws of the posterior KL(posterior, flow) above it.",
        )


def _settled(continued: dict[str, dict[str, float]], nll: float) -> int | None:
    """The number of gradients from which on all losses are near that of chains; None if the last one is not."""
    settled = None
    for count, one in reversed(continued.items()):
        if abs(one["nll"] - nll) > NEAR:
            break
        settled = int(count)
    return settled


def _gradients(count: int | None) -> str:
    return "not with all" if count is None else str(count)


def _losses(continued: dict[str, dict[str, float]]) -> str:
    return ", ".join(f"{one['nll']:.3f}" for one in continued.values())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
