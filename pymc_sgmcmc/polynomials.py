"""Polynomials in place of functions."""

from numpy.polynomial import Polynomial, chebyshev


def coefficients(function, low: float, high: float, degree: int) -> list[float]:
    """Power series that interpolates a function at Chebyshev nodes, lowest power first."""
    middle, half = (low + high) / 2, (high - low) / 2
    series = chebyshev.chebinterpolate(lambda t: function(middle + half * t), degree)
    polynomial = Polynomial(chebyshev.cheb2poly(series))
    return list(map(float, polynomial(Polynomial([-middle / half, 1 / half])).coef))
