"""Minibatch (stochastic-gradient) MCMC for PyMC models."""

from importlib.metadata import version

from pymc_sgmcmc.completion import complete
from pymc_sgmcmc.evaluation import log_marginal_likelihood
from pymc_sgmcmc.gibbs import Gibbs
from pymc_sgmcmc.importance import NeuralImportance
from pymc_sgmcmc.latents import Latents
from pymc_sgmcmc.msgnht import MSGNHT_E, MSGNHT_S
from pymc_sgmcmc.psgld import PSGLD
from pymc_sgmcmc.recorder import KeptDraws
from pymc_sgmcmc.schedules import BlockDecay, Cyclical, PolynomialDecay
from pymc_sgmcmc.sghmc import SGHMC_E, SGHMC_S
from pymc_sgmcmc.sgld import SGLD
from pymc_sgmcmc.sgnht import SGNHT

__version__ = version("pymc-sgmcmc")

__all__ = [
    "MSGNHT_E",
    "MSGNHT_S",
    "PSGLD",
    "SGHMC_E",
    "SGHMC_S",
    "SGLD",
    "SGNHT",
    "BlockDecay",
    "Cyclical",
    "Gibbs",
    "KeptDraws",
    "Latents",
    "NeuralImportance",
    "PolynomialDecay",
    "complete",
    "log_marginal_likelihood",
]
