"""Windows: the patches of an image that a convolution or a pooling looks at.

Images are x[n, c, h, w]; windows of i by j pixels lie p by q over the padded image, `stride` pixels apart. Pairs are
(down, across).
"""

from __future__ import annotations

from collections.abc import Iterator

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import Array, Call, expect, ints_attr
from strategy.sbp.tensor import Shape

Pair = tuple[int, int]


def pair(attrs: Attrs, key: str) -> Pair:
    """The attribute `key`; raises InputError if it is not two whole numbers."""
    found = ints_attr(attrs, key)
    expect(len(found) == 2, f"a wrong attribute {key!r}", got=found, expected="two whole numbers: down, across")
    return found[0], found[1]


def window_counts(image: Shape, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    """How many windows fit down and across: (p, q).

    Raises:
        InputError: none fits, or a figure is not possible.
    """
    sane = min(stride) >= 1 and all(0 <= pad < wide for pad, wide in zip(padding, kernel, strict=True))
    expected = "kernel > padding >= 0, stride >= 1"
    expect(sane, "windows are not possible", got=(kernel, stride, padding), expected=expected)
    counts = [
        (size + 2 * pad - wide) // step + 1
        for size, wide, step, pad in zip(image[2:], kernel, stride, padding, strict=True)
    ]
    expect(min(counts) >= 1, "no window fits", got=(image, kernel, padding), expected="an image as large as the kernel")
    return counts[0], counts[1]


def uncut_dims(image: Shape, kernel: Pair, stride: Pair, padding: Pair, parts: int) -> list[int]:
    """The dims of [n, c, h, w] whose split into `parts` cuts no window: 2, 3, both or neither.

    Windows must tile the dim. Others reach over the cut into pixels of the next rank, which no boxing step exchanges.
    """
    found = []
    for dim, wide, step, pad in zip((2, 3), kernel, stride, padding, strict=True):
        tiles = wide == step and pad == 0 and image[dim] % step == 0
        if tiles and (step == 1 or image[dim] // step % parts == 0):
            found.append(dim)
    return found


def padded(call: Call, name: str, x: Array, padding: Pair, fill: float) -> Array:
    """The images in a frame of `fill`; the images themselves where there is no padding."""
    if padding == (0, 0):
        return x
    n, c, h, w = x.shape
    frame = call.workspace.get(name, (n, c, h + 2 * padding[0], w + 2 * padding[1]), x.dtype)
    frame[...] = fill
    inside(frame, padding)[...] = x
    return frame


def inside(frame: Array, padding: Pair) -> Array:
    """View of a padded image without its frame."""
    down, across = padding
    return frame[:, :, down : frame.shape[2] - down, across : frame.shape[3] - across]


def slabs(frame: Array, kernel: Pair, stride: Pair, counts: Pair) -> Iterator[tuple[int, Array]]:
    """For every pixel of a window, its number and the view [n, c, p, q] of that pixel of all windows."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i, i + (counts[0] - 1) * stride[0] + 1, stride[0])
            columns = slice(j, j + (counts[1] - 1) * stride[1] + 1, stride[1])
            yield i * kernel[1] + j, frame[:, :, rows, columns]
