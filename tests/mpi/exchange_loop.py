"""An endless NumPy loop by the exchange: `python -m tests.mpi.exchange_loop HOW`, under guard, or `plain`.

Rank 1 raises in step 3 where HOW is `raising`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from executor.supervision.rank import run_rank
from executor.supervision.watchdog import Limits


def main() -> int:
    """Average the same tensors for ever; rank 0 tells of each step."""
    import numpy as np

    import executor.exchange.horovod as hvd
    from executor.exchange.settings import ExchangeSettings

    hvd.init(ExchangeSettings(stall_s=1.0, stall_limit_s=2.0, peer_s=2.0))
    gradients = {f"w{index}": np.full(100, hvd.rank(), np.float32) for index in range(5)}
    hvd.exchange().register(gradients)
    for step in range(100_000):
        if sys.argv[1] == "raising" and hvd.rank() == 1 and step == 3:
            raise ValueError("the loss is no number")
        for name, gradient in gradients.items():
            hvd.exchange().announce(name, gradient)
        hvd.exchange().finish_step()
        if hvd.rank() == 0:
            print(f'{{"step": {step}, "pid": 0}}', flush=True)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        main()
    else:
        run_rank(main, folder=Path("runs", "loop"), limits=Limits(stop_s=1.0))
