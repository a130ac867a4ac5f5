"""The public surface of coset: every name and the file it lives in.

The one table of public names. Type checkers read it as a stub, `coset/__init__.py` loads names by it when they are
first used, and `__all__`, the reference and the tests are made from it.
"""

from coset import (
    alignment as alignment,
    assignment as assignment,
    cli as cli,
    core as core,
    data as data,
    flow as flow,
    inference as inference,
    paths as paths,
    plot as plot,
    populations as populations,
    solutions as solutions,
    symmetries as symmetries,
    training as training,
    weightspace as weightspace,
    zoo as zoo,
)
from coset._version import __version__ as __version__
from coset.alignment.activations import Activations as Activations
from coset.alignment.align import (
    align as align,
    align_many as align_many,
)
from coset.alignment.coordinate_ascent import Match as Match
from coset.alignment.learned import Learned as Learned
from coset.alignment.many import ManyMatch as ManyMatch
from coset.alignment.merge import merge as merge
from coset.alignment.method import (
    AlignMethod as AlignMethod,
    Cost as Cost,
)
from coset.alignment.population import PopulationMatch as PopulationMatch
from coset.alignment.signature import signature as signature
from coset.alignment.sinkhorn import Sinkhorn as Sinkhorn
from coset.core import state as state
from coset.core.checkpoint import (
    load_state as load_state,
    open_state as open_state,
    save_state as save_state,
)
from coset.core.errors import (
    AssignmentError as AssignmentError,
    CosetError as CosetError,
    DataError as DataError,
    ModelError as ModelError,
    StateError as StateError,
    SymmetryError as SymmetryError,
)
from coset.core.progress import (
    Epoch as Epoch,
    Event as Event,
    Progress as Progress,
    on_epoch as on_epoch,
)
from coset.core.state import (
    State as State,
    StateLike as StateLike,
)
from coset.data.dataset import (
    DataSet as DataSet,
    Split as Split,
)
from coset.flow.coordinates import (
    BaseDistribution as BaseDistribution,
    normal_starts as normal_starts,
)
from coset.flow.flow import Flow as Flow
from coset.flow.guidance import Guidance as Guidance
from coset.flow.importance import (
    ImportanceWeights as ImportanceWeights,
    importance as importance,
    log_likelihood as log_likelihood,
    log_posterior as log_posterior,
    quotient_log_prior as quotient_log_prior,
)
from coset.flow.matching import (
    FlowPlan as FlowPlan,
    Matching as Matching,
)
from coset.flow.velocity_network import Architecture as Architecture
from coset.inference.adversarial import Adversarial as Adversarial
from coset.inference.deep_ensemble import DeepEnsemble as DeepEnsemble
from coset.inference.diagnostics import (
    Convergence as Convergence,
    convergence as convergence,
    ess as ess,
    r_hat as r_hat,
)
from coset.inference.elbo import (
    Elbo as Elbo,
    elbo as elbo,
)
from coset.inference.fit import fit as fit
from coset.inference.hmc import HMC as HMC
from coset.inference.laplace import Laplace as Laplace
from coset.inference.map import MAP as MAP
from coset.inference.sghmc import SGHMC as SGHMC
from coset.inference.sgld import SGLD as SGLD
from coset.inference.swag import SWAG as SWAG
from coset.inference.symmetrized_vi import SymmetrizedVI as SymmetrizedVI
from coset.inference.vi import VI as VI
from coset.paths.barrier import (
    Barrier as Barrier,
    barrier as barrier,
)
from coset.paths.connect import Connect as Connect
from coset.paths.curve import (
    Bezier as Bezier,
    Chain as Chain,
    Curve as Curve,
    load_curve as load_curve,
)
from coset.paths.find_curve import find_curve as find_curve
from coset.paths.geodesic import (
    Geodesic as Geodesic,
    geodesic as geodesic,
)
from coset.paths.interpolation_bound import (
    InterpolationBound as InterpolationBound,
    interpolation_bound as interpolation_bound,
)
from coset.paths.mixture import (
    MixturePath as MixturePath,
    mixture as mixture,
)
from coset.paths.pam import PAM as PAM
from coset.paths.plane import (
    Plane as Plane,
    plane as plane,
)
from coset.populations.chunk import Collect as Collect
from coset.populations.collect import collect as collect
from coset.populations.diversity import (
    Diversity as Diversity,
    diversity as diversity,
)
from coset.populations.model_averages import (
    ModelAverage as ModelAverage,
    ModelAverages as ModelAverages,
    model_averages as model_averages,
)
from coset.populations.novelty import (
    Closeness as Closeness,
    Novelty as Novelty,
    novelty as novelty,
)
from coset.populations.pair_barriers import (
    PairBarriers as PairBarriers,
    pair_barriers as pair_barriers,
)
from coset.populations.population import Population as Population
from coset.populations.scores import (
    Scores as Scores,
    Spread as Spread,
    scores as scores,
)
from coset.populations.sliced_wasserstein import (
    SlicedDistance as SlicedDistance,
    sliced_wasserstein as sliced_wasserstein,
)
from coset.solutions.dirac import Dirac as Dirac
from coset.solutions.ensemble import Ensemble as Ensemble
from coset.solutions.evaluate import (
    Evaluation as Evaluation,
    evaluate as evaluate,
)
from coset.solutions.full_gaussian import FullGaussian as FullGaussian
from coset.solutions.gaussian import Gaussian as Gaussian
from coset.solutions.kronecker_gaussian import KroneckerGaussian as KroneckerGaussian
from coset.solutions.load import load as load
from coset.solutions.mixture import Mixture as Mixture
from coset.solutions.overlap import (
    Overlap as Overlap,
    overlap as overlap,
)
from coset.solutions.pgd import PGD as PGD
from coset.solutions.predictive import (
    Moments as Moments,
    moments as moments,
    predict as predict,
)
from coset.solutions.solution import Solution as Solution
from coset.solutions.symmetrized import Symmetrized as Symmetrized
from coset.solutions.wasserstein import wasserstein as wasserstein
from coset.symmetries import tape as tape
from coset.symmetries.examples import Example as Example
from coset.symmetries.fold import (
    fold as fold,
    untie as untie,
)
from coset.symmetries.group import (
    Element as Element,
    Group as Group,
)
from coset.symmetries.infer import symmetry as symmetry
from coset.symmetries.symmetry import Symmetry as Symmetry
from coset.symmetries.verify import Verification as Verification
from coset.training.loop import (
    GradientMethod as GradientMethod,
    Method as Method,
)
from coset.weightspace.canonical import (
    Canonical as Canonical,
    canonicalize as canonicalize,
)
from coset.weightspace.graph import (
    NeuralGraph as NeuralGraph,
    neural_graph as neural_graph,
)
from coset.weightspace.graph_network import GraphNetwork as GraphNetwork
from coset.weightspace.manifold import (
    Manifold as Manifold,
    manifold as manifold,
)
from coset.weightspace.pna import PNA as PNA
from coset.weightspace.probes import probes as probes
from coset.weightspace.relational_transformer import RelationalTransformer as RelationalTransformer
from coset.weightspace.unit_transformer import UnitTransformer as UnitTransformer
from coset.weightspace.volume import (
    log_scales as log_scales,
    log_volume as log_volume,
)
