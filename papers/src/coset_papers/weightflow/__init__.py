"""Flow matching over the weights of neural networks modulo their symmetries (a master's thesis)."""

from coset_papers.outcome import Exhibit
from coset_papers.weightflow.ablation import ablation, scaling
from coset_papers.weightflow.ablation_draw import draw_ablation, draw_scaling
from coset_papers.weightflow.barriers import barriers, draw_barriers
from coset_papers.weightflow.cancer import table1
from coset_papers.weightflow.cancer_draw import draw_table1
from coset_papers.weightflow.guidance import guidance
from coset_papers.weightflow.guidance_draw import draw_guidance
from coset_papers.weightflow.mnist import averages, novelty, table2
from coset_papers.weightflow.mnist_draw import draw_averages, draw_novelty, draw_table2
from coset_papers.weightflow.others import cnn, deep, draw_other
from coset_papers.weightflow.posterior import posterior
from coset_papers.weightflow.posterior_draw import draw_posterior
from coset_papers.weightflow.widths import draw_width, width

__all__ = ["EXHIBITS"]

EXHIBITS = {
    "table1": Exhibit("nine flows of networks for breast cancer, and ours", table1, draw_table1),
    "barriers": Exhibit("the loss halfway between networks for breast cancer", barriers, draw_barriers),
    "table2": Exhibit("generated networks beside trained ones, on MNIST", table2, draw_table2),
    "averages": Exhibit("averaged predictions of more and more generated networks", averages, draw_averages),
    "novelty": Exhibit("distances to the nearest training network", novelty, draw_novelty),
    "ablation": Exhibit("what makes the flow work, one thing changed at a time", ablation, draw_ablation),
    "guidance": Exhibit("a flow steered to other images, beside gradient descent", guidance, draw_guidance),
    "width": Exhibit("networks of other widths than the flow has seen", width, draw_width),
    "deep": Exhibit("networks with two hidden layers", deep, draw_other),
    "cnn": Exhibit("convolutional networks", cnn, draw_other),
    "scaling": Exhibit("accuracy of samples by the width of the transformer", scaling, draw_scaling),
    "posterior": Exhibit("posteriors sampled by a flow, beside Markov chains", posterior, draw_posterior),
}
