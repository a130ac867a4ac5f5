"""Rossi, Singh, Hannagan: On permutation symmetries in Bayesian neural network posteriors (2023)."""

from coset_papers.outcome import Exhibit
from coset_papers.rossi2023.collapse import draw_fig10, fig10
from coset_papers.rossi2023.costs import draw_fig_a13, fig_a13
from coset_papers.rossi2023.curves import draw_curves, draw_fig3, fig3, fig4, fig11, fig12, fig_a15
from coset_papers.rossi2023.planes import draw_planes, fig2, fig6, fig_a16
from coset_papers.rossi2023.snelson import draw_fig1, fig1
from coset_papers.rossi2023.sweeps import draw_sweep, fig7, fig8
from coset_papers.rossi2023.timings import draw_fig_a14, fig_a14
from coset_papers.rossi2023.widths import draw_fig5, draw_fig9, fig5, fig9

__all__ = ["EXHIBITS"]

EXHIBITS = {
    "fig1": Exhibit("regression on a line, halfway between two posteriors", fig1, draw_fig1),
    "fig2": Exhibit("the log-posterior of an MLP on the plane of three means", fig2, draw_planes),
    "fig3": Exhibit("the loss along the mixture and along the geodesic", fig3, draw_fig3),
    "fig4": Exhibit("barriers between posteriors, naive and aligned", fig4, draw_curves),
    "fig5": Exhibit("barriers by width", fig5, draw_fig5),
    "fig6": Exhibit("the log-posterior of ResNet20 on planes of samples", fig6, draw_planes),
    "fig7": Exhibit("barriers by prior variance", fig7, draw_sweep),
    "fig8": Exhibit("barriers by temperature", fig8, draw_sweep),
    "fig9": Exhibit("barriers of VI and of MAP by width", fig9, draw_fig9),
    "fig10": Exhibit("the variance of hidden units along the path", fig10, draw_fig10),
    "fig11": Exhibit("barriers with filter response norm and with layer norm", fig11, draw_curves),
    "fig12": Exhibit("barriers with and without data augmentation", fig12, draw_curves),
    "figA13": Exhibit("alignment by means, KL and Wasserstein", fig_a13, draw_fig_a13),
    "figA14": Exhibit("seconds of alignment by width", fig_a14, draw_fig_a14),
    "figA15": Exhibit("barriers with a hundred classes", fig_a15, draw_curves),
    "figA16": Exhibit("the log-posterior of ResNet20 on the plane of three means", fig_a16, draw_planes),
}
