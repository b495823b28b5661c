"""Digits under small random deformations, made as they are read (as MNIST8M was from MNIST).

MNIST8M has 8,100,000 training images, made from those of MNIST by random transformations. Here
every image is made when a batch asks for it, always the same one for the same number: nothing is
stored.
"""

import numba
import numpy as np

SIDE = 28
ROTATION, SHEAR, ZOOM, SHIFT = 0.15, 0.15, 0.08, 1.0
"""Standard deviations: radians, shear, relative size, pixels."""
BEND = 1.2
"""Standard deviation of the smooth displacements, in pixels."""
KNOTS = 4
"""Displacements are given at so many points a side, and linear between them."""


class DeformedDigits:
    """Binary images by number, made from grey ones; for `StreamedData`.

    Image i is image i modulo their number, turned, sheared, resized, shifted and bent at random,
    each pixel then 1 with the probability of its intensity.

    Parameters
    ----------
    grey : array of uint8, shape (n, 784)
    n_rows : int
    seed : int, optional
    """

    def __init__(self, grey: np.ndarray, n_rows: int, seed: int = 0):
        self._grey = np.pad(grey.reshape(-1, SIDE, SIDE), [(0, 0), (1, 1), (1, 1)])
        self.shape, self.dtype, self._seed = (n_rows, SIDE * SIDE), np.dtype("uint8"), seed
        knots = np.linspace(0, KNOTS - 1, SIDE)
        hat = np.maximum(0, 1 - np.abs(knots[:, None] - np.arange(KNOTS)))
        self._bends = np.einsum("yi,xj->yxij", hat, hat).reshape(SIDE * SIDE, KNOTS**2)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice | np.ndarray | int) -> np.ndarray:
        if np.ndim(which) == 0 and not isinstance(which, slice):
            return self[np.array([which])][0]
        rows = np.arange(len(self))[which] if isinstance(which, slice) else np.asarray(which)
        # A generator for each image: it must not depend on what else is read with it.
        draws = [np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, i]))
                 for i in rows.tolist()]  # fmt: skip
        n = len(rows)
        normal = np.array([g.standard_normal(6 + 2 * KNOTS**2) for g in draws]).reshape(n, -1)
        uniform = np.array([g.random(SIDE * SIDE) for g in draws]).reshape(n, -1)
        return (uniform * 255 < self._deformed(rows % len(self._grey), normal)).astype(self.dtype)

    def _deformed(self, originals: np.ndarray, normal: np.ndarray) -> np.ndarray:
        angle, shear = ROTATION * normal[:, 0], SHEAR * normal[:, 1]
        cos, sin = np.cos(angle), np.sin(angle)
        turn_and_lean = [[cos, shear * cos - sin], [sin, shear * sin + cos]]
        matrix = np.moveaxis(np.array(turn_and_lean), -1, 0)
        matrix = matrix * (1 + ZOOM * normal[:, None, 2:4])
        bend = BEND * normal[:, 6:].reshape(len(normal), KNOTS**2, 2)
        return _intensities(
            self._grey, originals, matrix, SHIFT * normal[:, 4:6], self._bends @ bend
        )


@numba.njit(cache=True, nogil=True)
def _intensities(grey, originals, matrix, shift, bend):
    """Read each pixel between four of the original, about the place where it comes from."""
    out = np.empty((len(originals), SIDE * SIDE))
    middle = (SIDE - 1) / 2
    for n in range(len(originals)):
        image, (yy, yx), (xy, xx) = grey[originals[n]], matrix[n, 0], matrix[n, 1]
        for k in range(SIDE * SIDE):
            from_y, from_x = k // SIDE - middle, k % SIDE - middle
            y = yy * from_y + yx * from_x + middle + shift[n, 0] + bend[n, k, 0]
            x = xy * from_y + xx * from_x + middle + shift[n, 1] + bend[n, k, 1]
            y = min(max(y + 1, 0.0), SIDE + 0.999)  # the original has a margin of one pixel
            x = min(max(x + 1, 0.0), SIDE + 0.999)
            i, j = int(y), int(x)
            y, x = y - i, x - j
            upper = (1 - x) * image[i, j] + x * image[i, j + 1]
            lower = (1 - x) * image[i + 1, j] + x * image[i + 1, j + 1]
            out[n, k] = (1 - y) * upper + y * lower
    return out
