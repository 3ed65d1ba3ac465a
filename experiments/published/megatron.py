"""Megatron-LM's jobs on A100s in 2021: the ten of the table of its paper (Narayanan et al., SC'21, table 1).

The paper leaves micro-batches and interleaving open; they are those of the script that ran the table
(NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh, commit 79a3bb6bf2c8).
"""

from __future__ import annotations

from collections.abc import Mapping

from strategy.closed_form.job import Job, Shape
from strategy.hardware.devices import DEVICES

VOCABULARY = 51200
_A100 = DEVICES["A100-80"]


def gpt(layers: int, hidden: int, heads: int) -> Shape:
    """A GPT of the paper."""
    return Shape.transformer(layers, hidden, heads, 4 * hidden, VOCABULARY)


def megatron_job(
    shape: Shape, gpus: int, *, pp: int, global_batch: int, micro_batch: int, tp: int = 8, virtual: int = 1
) -> Job:
    """A job on nodes of eight A100s, with everything recomputed."""
    return Job(
        shape=shape, device=_A100, framework="megatron", precision="half", gpus=gpus, gpus_per_node=8,
        nic_bytes_per_s=_A100.nic_bytes_per_s, fabric="infiniband", seq=2048, global_batch=global_batch,
        micro_batch=micro_batch, tp=tp, pp=pp, virtual=virtual, recompute="full",
    )  # fmt: skip


TRILLION = gpt(128, 25600, 160)
GPT3 = gpt(96, 12288, 96)
TABLE: Mapping[str, Job] = {
    "1.7 B": megatron_job(gpt(24, 2304, 24), 32, tp=1, pp=1, global_batch=512, micro_batch=16),
    "3.6 B": megatron_job(gpt(30, 3072, 32), 64, tp=2, pp=1, global_batch=512, micro_batch=16),
    "7.5 B": megatron_job(gpt(36, 4096, 32), 128, tp=4, pp=1, global_batch=512, micro_batch=16),
    "18 B": megatron_job(gpt(40, 6144, 48), 256, pp=1, global_batch=1024, micro_batch=8),
    "39 B": megatron_job(gpt(48, 8192, 64), 512, pp=2, global_batch=1536, micro_batch=4),
    "76 B": megatron_job(gpt(60, 10240, 80), 1024, pp=4, global_batch=1792, micro_batch=2, virtual=3),
    "145 B": megatron_job(gpt(80, 12288, 96), 1536, pp=8, global_batch=2304, micro_batch=2, virtual=2),
    "310 B": megatron_job(gpt(96, 16384, 128), 1920, pp=16, global_batch=2160, micro_batch=1, virtual=2),
    "530 B": megatron_job(gpt(105, 20480, 128), 2520, pp=35, global_batch=2520, micro_batch=1, virtual=3),
    "1 T": megatron_job(TRILLION, 3072, pp=64, global_batch=3072, micro_batch=1),
}
"""By parameters."""
