"""Gelberg, van der Ouderaa, van der Wilk, Gal: Variational inference failures under model symmetries (2024)."""

from coset_papers.gelberg2024.information import information
from coset_papers.gelberg2024.information_draw import draw_information
from coset_papers.gelberg2024.mode_proximity import draw_theorem31, theorem31
from coset_papers.gelberg2024.mode_seeking import fig2, fig3, fig5
from coset_papers.gelberg2024.mode_seeking_draw import draw_fig2, draw_fig3, draw_fig5
from coset_papers.gelberg2024.symmetrization import symmetrization
from coset_papers.gelberg2024.symmetrization_draw import draw_symmetrization
from coset_papers.gelberg2024.table1 import draw_table1, table1
from coset_papers.gelberg2024.tractable import fig4, table2, table3
from coset_papers.gelberg2024.tractable_draw import draw_fig4, draw_table2, draw_table3
from coset_papers.outcome import Exhibit

__all__ = [
    "EXHIBITS",
    "fig2",
    "fig3",
    "fig4",
    "fig5",
    "information",
    "symmetrization",
    "table1",
    "table2",
    "table3",
    "theorem31",
]

EXHIBITS = {
    "fig2": Exhibit("the Gaussian fitted by reverse KL to two modes, on a line", fig2, draw_fig2),
    "fig3": Exhibit("mean, variance and KL of that Gaussian by the distance of the modes", fig3, draw_fig3),
    "fig4": Exhibit("the posterior of a network with two weights, exact and approximated", fig4, draw_fig4),
    "fig5": Exhibit("the threshold of mode seeking by the deviation of the modes", fig5, draw_fig5),
    "table1": Exhibit("test accuracy on MNIST with and without symmetrization, by width", table1, draw_table1),
    "table2": Exhibit("test error of that network, trained with and without symmetrization", table2, draw_table2),
    "table3": Exhibit("its evidence lower bounds, and how much symmetrization adds", table3, draw_table3),
    "information": Exhibit("estimates of the mutual information beside the exact one", information, draw_information),
    "symmetrization": Exhibit("where symmetrization helps, and where it cannot", symmetrization, draw_symmetrization),
    "theorem31": Exhibit("the distance to the nearest equivalent mode by width", theorem31, draw_theorem31),
}
