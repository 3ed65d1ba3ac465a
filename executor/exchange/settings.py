"""Settings of an exchange: equal on all ranks, which is seen before anything is exchanged."""

from __future__ import annotations

from dataclasses import dataclass

from executor.exchange.codecs import Codec
from strategy.base.errors import InputError

_LEAST_FUSION_BYTES = 64


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """How tensors are exchanged.

    Attributes:
        fusion_bytes: how large a bucket of small tensors may grow.
        fragment_bytes: how large a part of a tensor is sent at once; larger ones are cut.
        streams: buckets that are under way at once, each on a communicator of its own.
        codec: what float32 values are encoded by on the way; None leaves them as they are.
        ranks_per_node: where above 1, sums are made inside each node (of so many consecutive ranks) first, and codecs
            are used between nodes alone.
        check_finite: whether tensors with NaN or infinities are refused, on all ranks alike.
        cycle_s: least time between two rounds that one rank begins: what is announced meanwhile goes together.
        stall_s: after how long a tensor that some ranks lack is named on stderr.
        stall_limit_s: after how long that is an error on all ranks.
        peer_s: after how long a rank that does not answer is an error.
        tune_fusion_bytes: fusion sizes to try in the first steps.
        tune_streams: numbers of streams to try with each of them.
        tune_steps: steps to try each pair for.
    """

    fusion_bytes: int = 32 * 2**20
    fragment_bytes: int = 32 * 2**20
    streams: int = 2
    codec: Codec | None = None
    ranks_per_node: int = 1
    check_finite: bool = False
    cycle_s: float = 0.001
    stall_s: float = 10.0
    stall_limit_s: float = 60.0
    peer_s: float = 30.0
    tune_fusion_bytes: tuple[int, ...] = ()
    tune_streams: tuple[int, ...] = ()
    tune_steps: int = 4

    def __post_init__(self) -> None:
        for name, got, least in (
            ("fusion_bytes", self.fusion_bytes, _LEAST_FUSION_BYTES),
            ("fragment_bytes", self.fragment_bytes, _LEAST_FUSION_BYTES),
            ("streams", self.streams, 1),
            ("ranks_per_node", self.ranks_per_node, 1),
            ("tune_steps", self.tune_steps, 1),
            *(("tune_fusion_bytes", size, _LEAST_FUSION_BYTES) for size in self.tune_fusion_bytes),
            *(("tune_streams", count, 1) for count in self.tune_streams),
        ):
            if got < least:
                raise InputError("too small", where=f"ExchangeSettings.{name}", got=got, expected=f"at least {least}")
        if not 0 <= self.cycle_s < self.stall_s <= self.stall_limit_s:
            raise InputError(
                "limits that cannot be",
                where="ExchangeSettings",
                got=(self.cycle_s, self.stall_s, self.stall_limit_s),
                expected="0 <= cycle_s < stall_s <= stall_limit_s",
            )

    @property
    def most_streams(self) -> int:
        """Of those that may ever be used."""
        return max(self.streams, *self.tune_streams, 0)

    @property
    def candidates(self) -> tuple[tuple[int, int], ...]:
        """Pairs of fusion size and number of streams to try; none where there is nothing to choose from."""
        sizes = self.tune_fusion_bytes or (self.fusion_bytes,)
        streams = self.tune_streams or (self.streams,)
        pairs = tuple((size, count) for size in sizes for count in streams)
        return pairs if len(pairs) > 1 else ()
