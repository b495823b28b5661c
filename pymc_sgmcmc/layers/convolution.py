"""Convolution and pooling of images, as plain PyTensor expressions; channels are the last axis.

A convolution is a sum of matrix products, one for each row of the kernel: the part of a pixel's
window that meets this row is a row of a matrix, made of shifted slices of the images side by side.
"""

from functools import reduce
from typing import Any, Literal

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.number_checks import whole_number

NARROW = 32
"""Number of values per new channel in a row of the kernel below which all rows form one matrix
product, because products of very narrow matrices are slow."""


def conv2d(
    images: Any, kernel: Any, *, padding: Literal["valid", "same"] = "valid"
) -> TensorVariable:
    """Convolve images with a kernel, as neural networks do: without flipping it.

    ``out[b, i, j, o] = sum over u, v, c of images[b, i + u, j + v, c] * kernel[u, v, c, o]``

    Parameters
    ----------
    images : tensor, shape (images, height, width, channels)
        All but the first length must be known when the model is written: they are after
        ``data.reshape((-1, 28, 28, 1))``.
    kernel : tensor, shape (rows, columns, channels, new channels)
        For example ``pm.Normal("kernel", 0, 0.1, shape=(5, 5, 1, 32))``.
    padding : {"valid", "same"}, default "valid"
        "valid": only windows inside the image, so that it shrinks by rows - 1 and columns - 1.
        "same": zeros around the image, so that it keeps its size (for an even number of rows or
        columns with one more at the end).

    Returns
    -------
    tensor, shape (images, new height, new width, new channels)

    Raises
    ------
    ValueError
        For tensors with a different number of axes, unknown lengths, different numbers of channels,
        or a kernel that is larger than the image.

    Notes
    -----
    Use it with ``compile_kwargs={"mode": "JAX"}``, because on numba networks with convolutions take
    several times as long to compile.

    Examples
    --------
    >>> import numpy as np, pymc_sgmcmc as sgm
    >>> image, kernel = np.arange(9.0).reshape(1, 3, 3, 1), np.ones((2, 2, 1, 1))
    >>> sgm.conv2d(image, kernel).eval()[0, :, :, 0]
    array([[ 8., 12.],
           [20., 24.]])
    """
    images, kernel = pt.as_tensor(images), pt.as_tensor(kernel)
    height, width, channels = _image_shape("conv2d", images)
    if kernel.ndim != 4 or None in kernel.type.shape:
        raise ValueError(
            f"conv2d: the kernel has the shape {kernel.type.shape}, but must have (rows, columns, "
            "channels, new channels), all known when the model is written."
        )
    rows, columns, kernel_channels, new_channels = kernel.type.shape
    if kernel_channels != channels:
        raise ValueError(
            f"conv2d: the images have {channels} channels (their last axis), but the kernel of "
            f"shape {kernel.type.shape} is for {kernel_channels} (its third axis)."
        )
    if padding not in ("valid", "same"):
        raise ValueError(f"padding={padding!r} must be 'valid' or 'same'.")
    if padding == "same":
        before = ((rows - 1) // 2, (columns - 1) // 2)
        after = (rows - 1 - before[0], columns - 1 - before[1])
        images = _with_zeros(images, before, after)
        height, width = height + rows - 1, width + columns - 1
    new_height, new_width = height - rows + 1, width - columns + 1
    if new_height < 1 or new_width < 1:
        raise ValueError(
            f"conv2d: the kernel's {rows} x {columns} pixels do not fit into the image's "
            f"{height} x {width}: pass a smaller kernel or padding='same'."
        )
    size = columns * channels
    wide = pt.concatenate([images[:, :, v : v + new_width] for v in range(columns)], axis=3)
    strips = [wide[:, u : u + new_height] for u in range(rows)]
    if size < NARROW:
        strips, kernel, size = [pt.concatenate(strips, axis=3)], kernel[None], rows * size
    products = [
        strip.reshape((-1, size)) @ kernel[u].reshape((size, new_channels))
        for u, strip in enumerate(strips)
    ]
    return reduce(pt.add, products).reshape((-1, new_height, new_width, new_channels))


def max_pool2d(images: Any, size: int = 2) -> TensorVariable:
    """Take the maximum over windows of ``size`` x ``size`` pixels that do not overlap.

    Parameters
    ----------
    images : tensor, shape (images, height, width, channels)
        All but the first length must be known when the model is written.
    size : int, default 2
        Rows and columns beyond a multiple of it are left out.

    Returns
    -------
    tensor, shape (images, height // size, width // size, channels)
        Of equal maxima only one has a gradient.

    Raises
    ------
    ValueError
        For a different number of axes, unknown lengths, or a window that is larger than the image.

    Examples
    --------
    >>> import numpy as np, pymc_sgmcmc as sgm
    >>> sgm.max_pool2d(np.arange(16.0).reshape(1, 4, 4, 1)).eval()[0, :, :, 0]
    array([[ 5.,  7.],
           [13., 15.]])
    """
    images = pt.as_tensor(images)
    height, width, channels = _image_shape("max_pool2d", images)
    whole_number("size", size, 1, min(height, width), most_is="the image's size")
    height, width = height // size * size, width // size * size
    images = images[:, :height, :width]
    # Not `pt.max`, whose gradient goes to all of several equal maxima.
    rows = images.reshape((-1, height // size, size, width, channels))
    images = reduce(pt.maximum, [rows[:, :, u] for u in range(size)])
    columns = images.reshape((-1, height // size, width // size, size, channels))
    return reduce(pt.maximum, [columns[:, :, :, v] for v in range(size)])


def _image_shape(function: str, images: TensorVariable) -> tuple[int, int, int]:
    """Return the height, the width and the number of channels."""
    if images.ndim != 4:
        raise ValueError(
            f"{function}: the images have {images.ndim} axes, but must have four: (images, height, "
            "width, channels), as after data.reshape((-1, 28, 28, 1))."
        )
    shape = images.type.shape[1:]
    if None in shape:
        raise ValueError(
            f"{function}: the images have the shape {images.type.shape} (None: unknown): reshape "
            "them with numbers, as in data.reshape((-1, 28, 28, 1))."
        )
    return shape


def _with_zeros(images, before: tuple[int, int], after: tuple[int, int]):
    """Return images with rows and columns of zeros around them."""
    for axis, first, last in zip((1, 2), before, after, strict=True):
        parts = []
        for n in (first, last):
            lengths = [*images.shape]
            lengths[axis] = pt.constant(n)
            parts.append(pt.zeros(lengths, dtype=images.dtype) if n else None)
        parts = [parts[0], images, parts[1]]
        images = pt.concatenate([p for p in parts if p is not None], axis=axis)
    return images
