"""The classes of curves (tatro2020 Sections 3.1 and 4): which image of the second network a curve leads to."""

from __future__ import annotations

from dataclasses import dataclass

from coset import Activations


@dataclass(frozen=True)
class CurveKind:
    """align: how the second network is moved first, None if not at all. pam: whether a permutation is then learned."""

    title: str
    align: Activations | None
    pam: bool = False


UNALIGNED, PAM_UNALIGNED, PAM_ALIGNED, ALIGNED = "unaligned", "pam_unaligned", "pam_aligned", "aligned"
KINDS = {
    UNALIGNED: CurveKind("unaligned", None),
    PAM_UNALIGNED: CurveKind("PAM unaligned", None, pam=True),
    PAM_ALIGNED: CurveKind("PAM aligned", Activations(), pam=True),
    ALIGNED: CurveKind("aligned", Activations()),
    "pre_l2": CurveKind("pre-activations, L2", Activations("pre", "l2")),
    "pre_correlation": CurveKind("pre-activations, correlation", Activations("pre", "correlation")),
    "post_l2": CurveKind("post-activations, L2", Activations("post", "l2")),
}
