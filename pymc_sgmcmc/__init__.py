"""Minibatch (stochastic-gradient) MCMC for PyMC models."""

from importlib.metadata import version

from pymc_sgmcmc.completion import complete
from pymc_sgmcmc.evaluation import log_marginal_likelihood
from pymc_sgmcmc.gibbs import Gibbs
from pymc_sgmcmc.groups import Groups
from pymc_sgmcmc.importance import NeuralImportance
from pymc_sgmcmc.msgnht import MSGNHT_E, MSGNHT_S
from pymc_sgmcmc.psgld import PSGLD
from pymc_sgmcmc.recorder import KeptDraws
from pymc_sgmcmc.sampling import sample
from pymc_sgmcmc.schedules import BlockDecay, Cyclical, PolynomialDecay
from pymc_sgmcmc.sghmc import SGHMC_E, SGHMC_S
from pymc_sgmcmc.sgld import SGLD
from pymc_sgmcmc.sgnht import SGNHT
from pymc_sgmcmc.sgrld import SGRLD
from pymc_sgmcmc.shuffle_on_disk import shuffle_on_disk
from pymc_sgmcmc.sources import StreamedData
from pymc_sgmcmc.store import ZarrStore

__version__ = version("pymc-sgmcmc")

__all__ = [
    "MSGNHT_E",
    "MSGNHT_S",
    "PSGLD",
    "SGHMC_E",
    "SGHMC_S",
    "SGLD",
    "SGNHT",
    "SGRLD",
    "BlockDecay",
    "Cyclical",
    "Gibbs",
    "Groups",
    "KeptDraws",
    "NeuralImportance",
    "PolynomialDecay",
    "StreamedData",
    "ZarrStore",
    "complete",
    "log_marginal_likelihood",
    "sample",
    "shuffle_on_disk",
]
