"""What a gradient exchange does, seen by real ranks: `mpiexec -n N python -m mpi4py -m tests.mpi.exchange_checks`.

Rank 0 prints one JSON document: the name of each check -> what every rank saw, by rank.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from executor.exchange.codecs import BFloat16, Codec, Float16, Int8, TopK, Values
from executor.exchange.gradient_exchange import GradientExchange
from executor.exchange.pending import NonFiniteTensor
from executor.exchange.settings import ExchangeSettings
from executor.runtime.transport.base import Group, HostArray, PendingTransfer, Transport
from executor.runtime.transport.mpi import MpiTransport, open_world
from strategy.base.errors import SbplanError
from strategy.sbp.sbp import Reduce
from tests.support.threads import on_transports

PLAIN = ExchangeSettings(fusion_bytes=1024, fragment_bytes=512, streams=3, stall_s=0.3, stall_limit_s=1.0)
Check = Callable[[Transport], Any]


def tensors(rank: int, *, scale: float = 1.0) -> dict[str, HostArray]:
    """Twenty small ones and one that is cut."""
    rng = np.random.default_rng(rank)
    found = {f"small.{index:02d}": rng.normal(size=(index + 1, 3)) * scale for index in range(20)}
    found["large"] = rng.normal(size=1000) * scale
    return {name: array.astype(np.float32) for name, array in found.items()}


def summed(size: int, *, scale: float = 1.0) -> dict[str, HostArray]:
    """What all ranks should have, in the order of ranks."""
    of_ranks = [tensors(rank, scale=scale) for rank in range(size)]
    total = {name: array.copy() for name, array in of_ranks[0].items()}
    for other in of_ranks[1:]:
        for name, array in total.items():
            array += other[name]
    return total


def one_step(exchange: GradientExchange, mine: dict[str, HostArray], *, seed: int = 0) -> None:
    """Announce in an order of this rank's own."""
    rng = np.random.default_rng((seed, exchange.rank))
    for name in rng.permutation(sorted(mine)):
        exchange.announce(str(name), mine[name])
    exchange.finish_step()


def digest(mine: dict[str, HostArray]) -> str:
    """The bits of a rank's tensors."""
    return b"".join(mine[name].tobytes() for name in sorted(mine)).hex()


def error_of(call: Callable[[], Any]) -> str:
    """What a call says against it."""
    try:
        call()
    except SbplanError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def registration(transport: Transport) -> Any:
    """B3."""
    exchange = GradientExchange(transport, PLAIN)
    mine = tensors(transport.rank)
    backwards = dict(reversed(mine.items())) if transport.rank % 2 else mine
    exchange.register(backwards, mean=False)
    said = [
        error_of(lambda: exchange.register({"large": mine["large"]})),
        error_of(lambda: exchange.announce("lage", mine["large"])),
        error_of(lambda: exchange.announce("large", mine["large"][:-1].copy())),
    ]
    one_step(exchange, mine)
    exchange.close()
    return said, exchange.order_digest, digest(mine) == digest(summed(transport.size))


def callbacks(transport: Transport) -> Any:
    """B4 and B18."""
    exchange = GradientExchange(transport, PLAIN)
    mine = tensors(transport.rank)
    wanted = summed(transport.size)
    calls: list[tuple[str, bool]] = []
    steps: list[int] = []
    exchange.on_all_reduced(steps.append)
    exchange.register(mine, mean=False)
    for step in range(3):
        now = tensors(transport.rank)
        for name, array in now.items():

            def told(result: HostArray, name: str = name) -> None:
                calls.append((name, bool((result == wanted[name]).all())))

            exchange.announce(name, array, told)
        exchange.finish_step()
        assert steps == list(range(step + 1)), steps
    exchange.close()
    return sorted(calls), steps


class Throttled:
    """A transport on which everything of one number takes so long."""

    def __init__(self, transport: Transport, number: int, seconds: float) -> None:
        self._transport, self._number, self._seconds = transport, number, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def exchange(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        found = self._transport.exchange(group, number, send, receive)
        return Late(found, time.monotonic() + self._seconds) if number == self._number else found


class Late:
    """A request that is not over before a time."""

    def __init__(self, request: PendingTransfer, end_s: float) -> None:
        self._request, self._end_s = request, end_s

    def test(self) -> bool:
        return self._request.test() and time.monotonic() > self._end_s

    def describe(self) -> str:
        return self._request.describe()


def slow_stream(transport: Transport) -> Any:
    """B5: what goes over the first of three streams comes last."""
    exchange = GradientExchange(Throttled(transport, 1000, 0.3), replace(PLAIN, fusion_bytes=64, fragment_bytes=64))  # type: ignore[arg-type]
    arrived: list[str] = []
    lock = threading.Lock()
    mine = {f"t{index}": np.full(16, transport.rank, np.float32) for index in range(6)}
    exchange.register(mine, mean=False)

    def note(name: str) -> Callable[[HostArray], None]:
        def told(_: HostArray) -> None:
            with lock:
                arrived.append(name)

        return told

    for name, array in mine.items():
        exchange.announce(name, array, note(name))
    exchange.finish_step()
    exchange.close()
    return arrived


def main_loop(transport: Transport) -> Any:
    """B6 and B7: fused, cut, and in one order, whatever the order of the announcements."""
    found = {}
    for label, fusion, fragment in (("fused", 2**20, 2**20), ("cut", 512, 512), ("apart", 64, 2**20)):
        settings = replace(PLAIN, fusion_bytes=fusion, fragment_bytes=fragment, cycle_s=0.1)
        exchange = GradientExchange(transport, settings)
        mine = tensors(transport.rank)
        exchange.register(mine, mean=False)
        one_step(exchange, mine)
        exchange.close()
        right = digest(mine) == digest(summed(transport.size))
        found[label] = (exchange.order_digest, exchange.collectives, right)
    return found


def two_levels(transport: Transport) -> Any:
    """B10: sums inside nodes first, then between them, then back; joined with a codec between nodes."""
    found = []
    for codec in (None, Float16()):
        exchange = GradientExchange(transport, replace(PLAIN, ranks_per_node=2, codec=codec))
        mine = tensors(transport.rank)
        exchange.register(mine, mean=True)
        for _ in range(2):
            mine = tensors(transport.rank)
            one_step(exchange, mine)
        exchange.close()
        wanted = summed(transport.size)
        far = max(float(np.abs(mine[name] - wanted[name] / transport.size).max()) for name in mine)
        found.append((digest(mine), far))
    return found


def messages(transport: Transport) -> Any:
    """B11: (rounds, messages)."""
    exchange = GradientExchange(transport, PLAIN)
    mine = tensors(transport.rank)
    exchange.register(mine, mean=False)
    for seed in range(5):
        one_step(exchange, mine, seed=seed)
    exchange.close()
    return exchange.rounds


def tuning(transport: Transport) -> Any:
    """B12: one choice, and another when asked again."""
    settings = replace(PLAIN, tune_fusion_bytes=(64, 4096), tune_streams=(1, 3), tune_steps=2)
    exchange = GradientExchange(transport, settings)
    mine = tensors(transport.rank)
    exchange.register(mine)
    choices, steps = [], []
    for turn in range(2):
        count = 0
        while exchange.choice is None or (turn and not count):
            one_step(exchange, tensors(transport.rank), seed=count)
            count += 1
            assert count < 50
        choices.append(exchange.choice)
        steps.append(count)
        exchange.retune()
        one_step(exchange, tensors(transport.rank))
    exchange.close()
    return choices, steps


class Doubles:
    """A codec of a user's own: float64 on the way, which loses nothing."""

    is_allreducible = True
    keeps_residual = False

    def __repr__(self) -> str:
        return "Doubles()"

    def nbytes(self, count: int) -> int:
        return 8 * count

    def encode(self, values: Values) -> HostArray:
        return values.astype(np.float64).view(np.uint8)

    def decode(self, block: HostArray, count: int) -> Values:
        return block.view(np.float64).astype(np.float32)


CODECS: dict[str, Codec] = {
    "fp16": Float16(),
    "bf16": BFloat16(),
    "int8": Int8(),
    "top-k": TopK(0.25),
    "own": Doubles(),
}


def codecs(transport: Transport) -> Any:
    """B13 and B14: by codec, the bits and the error against the sum, as a share of the largest."""
    found = {}
    for label, codec in CODECS.items():
        for scale in (1.0, 1e6, 1e-9):
            exchange = GradientExchange(transport, replace(PLAIN, codec=codec))
            mine = tensors(transport.rank, scale=scale)
            exchange.register(mine, mean=False)
            one_step(exchange, mine)
            exchange.close()
            wanted = summed(transport.size, scale=scale)
            far = max(float(np.abs(mine[n] - wanted[n]).max()) for n in mine)
            largest = max(float(np.abs(wanted[n]).max()) for n in mine)
            found[f"{label} {scale:g}"] = (digest(mine), far / largest)
    return found


def residual(transport: Transport) -> Any:
    """B14: over steps nothing is lost, also across a saved and loaded state."""
    exchange = GradientExchange(transport, replace(PLAIN, codec=TopK(0.1)))
    rng = np.random.default_rng(transport.rank)
    constant = rng.normal(size=400).astype(np.float32)
    exchange.register({"w": constant}, mean=False)
    total = np.zeros(400)
    for step in range(40):
        if step == 20:
            state = exchange.state_dict()
            exchange.close()
            exchange = GradientExchange(transport, replace(PLAIN, codec=TopK(0.1)))
            exchange.register({"w": constant}, mean=False)
            exchange.load_state_dict(state)
        sent = constant.copy()
        exchange.announce("w", sent)
        exchange.finish_step()
        total += sent
    left = [np.zeros((1, 400), np.float32)]
    left[0][0] = exchange.residuals["w"]
    whole = exchange.all_gather("left", left[0]).wait().sum(axis=0)
    wanted = exchange.all_gather("wanted", constant[None]).wait().sum(axis=0) * 40.0
    exchange.close()
    return float(np.abs(total + whole - wanted).max()), float(np.abs(total - wanted).max())


def not_finite(transport: Transport) -> Any:
    """B15: the same error on all ranks, the tensor as it was, and the exchange goes on; nothing of it by default."""
    exchange = GradientExchange(transport, replace(PLAIN, check_finite=True))
    mine = tensors(transport.rank)
    exchange.register(mine, mean=False)
    said = []
    for step in range(3):
        now = tensors(transport.rank)
        if step == 1 and transport.rank == transport.size - 1:
            now["small.07"][2, 1] = np.nan
        before = now["small.07"].copy()
        try:
            one_step(exchange, now)
            said.append(str(digest(now) == digest(summed(transport.size))))
        except NonFiniteTensor as error:
            kept = np.array_equal(before, now["small.07"], equal_nan=True)
            said.append(f"{error} {kept} {bool((now['large'] == summed(transport.size)['large']).all())}")
    exchange.close()
    exchange = GradientExchange(transport, PLAIN)
    x = np.array([np.inf if transport.rank == 0 else 1.0], np.float32)
    exchange.all_reduce("x", x).wait()
    exchange.close()
    return said, float(x[0])


def uneven(transport: Transport) -> Any:
    """Rank r has r + 1 batches: means are over those that have one, and the last to join is told."""
    exchange = GradientExchange(transport, PLAIN)
    x = np.zeros(5, np.float32)
    exchange.register({"x": x})
    means = []
    for _ in range(transport.rank + 1):
        x = np.full(5, transport.rank, np.float32)
        exchange.announce("x", x)
        exchange.finish_step()
        means.append(float(x[0]))
    last = exchange.join()
    again = np.ones(3)
    exchange.all_reduce("after", again).wait()
    x = np.full(5, transport.rank, np.float32)
    exchange.announce("x", x)
    exchange.finish_step()
    exchange.close()
    return means, last, float(again[0]), float(x[0])


def operations(transport: Transport) -> Any:
    """Every kind of collective and dtype, asked for in orders of the ranks' own."""
    rank, size = transport.rank, transport.size
    exchange = GradientExchange(transport, PLAIN)
    least, most = np.array([rank, -rank]), np.array([float(rank)])
    halves = np.full(7, 1 + rank, np.float16)
    rows = np.full((rank, 2), rank, np.int32)
    root = np.array(float(rank))
    calls: dict[str, Callable[[], Any]] = {
        "least": lambda: exchange.all_reduce("least", least, reduce=Reduce.MIN),
        "most": lambda: exchange.all_reduce("most", most, reduce=Reduce.MAX),
        "halves": lambda: exchange.all_reduce("halves", halves, mean=True),
        "rows": lambda: exchange.all_gather("rows", rows),
        "root": lambda: exchange.broadcast("root", root, size - 1),
    }
    order = np.random.default_rng(rank).permutation(sorted(calls))
    handles = {str(name): calls[str(name)]() for name in order}
    found = {name: handle.wait().tolist() for name, handle in sorted(handles.items())}
    twice = exchange.all_reduce("slow", np.ones(1)), error_of(lambda: exchange.all_reduce("slow", np.ones(1)))
    twice[0].wait()
    exchange.close()
    return found, twice[1]


def mismatched(transport: Transport) -> Any:
    """One clear error on all ranks: shapes, dtypes, names and settings that differ."""
    rank, size = transport.rank, transport.size
    odd = rank == size - 1
    said = []
    for mine in (np.ones(4 if odd else 3), np.ones(3, np.float32 if odd else np.float64)):
        exchange = GradientExchange(transport, PLAIN)
        # The others may find out before the call of this rank returns: then it is the call that raises.
        said.append(error_of(lambda: exchange.all_reduce("w", mine).wait()))  # noqa: B023 (called at once)
    exchange = GradientExchange(transport, PLAIN)
    named = {"a": np.ones(2), ("c" if odd else "b"): np.ones(3)}
    said.append(error_of(lambda: exchange.register(named)))
    said.append(error_of(lambda: GradientExchange(transport, replace(PLAIN, streams=1 if odd else 2))))
    return said


def late(transport: Transport) -> Any:
    """A tensor that one rank comes up with late is named on one rank; one that never comes is an error on all."""
    rank = transport.rank
    told: list[str] = []
    exchange = GradientExchange(transport, PLAIN, on_stall=told.append)
    exchange.register({"a": np.ones(2), "b": np.ones(2)}, mean=False)
    exchange.announce("a", np.ones(2))
    if rank == 0:
        time.sleep(0.7)
    exchange.announce("b", np.ones(2))
    exchange.finish_step()
    if rank != 0:
        exchange.announce("a", np.ones(2))
    exchange.announce("b", np.ones(2))
    begin_s = time.monotonic()
    never = error_of(exchange.finish_step)
    return told[:1], never, time.monotonic() - begin_s


def left_behind(transport: Transport) -> Any:
    """A rank that shuts down while others wait for its tensor."""
    exchange = GradientExchange(transport, PLAIN)
    if transport.rank == 0:
        return error_of(exchange.close)
    return error_of(exchange.all_reduce("w", np.ones(2)).wait)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        *(registration, callbacks, slow_stream, main_loop, two_levels, messages, tuning, codecs, residual),
        *(not_finite, uneven, operations, mismatched, late, left_behind),
    )
}


def on_threads(name: str, ranks: int) -> list[Any]:
    """The same check by ranks that are threads."""
    found: list[Any] = json.loads(json.dumps(on_transports(ranks, CHECKS[name])))
    return found


def main() -> None:
    """All checks, or those that are named; each has a transport of its own."""
    world = open_world()
    found = {}
    for name in sys.argv[1:] or CHECKS:
        seen = CHECKS[name](MpiTransport(world, {}))
        found[name] = world.gather(seen)
        if name in sys.argv[1:] and world.rank == 0:
            print(name, file=sys.stderr, flush=True)
    if world.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
