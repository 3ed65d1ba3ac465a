"""Data-parallel training of a user's own loop, by the calls that Horovod made common (Sergeev and Del Balso, 2018).

    import executor.exchange.horovod as hvd

`mpiexec -n 4 python -m mpi4py loop.py` starts four ranks. Tensors are NumPy arrays, or PyTorch's on the CPU, which are
worked on in place where a name ends with an underscore. `docs/negotiation.md` has whole programs.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.exchange.foreign_tensors import as_array, like
from executor.exchange.gradient_exchange import GradientExchange
from executor.exchange.optimizer import DistributedGradients, broadcast_state
from executor.exchange.pending import PendingTensor
from executor.exchange.settings import ExchangeSettings
from executor.runtime.transport.base import Transport
from strategy.base.errors import EnvironmentLacks, InputError, RunError
from strategy.sbp.sbp import Reduce

Average, Sum, Min, Max = "average", "sum", "min", "max"
_REDUCE = {Average: Reduce.SUM, Sum: Reduce.SUM, Min: Reduce.MIN, Max: Reduce.MAX}


@dataclass(slots=True)
class _Opened:
    """What `init` has opened; `unnamed` counts the tensors without a name."""

    exchange: GradientExchange
    transport: Transport
    local_rank: int
    local_size: int
    unnamed: int = 0


@dataclass(frozen=True, slots=True)
class ReductionHandle:
    """A collective under way, and the tensor that it was asked for."""

    pending: PendingTensor
    tensor: Any
    in_place: bool


_opened: _Opened | None = None


def init(settings: ExchangeSettings | None = None) -> None:
    """Open the exchange, all ranks together. An exception that nobody catches ends all ranks from now on.

    Raises:
        InputError: it is open.
        EnvironmentLacks: there is no MPI, or one that serves one thread alone.
        RunError: the ranks' settings differ.
    """
    global _opened
    if _opened is not None:
        raise InputError("is open already", where="init()", hint="call shutdown() first")
    from executor.supervision.environment import find_rank

    if find_rank() is None:
        from executor.runtime.transport.loopback import LoopbackHub

        transport: Transport = LoopbackHub(1, {}).transport(0)
        local_rank, local_size = 0, 1
    else:
        from executor.runtime.transport.mpi import MpiTransport, load_mpi, open_world
        from executor.supervision.abort import abort_on_exception

        mpi, world = load_mpi(), open_world()
        if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
            raise EnvironmentLacks("this MPI library serves one thread, and gradients are exchanged in a second one")
        abort_on_exception(world.rank)
        node = world.Split_type(mpi.COMM_TYPE_SHARED)
        local_rank, local_size = node.rank, node.size
        node.Free()
        transport = MpiTransport(world, {})
    _opened = _Opened(GradientExchange(transport, settings), transport, local_rank, local_size)
    atexit.register(_shutdown_at_exit)


def shutdown() -> None:
    """Close the exchange, when all ranks do."""
    global _opened
    opened, _opened = _open(), None
    atexit.unregister(_shutdown_at_exit)
    opened.exchange.close()
    opened.transport.close()


def is_initialized() -> bool:
    """Whether the exchange is open."""
    return _opened is not None


def rank() -> int:
    """This process among all."""
    return _open().exchange.rank


def size() -> int:
    """How many processes there are."""
    return _open().exchange.size


def local_rank() -> int:
    """This process among those of its node."""
    return _open().local_rank


def local_size() -> int:
    """How many processes this node has."""
    return _open().local_size


def exchange() -> GradientExchange:
    """What is behind these calls: a NumPy loop registers its gradients there."""
    return _open().exchange


def allreduce_async_(
    tensor: Any, name: str | None = None, op: str = Average, callback: Callable[[Any], None] | None = None
) -> ReductionHandle:
    """Begin to combine a tensor in place; `callback(tensor)` is called in another thread when it is."""
    if op not in _REDUCE:
        raise InputError("no such operation", where="allreduce", got=op, expected=", ".join(_REDUCE))
    label = _label(name, "allreduce")
    told = None if callback is None else lambda _: callback(tensor)
    pending = _open().exchange.all_reduce(
        label, as_array(tensor, label), mean=op == Average, reduce=_REDUCE[op], callback=told
    )
    return ReductionHandle(pending, tensor, True)


def allreduce_(tensor: Any, name: str | None = None, op: str = Average) -> Any:
    """Combine a tensor in place."""
    return synchronize(allreduce_async_(tensor, name, op))


def allreduce(tensor: Any, name: str | None = None, op: str = Average) -> Any:
    """The combination of all ranks' tensors; the given one stays."""
    copy = like(tensor, np.array(as_array(tensor, name or "")))
    return synchronize(allreduce_async_(copy, name, op))


def allgather_async(tensor: Any, name: str | None = None) -> ReductionHandle:
    """Begin to gather rows."""
    label = _label(name, "allgather")
    return ReductionHandle(_open().exchange.all_gather(label, as_array(tensor, label)), tensor, False)


def allgather(tensor: Any, name: str | None = None) -> Any:
    """All ranks' rows, by rank; ranks may have different numbers of them."""
    return synchronize(allgather_async(tensor, name))


def broadcast_async_(tensor: Any, root_rank: int, name: str | None = None) -> ReductionHandle:
    """Begin to fill a tensor with the root's values."""
    label = _label(name, "broadcast")
    return ReductionHandle(_open().exchange.broadcast(label, as_array(tensor, label), root_rank), tensor, True)


def broadcast_(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Fill a tensor with the root's values."""
    return synchronize(broadcast_async_(tensor, root_rank, name))


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's values; the given tensor stays."""
    return broadcast_(like(tensor, np.array(as_array(tensor, name or ""))), root_rank, name)


def synchronize(handle: ReductionHandle) -> Any:
    """The result of a collective, when it is there."""
    result = handle.pending.wait()
    return handle.tensor if handle.in_place else like(handle.tensor, result)


def poll(handle: ReductionHandle) -> bool:
    """Whether the result is there."""
    return handle.pending.is_over()


def join() -> int:
    """This rank has no more data; waits for the others, taking part with nothing. The rank that joined last."""
    return _open().exchange.join()


def on_all_reduced(hook: Callable[[int], None]) -> None:
    """Call `hook(step)` whenever all gradients of a step are averaged."""
    _open().exchange.on_all_reduced(hook)


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    backward_passes_per_step: int = 1,
) -> Any:
    """The same PyTorch optimiser, whose `step()` first waits until the gradients are averages over all ranks.

    They are exchanged while the backward pass goes on. `optimizer.synchronize()` waits before that, for whoever clips
    gradients.

    Raises:
        EnvironmentLacks: PyTorch is not installed.
    """
    _require_torch()
    gradients = DistributedGradients(_open().exchange, optimizer, named_parameters, backward_passes_per_step)
    optimizer.synchronize = gradients.synchronize
    return optimizer


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0) -> None:
    """Give all ranks the root's parameters: a `state_dict()`, or names and tensors."""
    pairs = params.items() if isinstance(params, Mapping) else params
    handles = [broadcast_async_(tensor, root_rank, f"parameter {name}") for name, tensor in pairs]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0) -> None:
    """Give all ranks the state of the root's PyTorch optimiser."""
    _require_torch()
    broadcast_state(_open().exchange, optimizer, root_rank)


def _open() -> _Opened:
    if _opened is None:
        raise InputError("nothing is open", where="executor.exchange.horovod", hint="call init() first")
    return _opened


def _label(name: str | None, what: str) -> str:
    """A name, or the next of those that count: ranks that ask in one order mean the same."""
    if name is not None:
        return name
    _open().unnamed += 1
    return f"{what}.noname.{_open().unnamed}"


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise EnvironmentLacks('PyTorch is not installed; `pip install "sbplan[torch]"`') from error


def _shutdown_at_exit() -> None:
    """The program ended without a word: leave as it should have."""
    with suppress(RunError):
        shutdown()
