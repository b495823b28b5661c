"""Minibatch (stochastic-gradient) MCMC for PyMC models."""

from importlib.metadata import version

# Imported first, because it reads the source of every file that is being imported at that moment.
import arviz_base  # noqa: F401

from pymc_sgmcmc.batches.shuffle_on_disk import shuffle_on_disk
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.diagnosis.certificate_table import certificate
from pymc_sgmcmc.diagnosis.diagnose import diagnose
from pymc_sgmcmc.diagnosis.robust import robust
from pymc_sgmcmc.evaluation.loo import loo
from pymc_sgmcmc.evaluation.marginal_likelihood import log_marginal_likelihood
from pymc_sgmcmc.evaluation.row_completion import complete
from pymc_sgmcmc.instead_of_nuts import instead_of_nuts
from pymc_sgmcmc.latents.gibbs.gibbs import Gibbs
from pymc_sgmcmc.latents.importance.neural_importance import NeuralImportance
from pymc_sgmcmc.layers.convolution import conv2d, max_pool2d
from pymc_sgmcmc.predictions.distillation import distill
from pymc_sgmcmc.predictions.predictions import Predictions
from pymc_sgmcmc.samplers.groups import Groups
from pymc_sgmcmc.samplers.msgnht import MSGNHT_E, MSGNHT_S
from pymc_sgmcmc.samplers.psgld import PSGLD
from pymc_sgmcmc.samplers.sghmc import SGHMC_E, SGHMC_S
from pymc_sgmcmc.samplers.sgld import SGLD
from pymc_sgmcmc.samplers.sgnht import SGNHT, SGNHT_S
from pymc_sgmcmc.samplers.sgrld import SGRLD
from pymc_sgmcmc.sampling import sample
from pymc_sgmcmc.schedules import BlockDecay, Cyclical, PolynomialDecay
from pymc_sgmcmc.storage.kept_draws import KeptDraws
from pymc_sgmcmc.storage.store import ZarrStore

__version__ = version("pymc-sgmcmc")

__all__ = [
    "MSGNHT_E",
    "MSGNHT_S",
    "PSGLD",
    "SGHMC_E",
    "SGHMC_S",
    "SGLD",
    "SGNHT",
    "SGNHT_S",
    "SGRLD",
    "BlockDecay",
    "Cyclical",
    "Gibbs",
    "Groups",
    "KeptDraws",
    "NeuralImportance",
    "PolynomialDecay",
    "Predictions",
    "StreamedData",
    "ZarrStore",
    "certificate",
    "complete",
    "conv2d",
    "diagnose",
    "distill",
    "instead_of_nuts",
    "log_marginal_likelihood",
    "loo",
    "max_pool2d",
    "robust",
    "sample",
    "shuffle_on_disk",
]


def __dir__() -> list[str]:
    """List only the public names, those in `__all__`."""
    return __all__
