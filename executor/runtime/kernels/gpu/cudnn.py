"""cuDNN's fused attention through its frontend's graphs: one plan for each shape and layout, no allocation in a run.

Names are those of nvidia-cudnn-frontend 1.32, `pygraph.sdpa` and `pygraph.sdpa_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from executor.runtime.kernels.gpu.attention import AttentionAct, CausalMask, StridedOperand
from executor.runtime.kernels.gpu.launch import address_of
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops.base import Array
from strategy.graph.ops.scratch import Scratch

_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}

Key = tuple[object, ...]


def import_cudnn() -> Any:
    """The frontend.

    Raises:
        EnvironmentLacks: it, or cuDNN itself, is missing.
    """
    try:
        import cudnn
    except (ImportError, OSError) as error:
        message = f"fused attention needs nvidia-cudnn-frontend and cuDNN, which cannot be imported ({error})"
        hint = "install `sbplan[gpu]`, then run `pip install --no-deps nvidia-cudnn-frontend`"
        raise EnvironmentLacks(f"{message}; {hint}") from error
    return cudnn


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A graph that is built, and the bytes of scratch that it wants."""

    graph: Any
    workspace_nbytes: int


class AttentionPlans:
    """Attention on the current device, one graph for each shape and layout.

    Args:
        library: the module `cudnn`.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = library.create_handle()
        self._plans: dict[Key, AttentionPlan | None] = {}
        self.refused: list[str] = []
        """What cuDNN has no kernel for, with its reason: the array module does it."""

    def takes(self, attention: AttentionAct) -> bool:
        """Whether cuDNN does it; the first time, its plan is made."""
        key = _key(attention)
        if key not in self._plans:
            self._plans[key] = self._plan(attention)
        return self._plans[key] is not None

    def bind(self, attention: AttentionAct, scratch: Scratch) -> Callable[[int], None]:
        """What issues to a stream, by its address, what `takes` has said yes to."""
        graph, workspace = self._planned(attention).graph, address_of(self.workspace(attention, scratch))
        addresses = {uid: _address(part) for uid, part in enumerate(attention.parts, 1)}

        def issue(stream: int) -> None:
            self._library.set_stream(handle=self._handle, stream=stream)
            graph.execute(addresses, workspace, handle=self._handle)

        return issue

    def workspace(self, attention: AttentionAct, scratch: Scratch) -> Array:
        """What its plan uses."""
        return scratch.get("cudnn", (self._planned(attention).workspace_nbytes,), "uint8")

    def _planned(self, attention: AttentionAct) -> AttentionPlan:
        plan = self._plans[_key(attention)]
        if plan is None:
            raise EnvironmentLacks("cuDNN has no kernel for this attention")
        return plan

    def _plan(self, attention: AttentionAct) -> AttentionPlan | None:
        graph = attention_graph(self._library, attention, self._handle)
        try:
            graph.build([self._library.heur_mode.A])
        except self._library.cudnnGraphNotSupportedError as error:
            q = attention.reads[0]
            self.refused.append(f"q{list(q.shape)} {'backward' if attention.is_gradient else 'forward'}: {error}")
            return None
        return AttentionPlan(graph, int(graph.get_workspace_size()))


def attention_graph(library: Any, attention: AttentionAct, handle: Any = None) -> Any:
    """The graph of one act, not built yet; operands are numbered from 1, as `AttentionAct` names them, reads first."""
    types = library.data_type
    half = getattr(types, _TYPES[str(attention.reads[0].array.dtype)])
    graph = library.pygraph(
        io_data_type=half, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, handle=handle
    )
    reads = {
        part.name: graph.tensor(
            name=part.name,
            dim=list(part.shape),
            stride=list(part.strides),
            data_type=getattr(types, _TYPES[str(part.array.dtype)]),
            uid=uid,
        )
        for uid, part in enumerate(attention.reads, 1)
    }
    options: dict[str, object] = {"attn_scale": attention.scale}
    if attention.mask is not CausalMask.NONE:
        options["diagonal_alignment"] = getattr(library.diagonal_alignment, attention.mask)
        options["diagonal_band_right_bound"] = 0
    if attention.is_gradient:
        # One order of every sum, whatever block comes first.
        results = graph.sdpa_backward(**reads, **options, use_deterministic_algorithm=True, name="backward")
    else:
        results = graph.sdpa(**reads, **options, generate_stats=True, name="forward")
    _mark(library, results, attention.writes, len(reads) + 1)
    return graph


def _mark(library: Any, results: list[Any], writes: Sequence[StridedOperand], first: int) -> None:
    """Says that results are wanted, where, and how they lie."""
    for uid, (result, part) in enumerate(zip(results, writes, strict=True), first):
        result.set_output(True).set_uid(uid).set_dim(list(part.shape)).set_stride(list(part.strides))
        result.set_data_type(getattr(library.data_type, _TYPES[str(part.array.dtype)]))


def _address(part: StridedOperand) -> int:
    return address_of(part.array) + part.offset * int(part.array.dtype.itemsize)


def _key(attention: AttentionAct) -> Key:
    laid = tuple((part.shape, part.strides, str(part.array.dtype), _address(part) % 16) for part in attention.parts)
    return (*laid, attention.is_gradient, attention.scale, attention.mask)
