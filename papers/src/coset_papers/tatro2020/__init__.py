"""Tatro, Chen, Das, Melnyk, Sattigeri, Lai: Optimizing mode connectivity via neuron alignment (2020)."""

from coset_papers.outcome import Exhibit
from coset_papers.tatro2020.alignments import draw_fig2, fig2
from coset_papers.tatro2020.grid import draw_table3, table3
from coset_papers.tatro2020.learning import draw_fig6, fig6
from coset_papers.tatro2020.planes import draw_fig3, draw_planes, fig3, fig5, fig7
from coset_papers.tatro2020.robust import draw_accuracies, draw_fig8, fig4, fig8, fig9
from coset_papers.tatro2020.signatures import draw_fig1, fig1
from coset_papers.tatro2020.tables import table1, table2
from coset_papers.tatro2020.tables_draw import draw_table1, draw_table2

__all__ = ["EXHIBITS"]

EXHIBITS = {
    "table1": Exhibit("accuracy along curves, by network and kind of curve", table1, draw_table1),
    "table2": Exhibit("training loss of curves, by network and kind of curve", table2, draw_table2),
    "table3": Exhibit("accuracy along curves, by rate and batch size", table3, draw_table3),
    "fig1": Exhibit("correlation of units, layer by layer, before and after alignment", fig1, draw_fig1),
    "fig2": Exhibit("accuracy along curves learned after several alignments", fig2, draw_fig2),
    "fig3": Exhibit("where curves begin, how they are learned, and accuracy along them", fig3, draw_fig3),
    "fig4": Exhibit("clean and robust accuracy along curves between robust networks", fig4, draw_accuracies),
    "fig5": Exhibit("loss and accuracy on the plane where curves begin", fig5, draw_planes),
    "fig6": Exhibit("training loss while curves are learned", fig6, draw_fig6),
    "fig7": Exhibit("loss and accuracy on the planes of learned curves", fig7, draw_planes),
    "fig8": Exhibit("robust loss along curves between robust networks", fig8, draw_fig8),
    "fig9": Exhibit("clean and robust accuracy, with ten classes", fig9, draw_accuracies),
}
