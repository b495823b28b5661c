"""One update of each sampler, from the papers' equations, written in NumPy.

Each takes theta, the sampler's state (which it advances), the noise of each of its gradients, the
step size, the hyperparameters, and the gradient: ``gradient(theta)`` has the lists ``total`` and
``mean_likelihood``. It returns the next theta.
"""

import numpy as np


def sgld(theta, s, z, h, settings, gradient):
    """Welling and Teh."""
    g = gradient(theta).total
    return [t + h / 2 * gi + np.sqrt(h) * zi for t, gi, zi in zip(theta, g, z, strict=True)]


def psgld(theta, s, z, h, settings, gradient):
    """PSGLD paper, eq 4-5 without Gamma."""
    a, lam = settings["alpha"], settings["lam"]
    at_theta = gradient(theta)
    s.V = [a * v + (1 - a) * m * m for v, m in zip(s.V, at_theta.mean_likelihood, strict=True)]
    G = [1 / (lam + np.sqrt(v)) for v in s.V]
    return [
        t + h / 2 * Gi * gi + np.sqrt(h * Gi) * zi
        for t, Gi, gi, zi in zip(theta, G, at_theta.total, z, strict=True)
    ]


def euler(theta, s, z, h, settings, gradient):
    """High-order paper, section 2.2: theta, then p at the new theta, then xi (SGHMC: xi = D)."""
    [D] = settings.values()
    theta = [t + h * p for t, p in zip(theta, s.p, strict=True)]
    xi = getattr(s, "xi", [D] * len(theta))
    s.p = [
        p + h * g - h * x * p + np.sqrt(2 * D * h) * zi
        for p, g, x, zi in zip(s.p, gradient(theta).total, xi, z, strict=True)
    ]
    if hasattr(s, "xi"):
        s.xi = [x + h * (p * p - 1) for x, p in zip(s.xi, s.p, strict=True)]
    return theta


def symmetric(theta, s, z, h, settings, gradient):
    """High-order paper, eq 3: A, B, O, B, A (SGHMC: xi = D)."""
    [D] = settings.values()

    def half_A(theta):
        if hasattr(s, "xi"):
            s.xi = [x + h / 2 * (p * p - 1) for x, p in zip(s.xi, s.p, strict=True)]
        return [t + h / 2 * p for t, p in zip(theta, s.p, strict=True)]

    theta = half_A(theta)
    decay = [np.exp(-h / 2 * x) for x in getattr(s, "xi", [D] * len(theta))]
    s.p = [
        ((p * e) + h * g + np.sqrt(2 * D * h) * zi) * e
        for p, e, g, zi in zip(s.p, decay, gradient(theta).total, z, strict=True)
    ]
    return half_A(theta)


def kick_first(theta, s, z, other_z, h, settings, gradient):
    """Leapfrog with half a kick first, and the friction beside it: O, B, A, B, O."""
    D = settings["diffusion"]

    def half_O(theta, z):
        g = gradient(theta).total
        s.p = [p + h / 2 * gi + np.sqrt(D * h) * zi for p, gi, zi in zip(s.p, g, z, strict=True)]

    def half_B():
        s.p = [p * np.exp(-h / 2 * x) for p, x in zip(s.p, s.xi, strict=True)]

    half_O(theta, z)
    half_B()
    theta = [t + h * p for t, p in zip(theta, s.p, strict=True)]
    s.xi = [x + h * (p * p - 1) for x, p in zip(s.xi, s.p, strict=True)]
    half_B()
    half_O(theta, other_z)
    return theta


def sgnht(theta, s, z, h, settings, gradient):
    """SGNHT paper, Algorithm 1."""
    A = settings["diffusion"]
    xi = s.xi[0]
    s.p = [
        p - xi * p * h + g * h + np.sqrt(2 * A) * np.sqrt(h) * zi
        for p, g, zi in zip(s.p, gradient(theta).total, z, strict=True)
    ]
    theta = [t + p * h for t, p in zip(theta, s.p, strict=True)]
    n = sum(np.size(p) for p in s.p)
    s.xi = [xi + (sum(np.sum(p * p) for p in s.p) / n - 1) * h]
    return theta


def sgnht_symmetric(theta, s, z, h, settings, gradient):
    """High-order paper, eq 3, with the xi of the SGNHT paper, eq 6."""
    D = settings["diffusion"]
    n = sum(np.size(p) for p in s.p)

    def half_A(theta):
        s.xi = [s.xi[0] + h / 2 * (sum(np.sum(p * p) for p in s.p) / n - 1)]
        return [t + h / 2 * p for t, p in zip(theta, s.p, strict=True)]

    theta = half_A(theta)
    half_B = np.exp(-h / 2 * s.xi[0])
    s.p = [
        (p * half_B + h * g + np.sqrt(2 * D * h) * zi) * half_B
        for p, g, zi in zip(s.p, gradient(theta).total, z, strict=True)
    ]
    return half_A(theta)
