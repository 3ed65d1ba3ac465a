"""GlobalTensor: a logical tensor whose pieces lie on several ranks, for interactive use under mpiexec.

    P0, P1 = placement([0, 1]), placement([2, 3])
    a = randn(4, 5, placement=P0, sbp=split(0))
    b = randn(5, 8, placement=P0, sbp=broadcast)
    y = (a @ b).to_global(placement=P1, sbp=broadcast)
    z = y @ randn(8, 6, placement=P1, sbp=split(1))
    z.numpy()                                            the whole, on every rank

Every rank runs the same lines (see `executor.world`). An operation runs at once, under the signature that the greedy
deduction takes (`strategy.search.deduce`): operands that are laid out otherwise are converted first, by the same boxing
and the same collectives as in a plan. Numbers do not depend on layouts: random ones follow from the element's place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.draws import normal, uniform
from executor.neutral import neutral_element
from executor.world import World, current_world
from strategy.errors import InputError, SbpError
from strategy.graph import Attrs
from strategy.nn.operators import Operators
from strategy.placement import Placement
from strategy.rows import Rows
from strategy.sbp import B, NdSbp, P, Partial, Sbp, Split, check_layout, format_nd, has_partial, local_box
from strategy.tensor import Box, DType, Shape, TensorSpec, box_shape

if TYPE_CHECKING:
    from executor.eager import Eager

Layouts = Sbp | Sequence[Sbp]
"""One SBP, or one per axis of the placement."""

split = Split
broadcast = B
partial_sum = P


@final
@dataclass(frozen=True, slots=True, eq=False)
class GlobalTensor(Operators):
    """A logical tensor; `piece` is what this rank holds of it, None where the placement leaves this rank out.

    Pieces are arrays, or `Rows` where the tensor is ragged.
    """

    spec: TensorSpec
    placement: Placement
    sbp: NdSbp
    piece: Any
    world: World

    @property
    def shape(self) -> Shape:
        """Logical shape."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self.spec.dtype

    @property
    def tracer(self) -> Eager:
        """What runs modules on it."""
        from executor.eager import Eager

        return Eager(self.world)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {', '.join(map(str, self.sbp))} on {list(self.placement.devices)}"

    def __repr__(self) -> str:
        return f"GlobalTensor({self})"

    def operate(self, kind: str, *others: GlobalTensor, attrs: Attrs | None = None) -> GlobalTensor:
        """The first output of an op on this tensor and `others`."""
        return self.tracer.apply("", kind, (self, *others), attrs)[0]

    def apply(self, label: str, kind: str, *others: GlobalTensor, attrs: Attrs | None = None) -> GlobalTensor:
        """The same for code that labels its ops."""
        return self.tracer.apply(label, kind, (self, *others), attrs)[0]

    def to_global(self, placement: Placement | None = None, sbp: Layouts | None = None) -> GlobalTensor:
        """The same tensor elsewhere, or laid out otherwise.

        Raises:
            InputError: the layout does not fit the tensor or the placement.
            RunError: the ranks do not ask for the same.
        """
        from executor.eager import converted

        there = self.placement if placement is None else placement
        self.world.check(there)
        wanted = self.sbp if sbp is None and placement in (None, self.placement) else sbp
        layout = _layout(self.spec, there, wanted)
        self.world.agree(f"to_global({self} to {', '.join(map(str, layout))} on {list(there.devices)})")
        return converted(self, there, layout)

    def pin(self, sbp: Layouts) -> GlobalTensor:
        """The same tensor in this layout: what traced code asks for, done at once."""
        return self.to_global(sbp=sbp)

    def to_local(self) -> Any:
        """This rank's piece, which it shares; None on ranks that hold none."""
        return self.piece

    def numpy(self) -> NDArray[Any]:
        """A copy of the whole, on every rank of the world."""
        whole = self.to_global(placement=placement(range(self.world.size)), sbp=B)
        assert whole.piece is not None, "every rank is in it"
        array: NDArray[Any] = whole.piece.dense() if isinstance(whole.piece, Rows) else whole.piece.copy()
        return array


def placement(devices: Sequence[int] | Sequence[Sequence[int]]) -> Placement:
    """Ranks in a row, or in rows of equal length as a mesh of two axes.

    Raises:
        InputError: rows differ in length, a rank is negative or stands there twice.
    """
    rows = [row if isinstance(row, Sequence) else (row,) for row in devices]
    if len({len(row) for row in rows}) != 1:
        raise InputError("rows of a placement differ in length", got=rows, expected="as many ranks in each")
    ranks = tuple(rank for row in rows for rank in row)
    if isinstance(devices[0], Sequence):
        return Placement(ranks, (len(rows), len(rows[0])), ("0", "1"))
    return Placement(ranks, (len(ranks),), ("0",))


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
    layout = _layout(spec, placement, sbp)
    if random and has_partial(layout):
        raise SbpError("random numbers cannot be partial", where=name, got=format_nd(layout), expected="S or B")
    world.agree(f"{name}({dtype}{list(shape)} {', '.join(map(str, layout))} on {list(placement.devices)})")
    piece = None
    if world.rank in placement.devices:
        coords = placement.coords(world.rank)
        box = local_box(spec.shape, layout, placement.mesh, coords)
        piece = np.ascontiguousarray(content(box), str(dtype)).reshape(box_shape(box))
        terms = [sbp for sbp, coord in zip(layout, coords, strict=True) if isinstance(sbp, Partial) and coord > 0]
        if terms:
            piece = np.full_like(piece, neutral_element(piece.dtype, terms[0].reduce))
        elif piece.base is not None or not piece.flags.writeable:
            piece = piece.copy()
    return GlobalTensor(spec, placement, layout, piece, world)


def full_layout(sbp: Layouts, mesh: Shape) -> NdSbp:
    """One SBP per axis, along which one alone is repeated."""
    return (sbp,) * len(mesh) if isinstance(sbp, Sbp) else tuple(sbp)


def _layout(spec: TensorSpec, placement: Placement, sbp: Layouts | None) -> NdSbp:
    """One SBP per axis; along an axis of one rank there is nothing to lay out.

    Raises:
        InputError: no layout is given, or one that does not fit.
    """
    if sbp is None:
        raise InputError("a new placement needs a layout", where="to_global", expected="sbp=")
    given = full_layout(sbp, placement.mesh)
    check_layout(spec.shape, given, placement.mesh, where=f"sbp of {spec.dtype}{list(spec.shape)}")
    if has_partial(given) and not spec.dtype.is_float:
        raise SbpError("terms of integers", where="sbp", got=format_nd(given), expected=f"B or S of {spec.dtype}")
    return tuple(B if parts == 1 else one for one, parts in zip(given, placement.mesh, strict=True))
