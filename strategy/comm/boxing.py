r"""Boxing: the single steps by which a tensor passes from one layout to another.

On one placement, a conversion is a chain of steps (`chains`). A step changes the layout along one mesh axis

    from \\ to   S(j)             B            P
    S(i)        all-to-all       all-gather   slice: own piece in a tensor of neutral elements
    B           slice            -            slice: the first rank keeps it, the others hold neutral elements
    P           reduce-scatter   all-reduce   -

or along several, seen as one larger axis: all their terms reduced at once, or any layout without terms along them made
into any other by an all-to-all of what ranks lack. The neutral element of sums is 0, of P(max) the least value of the
dtype, of P(min) the greatest. A split becomes another rotation of itself by a rotation: every rank sends its piece to
one rank and gets one.

Splits nest (see `sbp`), so where later axes split a dim that a step splits or joins, they are part of that step. Terms
nest too: an axis is reduced only when the later ones hold no terms of another reduction.

Between any two placements, a tensor without partial terms moves by messages, each the overlap of what one rank holds
with what another needs (`rank_parts`); chains convert before and after that transfer (`strategy.layout.convert`).

Bytes sent, over all p ranks of a group that holds a tensor of T bytes: all-gather T(p-1), reduce-scatter T(p-1),
all-reduce 2T(p-1), all-to-all T(p-1)/p along one axis, slice 0 (OneFlow, Yuan et al. 2021, table 2); rotation T.

Of a ragged tensor the same steps move the rows that there are, each with its place (`strategy.sbp.ragged`); the bytes
stated are those expected.

For boxing, an owner, O(k), is the most uneven split, and the steps are those of S. Bytes, with the whole tensor at one
rank: P -> O is a reduction to it, T(p-1); O -> B a broadcast from it, T(p-1); S -> O and O -> S gather and scatter,
T(p-1)/p; O(k) -> O(l) a message, T; B -> O and O -> P are slices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.program.program import ActKind
from strategy.sbp.sbp import (
    B,
    Broadcast,
    NdSbp,
    Owner,
    Partial,
    Reduce,
    Sbp,
    Split,
    is_legal_layout,
    may_be_partial,
    reductions,
)
from strategy.sbp.tensor import Shape, TensorSpec

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LARGEST_REGROUP = 64
"""Most ranks between which an all-to-all along several axes is looked for: pricing one takes their number squared."""
MOST_MORE = 8
"""Steps among legal layouts are found among all, once for many, where these are at most so many times as many."""


@dataclass(frozen=True, slots=True)
class BoxingStep:
    """One step of a conversion: along `axes` (a transfer has none), after which the layout is `target`."""

    kind: ActKind
    axes: tuple[int, ...]
    target: NdSbp


@dataclass(frozen=True, slots=True, eq=False)
class LayoutSteps:
    """Single steps among layouts, as arrays: step i leads from layout `sources[i]` to layout `targets[i]`.

    Whatever tensor they are of, and on a mesh of whatever size: all with the same layouts have one and the same.
    """

    layouts: tuple[NdSbp, ...]
    steps: tuple[BoxingStep, ...]
    sources: Ints
    targets: Ints


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Steps among layouts on a mesh."""

    among: LayoutSteps
    mesh: Shape

    @property
    def layouts(self) -> tuple[NdSbp, ...]:
        """What the steps lead between."""
        return self.among.layouts

    @property
    def steps(self) -> tuple[BoxingStep, ...]:
        """All of them, in order."""
        return self.among.steps

    @property
    def sources(self) -> Ints:
        """Where every step begins."""
        return self.among.sources

    @property
    def targets(self) -> Ints:
        """Where it leads to."""
        return self.among.targets


Price = Callable[[TensorSpec, StepTable], Floats]
"""(spec, steps) -> seconds of every one of the steps on the placement that the price belongs to."""

_ALONG_ONE: dict[tuple[type[Sbp], type[Sbp]], ActKind] = {
    (Split, Split): ActKind.ALL_TO_ALL,
    (Split, Broadcast): ActKind.ALL_GATHER,
    (Split, Partial): ActKind.SLICE,
    (Broadcast, Split): ActKind.SLICE,
    (Broadcast, Partial): ActKind.SLICE,
    (Partial, Split): ActKind.REDUCE_SCATTER,
    (Partial, Broadcast): ActKind.ALL_REDUCE,
}
_ALONG_SEVERAL: dict[tuple[type[Sbp], type[Sbp]], ActKind] = {
    (Split, Broadcast): ActKind.ALL_GATHER,
    (Partial, Split): ActKind.REDUCE_SCATTER,
    (Partial, Broadcast): ActKind.ALL_REDUCE,
}


_FORMS: tuple[type[Sbp], ...] = (Split, Broadcast, Partial)


def _form(sbp: Sbp) -> type[Sbp]:
    """What a step depends on: an owner holds a piece, the others empty ones, as of a split."""
    return Split if isinstance(sbp, Owner) else type(sbp)


@lru_cache(maxsize=1 << 16)
def step_between(source: NdSbp, target: NdSbp) -> BoxingStep | None:
    """The one step that turns `source` into `target`; None where no single one does."""
    changed = [axis for axis, (a, b) in enumerate(zip(source, target, strict=True)) if a != b]
    if not changed:
        return None
    axes = _with_nested(changed, source, target)
    pairs = {(_form(source[axis]), _form(target[axis])) for axis in axes}
    if any(Partial in pair for pair in pairs):
        if axes != changed or len(pairs) > 1 or not _may_reduce(changed, source):
            return None
        kinds = _ALONG_ONE if len(axes) == 1 else _ALONG_SEVERAL
        kind = kinds.get(next(iter(pairs)))
        return None if kind is None else BoxingStep(kind, tuple(axes), target)
    if len(axes) == 1:
        return BoxingStep(_without_terms(source[axes[0]], target[axes[0]]), tuple(axes), target)
    if axes == changed and pairs == {(Broadcast, Split)}:
        return None
    kind = _ALONG_SEVERAL[Split, Broadcast] if pairs == {(Split, Broadcast)} else ActKind.ALL_TO_ALL
    return BoxingStep(kind, tuple(axes), target)


def _without_terms(source: Sbp, target: Sbp) -> ActKind:
    """What changes one axis along which there are no terms."""
    if isinstance(source, Split) and isinstance(target, Split) and source.dim == target.dim:
        return ActKind.ROTATE
    return _ALONG_ONE[_form(source), _form(target)]


def _with_nested(changed: Sequence[int], source: NdSbp, target: NdSbp) -> list[int]:
    """The axes that change, and later ones whose pieces lie elsewhere then, as they split the same dims."""
    dims: set[int] = set()
    axes = []
    for axis, (before, after) in enumerate(zip(source, target, strict=True)):
        split = {sbp.dim for sbp in (before, after) if isinstance(sbp, Split)}
        if axis in changed or split & dims:
            axes.append(axis)
            dims |= split
    return axes


def _may_reduce(changed: Sequence[int], source: NdSbp) -> bool:
    """Whether terms along `changed` combine in one way, and none of another way are nested in them."""
    nested = reductions(source[changed[0] :])
    return len(nested) <= 1 or not any(isinstance(source[axis], Partial) for axis in changed)


def layouts_of(
    spec: TensorSpec,
    mesh: Shape,
    *,
    partial: bool = True,
    reduces: Iterable[Reduce] = (Reduce.SUM,),
    special: Sequence[Sequence[Sbp]] = (),
) -> list[NdSbp]:
    """Every legal layout of a tensor on a mesh; an axis of one rank is always B.

    Terms of `reduces` are included, and along each axis what is `special` and named for it: rotated splits, owners.
    """
    options: list[Sbp] = [B, *(Split(d) for d in range(len(spec.shape)))]
    if partial:
        options += [Partial(reduce) for reduce in Reduce if reduce in reduces and may_be_partial(spec, reduce)]
    more = special or [()] * len(mesh)
    per_axis = [[*options, *splits] if parts > 1 else [B] for parts, splits in zip(mesh, more, strict=True)]
    return [nd for nd in itertools.product(*per_axis) if is_legal_layout(spec.shape, nd, mesh)]


@lru_cache(maxsize=1024)
def steps_among(layouts: tuple[NdSbp, ...], mesh: Shape) -> StepTable:
    """Every single step from one layout to another that a table prices."""
    axes = range(len(mesh))
    sets = itertools.chain.from_iterable(itertools.combinations(axes, count) for count in range(2, len(mesh) + 1))
    return StepTable(_steps(layouts, frozenset(axes for axes in sets if _is_too_large(axes, mesh))), mesh)


@lru_cache(maxsize=256)
def _steps(layouts: tuple[NdSbp, ...], too_large: frozenset[tuple[int, ...]]) -> LayoutSteps:
    """All steps, but for all-to-alls along several axes that are too large a group."""
    if too_large:
        every = _steps(layouts, frozenset())
        kept = [step.kind is not ActKind.ALL_TO_ALL or step.axes not in too_large for step in every.steps]
        steps = tuple(itertools.compress(every.steps, kept))
        return LayoutSteps(layouts, steps, every.sources[kept], every.targets[kept])
    named = _numbered(layouts)
    if named != layouts:
        alike, own = _steps(named, too_large), dict(zip(named, layouts, strict=True))
        here = (own[step.target] for step in alike.steps)
        steps = tuple(
            step if step.target == target else BoxingStep(step.kind, step.axes, target)
            for step, target in zip(alike.steps, here, strict=True)
        )
        return LayoutSteps(layouts, steps, alike.sources, alike.targets)
    every_layout = tuple(itertools.product(*(tuple(dict.fromkeys(along)) for along in zip(*layouts, strict=True))))
    if len(layouts) < len(every_layout) <= MOST_MORE * len(layouts):
        return _among(_steps(every_layout, too_large), layouts)
    found: list[tuple[int, int, BoxingStep]] = []
    for i, j in np.argwhere(_may_step(layouts)).tolist():
        step = step_between(layouts[i], layouts[j])
        if step is not None:
            found.append((i, j, step))
    sources, targets = (np.array([one[side] for one in found], np.int64) for side in (0, 1))
    return LayoutSteps(layouts, tuple(step for *_, step in found), sources, targets)


def _among(every: LayoutSteps, layouts: tuple[NdSbp, ...]) -> LayoutSteps:
    """Those between some of the layouts."""
    place = {layout: i for i, layout in enumerate(layouts)}
    places = np.array([place.get(layout, -1) for layout in every.layouts])
    sources, targets = places[every.sources], places[every.targets]
    kept = (sources >= 0) & (targets >= 0)
    order = np.lexsort((targets[kept], sources[kept]))
    steps = [step for step, is_kept in zip(every.steps, kept.tolist(), strict=True) if is_kept]
    return LayoutSteps(layouts, tuple(steps[i] for i in order.tolist()), sources[kept][order], targets[kept][order])


def _numbered(layouts: tuple[NdSbp, ...]) -> tuple[NdSbp, ...]:
    """The layouts, rotated by 1, 2, ... in place of the shifts along each axis: what steps there are is the same."""
    numbers: dict[tuple[int, int], int] = {}

    def numbered(axis: int, sbp: Sbp) -> Sbp:
        if not isinstance(sbp, Split) or not sbp.shift:
            return sbp
        number = numbers.get((axis, sbp.shift))
        if number is None:
            number = 1 + sum(one == axis for one, _ in numbers)
            numbers[axis, sbp.shift] = number
        return sbp if number == sbp.shift else Split(sbp.dim, number)

    return tuple(tuple(numbered(axis, sbp) for axis, sbp in enumerate(layout)) for layout in layouts)


def _may_step(layouts: Sequence[NdSbp]) -> npt.NDArray[np.bool_]:
    """(layouts, layouts): where there may be a single step; most pairs that change terms on several axes have none."""
    numbers: dict[Sbp, int] = {}
    codes = np.array([[numbers.setdefault(sbp, len(numbers)) for sbp in layout] for layout in layouts])
    is_partial = np.array([isinstance(sbp, Partial) for sbp in numbers])[codes]
    forms = np.array([_FORMS.index(_form(sbp)) for sbp in numbers])[codes]
    changed = codes[:, None] != codes[None]
    ends = len(_FORMS) * forms[:, None] + forms[None]
    with_terms = changed & (is_partial[:, None] | is_partial[None])
    unlike = np.zeros(changed.shape[:2], bool)
    for one, other in itertools.combinations(range(codes.shape[1]), 2):
        unlike |= changed[..., one] & changed[..., other] & (ends[..., one] != ends[..., other])
    found: npt.NDArray[np.bool_] = changed.any(2) & ~(with_terms.any(2) & unlike)
    return found


def _is_too_large(axes: Sequence[int], mesh: Shape) -> bool:
    return math.prod(mesh[axis] for axis in axes) > LARGEST_REGROUP
