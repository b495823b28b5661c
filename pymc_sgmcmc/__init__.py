"""Minibatch (stochastic-gradient) MCMC for PyMC models."""

from importlib.metadata import version

from pymc_sgmcmc.groups import Groups
from pymc_sgmcmc.latents.completion import complete
from pymc_sgmcmc.latents.evaluation import log_marginal_likelihood
from pymc_sgmcmc.latents.gibbs import Gibbs
from pymc_sgmcmc.latents.importance import NeuralImportance
from pymc_sgmcmc.msgnht import MSGNHT_E, MSGNHT_S
from pymc_sgmcmc.psgld import PSGLD
from pymc_sgmcmc.sampling import sample
from pymc_sgmcmc.schedules import BlockDecay, Cyclical, PolynomialDecay
from pymc_sgmcmc.sghmc import SGHMC_E, SGHMC_S
from pymc_sgmcmc.sgld import SGLD
from pymc_sgmcmc.sgnht import SGNHT
from pymc_sgmcmc.sgnht_s import SGNHT_S
from pymc_sgmcmc.sgrld import SGRLD
from pymc_sgmcmc.storage.recorder import KeptDraws
from pymc_sgmcmc.storage.store import ZarrStore
from pymc_sgmcmc.streaming.shuffle_on_disk import shuffle_on_disk
from pymc_sgmcmc.streaming.sources import StreamedData

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
    "StreamedData",
    "ZarrStore",
    "complete",
    "log_marginal_likelihood",
    "sample",
    "shuffle_on_disk",
]
