"""The rival's ring: the sums of all ranks, the same bits everywhere, and the bytes of a ring over every edge."""

from __future__ import annotations

import numpy as np
import pytest

from executor.exchange.gradient_exchange import GradientExchange
from executor.exchange.settings import ExchangeSettings
from executor.runtime.transport.base import Transport
from experiments.bench.ring_all_reduce import ring_all_reduce
from tests.support.threads import on_transports

SIZES = (1, 2, 7, 1000)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_it_sums_as_a_ring_does(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    given = [{f"g{size}": rng.standard_normal(size).astype(np.float32) for size in SIZES} for _ in range(ranks)]
    wanted = {name: np.mean([one[name].astype(np.float64) for one in given], axis=0) for name in given[0]}

    def sent(transport: Transport) -> int:
        settings = ExchangeSettings(fusion_bytes=2**20, streams=1, cycle_s=0.0)
        exchange = GradientExchange(transport, settings, reduces=ring_all_reduce)
        exchange.register(given[transport.rank])
        before = transport.bytes_sent["exchange"]
        for name, array in given[transport.rank].items():
            exchange.announce(name, array)
        exchange.finish_step()
        sent_bytes = transport.bytes_sent["exchange"] - before
        exchange.close()
        return sent_bytes

    sent_bytes = on_transports(ranks, sent)
    for name, mean in wanted.items():
        assert len({one[name].tobytes() for one in given}) == 1
        np.testing.assert_allclose(given[0][name], mean, rtol=1e-5, atol=1e-6)
    total, steps = 4 * sum(SIZES), 2 * (ranks - 1)
    for nbytes in sent_bytes:
        assert abs(nbytes - steps * total / ranks) <= 4 * steps * len(SIZES)
