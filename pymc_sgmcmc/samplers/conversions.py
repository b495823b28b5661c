"""Parametrisations of the same dynamics in other papers.

========================  =========================================  ==========================
paper                     symbols there                              here
========================  =========================================  ==========================
SGNHT, Algorithm 2        u = p h, eta = h^2, alpha = xi h, a = A h  h = sqrt(eta), D = a / h
doubly stochastic, eq 4   gamma = p h, lambda = h^2, xi = D h        h = sqrt(lambda), D = xi / h
the same per datum        gradient divided by N: lambda' = N h^2     h = sqrt(lambda' / N)
========================  =========================================  ==========================
"""

import math

from pymc_sgmcmc.number_checks import nonnegative_number, positive_number

SQUARE = "It is the square of the step size, 1e-4 for a step size of 0.01"
"""Description of a learning rate, for messages."""


class FromLearningRate:
    """Build a thermostat sampler from the SGNHT paper's second form."""

    @classmethod
    def from_learning_rate(cls, vars=None, *, eta: float, a: float, **options):
        """Build the step from eta and a of the SGNHT paper, section 5.2 (Algorithm 2).

        Parameters
        ----------
        vars : list of variables, optional
            As for the class.
        eta : float
            Learning rate, the square of the step size, positive.
        a : float
            Injected noise, D h, at least 0.
        **options
            The other arguments of the class.

        Returns
        -------
        step
            A step of this class, with ``step_size`` sqrt(eta) and ``diffusion`` a / sqrt(eta).

        Raises
        ------
        ValueError
            For ``eta`` not positive or ``a`` negative, in addition to the errors of the class.

        Examples
        --------
        >>> import pymc as pm, pymc_sgmcmc as sgm
        >>> with pm.Model():
        ...     x = pm.Normal("x")
        ...     sgm.SGNHT.from_learning_rate(eta=0.25, a=1.0)
        SGNHT(step_size=0.5, diffusion=2.0, batch_size=None, thin=1) of [x]
        """
        h = math.sqrt(positive_number("eta", eta, f"{SQUARE}."))
        remedy = "It is the injected noise, D times the step size: 0.01 for example."
        diffusion = nonnegative_number("a", a, remedy) / h
        return cls(vars, step_size=h, diffusion=diffusion, **options)


class FromMomentumDecay:
    """Build SGHMC from a learning rate and a momentum decay."""

    @classmethod
    def from_momentum_decay(
        cls,
        vars=None,
        *,
        learning_rate: float,
        momentum_decay: float,
        per_datum: int | None = None,
        **options,
    ):
        """Build the step from lambda and xi of the doubly stochastic paper, eq 4.

        Parameters
        ----------
        vars : list of variables, optional
            As for the class.
        learning_rate : float
            lambda, the square of the step size, positive.
        momentum_decay : float
            xi = D h, the fraction of the momentum lost per update, at least 0.
        per_datum : int, optional
            N, if the learning rate multiplies the gradient divided by N.
        **options
            The other arguments of the class.

        Returns
        -------
        step
            A step of this class, with ``step_size`` h = sqrt(learning_rate / N) (N = 1 without
            ``per_datum``) and ``friction`` momentum_decay / h.

        Raises
        ------
        ValueError
            For ``learning_rate`` or ``per_datum`` not positive or ``momentum_decay`` negative, in
            addition to the errors of the class.

        Examples
        --------
        >>> import pymc as pm, pymc_sgmcmc as sgm
        >>> with pm.Model():
        ...     x = pm.Normal("x")
        ...     sgm.SGHMC_S.from_momentum_decay(learning_rate=0.25, momentum_decay=0.1)
        SGHMC_S(step_size=0.5, friction=0.2, batch_size=None, thin=1) of [x]
        """
        n = 1.0
        if per_datum is not None:
            remedy = "It is the number of rows; leave it out if the gradient is not divided by it."
            n = positive_number("per_datum", per_datum, remedy)
        remedy = f"{SQUARE} (times per_datum=, if that is given)."
        h = math.sqrt(positive_number("learning_rate", learning_rate, remedy) / n)
        remedy = "It is the fraction of the momentum lost per update: 0.01 for example."
        friction = nonnegative_number("momentum_decay", momentum_decay, remedy) / h
        return cls(vars, step_size=h, friction=friction, **options)
