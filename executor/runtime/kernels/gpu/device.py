"""What the acts of ops become on the current device: launches, products and attention, issued to the current stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from executor.runtime.kernels.gpu.attention import AttentionAct
from executor.runtime.kernels.gpu.cublaslt import ProductPlans, import_cublaslt
from executor.runtime.kernels.gpu.cudnn import AttentionPlans, import_cudnn
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.loader import LoadedKernels
from executor.runtime.kernels.gpu.products import MatrixProduct
from executor.runtime.kernels.gpu.table import Work, work_of
from executor.runtime.kernels.gpu.update import AdamUpdate, WaitingUpdates
from executor.runtime.workspaces import DeclaringScratch
from strategy.graph.ops.base import ArrayModule, Call, OpDef
from strategy.graph.ops.half_precision import run_act, scratch_of_act
from strategy.graph.ops.scratch import Scratch, ScratchSizes


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

    def run(self, definition: OpDef, call: Call) -> bool:
        """Issue one act; whether it is issued, or waits for others like it until `flush`."""
        work = work_of(definition.kind, call)
        if work is not None and isinstance(work[0], AdamUpdate):
            for launch in self._updates.add(work[0]):
                self._kernels.launch(launch)
            return False
        self.flush()
        if work is None or not all(map(self._takes, work)):
            run_act(definition, call)
            return True
        stream = int(self._xp.cuda.get_current_stream().ptr)
        for one in work:
            self._issue(one, stream, call.workspace)
        return True

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
        for launch in self._updates.take():
            self._kernels.launch(launch)

    def _takes(self, work: Work) -> bool:
        return not isinstance(work, AttentionAct) or self._attention.takes(work)

    def _issue(self, work: Work, stream: int, scratch: Scratch) -> None:
        match work:
            case Launch():
                self._kernels.launch(work)
            case MatrixProduct():
                self._products.run(work, stream, scratch)
            case AttentionAct():
                self._attention.run(work, stream, scratch)


def open_acts(xp: Any, *, tf32: bool = False) -> DeviceActs:
    """The acts of the current device; all of our kernels are loaded.

    Raises:
        EnvironmentLacks: kernels are not built, or a library is missing.
    """
    products, attention = ProductPlans(import_cublaslt(), tf32=tf32), AttentionPlans(import_cudnn())
    return DeviceActs(xp, LoadedKernels(xp), products, attention)
