"""Creation: global tensors from nothing, from random numbers and from arrays.

Numbers do not depend on layouts: random ones follow from the element's place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.frontend.global_tensor.distributed_tensor import Layouts, full_layout, legal_layout
from executor.frontend.global_tensor.tensor import GlobalTensor
from executor.frontend.world import current_world
from executor.runtime.draws import normal, uniform
from executor.runtime.neutral import neutral_element
from strategy.base.errors import InputError, SbpError
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import Partial, Split, format_nd, has_partial, local_box
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
    known = [str(dtype) for dtype in DType if not dtype.is_code]
    if str(array.dtype) not in known:
        raise InputError("no dtype of tensors", where="from_numpy", got=str(array.dtype), expected=", ".join(known))

    def cut(box: Box) -> NDArray[Any]:
        piece: NDArray[Any] = array[tuple(slice(begin, end) for begin, end in box)]
        return piece

    name = f"from_numpy {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]} "
    return _made(name, array.shape, DType(str(array.dtype)), placement, sbp, cut)


def from_local(piece: ArrayLike, *, placement: Placement, sbp: Layouts) -> GlobalTensor:
    """A tensor of which every rank of the placement gives its own piece; other ranks give anything of those dims.

    Pieces must be cut as evenly as ours are: the first ones one longer, where a dim does not divide.

    Raises:
        InputError: the pieces do not make up a tensor in this layout: names what every rank gives.
    """
    world = current_world()
    world.check(placement)
    array = np.asarray(piece)
    own = f"{array.dtype} {' '.join(map(str, array.shape))}" if world.rank in placement.devices else ""
    told = [text for text in world.tell(own) if text]
    given = [(text.split()[0], tuple(map(int, text.split()[1:]))) for text in told]
    by_rank = dict(zip(sorted(placement.devices), given, strict=True))
    layout = full_layout(sbp, placement.mesh)
    dtypes, dims = {dtype for dtype, _ in given}, {len(shape) for _, shape in given}
    known = [str(dtype) for dtype in DType if not dtype.is_code]
    if len(dtypes) > 1 or len(dims) > 1 or not dtypes <= set(known):
        raise InputError("pieces of different kinds", where="from_local", got=by_rank, expected=", ".join(known))
    first = placement.devices[0]
    shape = list(by_rank[first][1])
    for axis, one in enumerate(layout):
        if isinstance(one, Split) and one.dim < len(shape):
            row = [rank for rank in placement.group(first, axis)]
            shape[one.dim] = sum(by_rank[rank][1][one.dim] for rank in row)
    spec = TensorSpec(tuple(shape), DType(dtypes.pop()))
    layout = legal_layout(spec, placement, layout)
    boxes = {r: local_box(spec.shape, layout, placement.mesh, placement.coords(r)) for r in placement.devices}
    wrong = {rank: by_rank[rank][1] for rank, box in boxes.items() if by_rank[rank][1] != box_shape(box)}
    if wrong:
        expected = f"{ {rank: box_shape(boxes[rank]) for rank in wrong} } of {list(spec.shape)}"
        raise InputError("pieces that are not cut like this layout", where="from_local", got=wrong, expected=expected)
    world.agree(f"from_local({spec.dtype}{list(shape)} {', '.join(map(str, layout))} on {placement})")
    here = np.array(array, order="C") if world.rank in placement.devices else None
    return GlobalTensor(spec, placement, layout, here, world)


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
