"""What the acts of ops become on the current device: launches, products and attention, issued to the current stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from executor.runtime.kernels.bound_act import BoundAct
from executor.runtime.kernels.gpu.attention import AttentionAct
from executor.runtime.kernels.gpu.cublaslt import ProductPlans, import_cublaslt
from executor.runtime.kernels.gpu.cudnn import AttentionPlans, import_cudnn
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.loader import LoadedKernels
from executor.runtime.kernels.gpu.products import MatrixProduct
from executor.runtime.kernels.gpu.table import Work, work_of
from executor.runtime.kernels.gpu.update import AdamUpdate, WaitingUpdates, adamw_tensors
from executor.runtime.workspaces import DeclaringScratch
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops.base import ArrayModule, Call, OpDef
from strategy.graph.ops.half_precision import run_act, scratch_of_act
from strategy.graph.ops.scratch import Scratch, ScratchSizes
from strategy.sbp.tensor import DType


class DeviceActs:
    """Issues the acts of ops; waits for nothing.

    Args:
        xp: the array module, CuPy.
        kernels: ours, loaded.
        products: the library of matrix products, planned as they come.
        attention: the library of attention.
    """

    def __init__(
        self, xp: ArrayModule, kernels: LoadedKernels, products: ProductPlans, attention: AttentionPlans
    ) -> None:
        self._xp, self._kernels, self._products, self._attention = xp, kernels, products, attention
        self._updates = WaitingUpdates()
        self._bound_updates: dict[tuple[AdamUpdate, ...], list[Callable[[int], None]]] = {}
        """Their launches: the same updates follow one another in every step."""

    def bind(self, definition: OpDef, call: Call) -> BoundAct:
        """An act on the arrays of `call`: what it becomes is found out once, or twice where sums begin and go on.

        Raises:
            EnvironmentLacks: it is of codes, and there is no kernel for it.
        """
        work = work_of(definition.kind, replace(call, first_of_piece=True))
        if work is None or not all(map(self._takes, work)):
            _refuse_codes(definition.kind, call)
            return BoundAct(partial(self._by_array_code, definition, call))
        if isinstance(work[0], AdamUpdate):
            update = work[0]
            return BoundAct(lambda: self._update(update, call.number), repeats=update.shared.step is not None)
        begins = goes_on = self._bound_all(work, call.workspace)
        if definition.accumulates:
            goes_on = self._bound_all(work_of(definition.kind, replace(call, first_of_piece=False)), call.workspace)

        def run() -> None:
            self.flush()
            for one in begins if call.first_of_piece else goes_on:
                one(call.number)

        return BoundAct(run, repeats=not any(isinstance(one, Launch) and one.by_number for one in work))

    def has_kernels(self, definition: OpDef, call: Call) -> bool:
        """Whether acts like this one become kernels, and no array code."""
        work = work_of(definition.kind, replace(call, workspace=DeclaringScratch()))
        return work is not None and all(map(self._takes, work))

    def scratch(self, definition: OpDef, call: Call) -> ScratchSizes:
        """What acts like this one ask their scratch for."""
        declaring = DeclaringScratch()
        work = work_of(definition.kind, replace(call, workspace=declaring))
        if work is None or not all(map(self._takes, work)):
            return scratch_of_act(definition, call)
        for one in work:
            if isinstance(one, MatrixProduct):
                self._products.workspace(declaring)
            elif isinstance(one, AttentionAct):
                self._attention.workspace(one, declaring)
        return declaring.sizes

    def flush(self) -> None:
        """Issue what waits: before anything else is issued, copied, recorded or waited for."""
        updates, number = self._updates.take()
        if not updates:
            return
        bound = self._bound_updates.get(updates)
        if bound is None:
            launches = adamw_tensors([one.tensor for one in updates], updates[0].shared, number)
            bound = self._bound_updates[updates] = [self._kernels.bind(launch) for launch in launches]
        for issue in bound:
            issue(number)

    def _by_array_code(self, definition: OpDef, call: Call) -> None:
        self.flush()
        run_act(definition, call)

    def _update(self, update: AdamUpdate, number: int) -> None:
        """It waits for others like it until `flush`."""
        if not self._updates.takes(update, number):
            self.flush()
        self._updates.add(update, number)

    def _takes(self, work: Work) -> bool:
        return not isinstance(work, AttentionAct) or self._attention.takes(work)

    def _bound_all(self, work: Sequence[Work] | None, scratch: Scratch) -> list[Callable[[int], None]]:
        return [self._bound(one, scratch) for one in work or () if not isinstance(one, AdamUpdate)]

    def _bound(self, work: Launch | MatrixProduct | AttentionAct, scratch: Scratch) -> Callable[[int], None]:
        """What issues work to the current stream, by the number of the act."""
        match work:
            case Launch():
                return self._kernels.bind(work)
            case MatrixProduct():
                issue = self._products.bind(work, scratch)
            case AttentionAct():
                issue = self._attention.bind(work, scratch)
        return lambda number: issue(self._stream())

    def _stream(self) -> int:
        """The address of the current stream."""
        return int(self._xp.cuda.get_current_stream().ptr)


def _refuse_codes(kind: str, call: Call) -> None:
    """Array code does not compute with codes: CuPy casts none."""
    for array in (*call.inputs, *call.outputs, *call.updates):
        if str(array.dtype) == "uint8" or DType(str(array.dtype)).is_code:
            raise EnvironmentLacks(
                f"the GPU backend has no kernel for {kind} of {array.dtype}{list(array.shape)}: none for codes of "
                "experts, and for pieces without elements; train with --backend numpy, or search with --training "
                "precision=bf16"
            )


def open_acts(xp: Any, *, tf32: bool = False) -> DeviceActs:
    """The acts of the current device; all of our kernels are loaded.

    Raises:
        EnvironmentLacks: kernels are not built, or a library is missing.
    """
    products, attention = ProductPlans(import_cublaslt(), tf32=tf32), AttentionPlans(import_cudnn())
    return DeviceActs(xp, LoadedKernels(xp), products, attention)
