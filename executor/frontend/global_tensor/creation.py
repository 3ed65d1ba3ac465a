"""Creation: global tensors from nothing, from random numbers and from arrays.

Numbers do not depend on layouts: random ones follow from the element's place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.frontend.global_tensor.distributed_tensor import Layouts, legal_layout
from executor.frontend.global_tensor.tensor import GlobalTensor
from executor.frontend.world import current_world
from executor.runtime.draws import normal, uniform
from executor.runtime.neutral import neutral_element
from strategy.base.errors import InputError, SbpError
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import Partial, format_nd, has_partial, local_box
from strategy.sbp.tensor import Box, DType, Shape, TensorSpec, box_shape


def zeros(*shape: int, placement: Placement, sbp: Layouts, dtype: DType = DType.FLOAT32) -> GlobalTensor:
    """All elements zero."""
    return _made("zeros", shape, dtype, placement, sbp, lambda box: np.zeros(box_shape(box)))


def ones(*shape: int, placement: Placement, sbp: Layouts, dtype: DType = DType.FLOAT32) -> GlobalTensor:
    """All elements one."""
    return _made("ones", shape, dtype, placement, sbp, lambda box: np.ones(box_shape(box)))


def randn(*shape: int, placement: Placement, sbp: Layouts, dtype: DType = DType.FLOAT32) -> GlobalTensor:
    """Standard normal numbers: the same in every layout, others at every call.

    Raises:
        InputError: the layout is partial, which no random numbers can be.
    """
    return _drawn("randn", normal, shape, dtype, placement, sbp)


def rand(*shape: int, placement: Placement, sbp: Layouts, dtype: DType = DType.FLOAT32) -> GlobalTensor:
    """Uniform numbers in (0, 1]: the same in every layout, others at every call.

    Raises:
        InputError: the layout is partial, which no random numbers can be.
    """
    return _drawn("rand", uniform, shape, dtype, placement, sbp)


def manual_seed(seed: int) -> None:
    """Begin the random numbers anew."""
    world = current_world()
    world.agree(f"manual_seed({seed})")
    world.seed, world.draws = seed, 0


def from_numpy(whole: ArrayLike, *, placement: Placement, sbp: Layouts) -> GlobalTensor:
    """A tensor of which every rank has the whole and keeps its piece.

    Raises:
        InputError: the layout does not fit.
        RunError: the ranks do not have the same whole.
    """
    array = np.asarray(whole)
    known = [str(dtype) for dtype in DType]
    if str(array.dtype) not in known:
        raise InputError("no dtype of tensors", where="from_numpy", got=str(array.dtype), expected=", ".join(known))

    def cut(box: Box) -> NDArray[Any]:
        piece: NDArray[Any] = array[tuple(slice(begin, end) for begin, end in box)]
        return piece

    name = f"from_numpy {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]} "
    return _made(name, array.shape, DType(str(array.dtype)), placement, sbp, cut)


def _drawn(
    name: str,
    numbers: Callable[[int, int, Box], NDArray[np.float64]],
    shape: Shape,
    dtype: DType,
    placement: Placement,
    sbp: Layouts,
) -> GlobalTensor:
    world = current_world()
    draw = world.draws
    made = _made(name, shape, dtype, placement, sbp, lambda box: numbers(world.seed, draw, box), random=True)
    world.draws += 1
    return made


def _made(
    name: str,
    shape: Shape,
    dtype: DType,
    placement: Placement,
    sbp: Layouts,
    content: Callable[[Box], NDArray[Any]],
    *,
    random: bool = False,
) -> GlobalTensor:
    """A new tensor whose piece `box` has the content `content(box)`; of partial ones, the first rank holds it all."""
    world = current_world()
    world.check(placement)
    spec = TensorSpec(tuple(shape), dtype)
    layout = legal_layout(spec, placement, sbp)
    if random and has_partial(layout):
        raise SbpError("random numbers cannot be partial", where=name, got=format_nd(layout), expected="S or B")
    world.agree(f"{name}({dtype}{list(shape)} {', '.join(map(str, layout))} on {placement})")
    piece = None
    if world.rank in placement.devices:
        coords = placement.coords(world.rank)
        box = local_box(spec.shape, layout, placement.mesh, coords)
        piece = np.ascontiguousarray(content(box), dtype.numpy).reshape(box_shape(box))
        terms = [sbp for sbp, coord in zip(layout, coords, strict=True) if isinstance(sbp, Partial) and coord > 0]
        if terms:
            piece = np.full_like(piece, neutral_element(piece.dtype, terms[0].reduce))
        elif piece.base is not None or not piece.flags.writeable:
            piece = piece.copy()
    return GlobalTensor(spec, placement, layout, piece, world)
