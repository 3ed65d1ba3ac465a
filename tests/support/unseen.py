"""Unseen requests: models and clusters that no preset has, as files that a user would write, drawn by a seed.

Half the clusters have 64 GPUs or more; a third of the models have experts. What cannot hold the state of its training
is drawn again, and memory is scarce in some: a quarter of it is what the state takes, or up to three fifths.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANY_GPUS = 64
STATE_BYTES = 18
"""Of a parameter with its gradient and moments in mixed precision."""
FILLED = (0.02, 0.6)
"""Least and most part of all memory that the state of the training may fill."""
HEAD = 128


@dataclass(frozen=True, slots=True)
class Unseen:
    """What is asked for: a model's config, a cluster's file, samples per step, tokens per sample."""

    config: dict[str, Any]
    cluster: str
    gpus: int
    global_batch: int
    sequence: int
    covers: frozenset[str]

    def arguments(self, folder: Path) -> list[str]:
        """Of `sbplan search`, with its files written to the folder."""
        (folder / "config.json").write_text(json.dumps(self.config, indent=1))
        (folder / "cluster.toml").write_text(self.cluster)
        asked = ["search", str(folder / "config.json"), "--cluster", str(folder / "cluster.toml")]
        return [*asked, "--global-batch", str(self.global_batch), "--seq", str(self.sequence)]


def unseen(number: int, seed: int = 0) -> Unseen:
    """Request `number` of a seed."""
    draw = random.Random(f"unseen {seed} {number}")
    experts = number % 3 == 1
    while True:
        config, parameters = _mixture(draw) if experts else _dense(draw)
        text, gpus, memory = _cluster(draw, many=number % 2 == 0)
        if FILLED[0] <= STATE_BYTES * parameters / (gpus * memory) <= FILLED[1]:
            break
    sequence = draw.choice((2048, 4096, 8192, 32768))
    samples = max(1, 2 ** draw.randint(3, 6) * gpus * 2048 // (8 * sequence))
    size = "64 GPUs or more" if gpus >= MANY_GPUS else "fewer GPUs"
    covers = frozenset({"experts" if experts else "dense", size})
    return Unseen(config, text, gpus, samples, sequence, covers)


def _dense(draw: random.Random) -> tuple[dict[str, Any], float]:
    """A config of the Llama, Qwen2 or Mistral family, and roughly how many parameters it has."""
    heads = draw.choice((8, 16, 24, 32, 40, 48, 64, 96))
    width, layers = heads * HEAD, draw.randint(12, 100)
    groups = draw.choice([count for count in (1, 2, 4, 8, heads) if heads % count == 0])
    hidden = round(width * draw.choice((2.6875, 3.5, 4))) // 64 * 64
    vocabulary = draw.choice((32000, 50304, 128256, 151936))
    common = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": hidden,
        "vocab_size": vocabulary,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": draw.random() < 0.2,
    }
    family = draw.choice(("llama", "qwen2", "mistral"))
    if family == "mistral":
        common["sliding_window"] = None
    attention = 2 * width * (width + groups * HEAD)
    parameters = layers * (attention + 3 * width * hidden) + 2 * vocabulary * width
    return {"model_type": family, **common}, parameters


def _mixture(draw: random.Random) -> tuple[dict[str, Any], float]:
    """A config of the Mixtral or Qwen3-MoE family."""
    config, _ = _dense(draw)
    width, layers = config["hidden_size"], draw.randint(12, 64)
    config |= {"num_hidden_layers": layers}
    if draw.random() < 0.5:
        experts, hidden = 8, round(width * 2.5) // 64 * 64
        config |= {
            "model_type": "mixtral",
            "num_local_experts": experts,
            "num_experts_per_tok": 2,
            "intermediate_size": hidden,
            "sliding_window": None,
        }
    else:
        experts, hidden = draw.choice((32, 64, 128)), draw.choice((512, 768, 1024))
        config |= {
            "model_type": "qwen3_moe",
            "head_dim": HEAD,
            "num_experts": experts,
            "num_experts_per_tok": draw.choice((4, 8)),
            "moe_intermediate_size": hidden,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    attention = 2 * width * (width + config["num_key_value_heads"] * HEAD)
    return config, layers * (attention + 3 * width * hidden * experts) + 2 * config["vocab_size"] * width


def _cluster(draw: random.Random, *, many: bool) -> tuple[str, int, float]:
    """A cluster's file, its GPUs, and the bytes of one."""
    per_node = draw.choice((4, 8, 8, 8, 16))
    nodes = draw.choice(
        [n for n in (1, 2, 3, 4, 6, 8, 16, 24, 48, 64, 128, 256) if (n * per_node >= MANY_GPUS) is many]
    )
    gib = draw.choice((24, 40, 48, 64, 80, 96, 141, 192))
    compute = draw.choice((80, 156, 300, 495, 1100))
    inside = draw.choice((32, 100, 300, 450, 900))
    text = f"""name = "unseen"
nodes = {nodes}
devices_per_node = {per_node}

[device]
name = "unseen"
backend = "cupy"
memory = "{gib} GiB"
memory_bandwidth = "{draw.choice((900, 2039, 3350, 8000))} GB/s"
launch = "{draw.choice((3, 5, 8))} us"
compute = "{compute} TFLOP/s"
bf16_speedup = 2.0
fp16_speedup = 2.0
slowdown = {draw.choice((0, 0.1, 0.19))}

[intra]
bandwidth = "{inside} GB/s"
latency = "3 us"

[inter]
bandwidth = "{draw.choice([b for b in (3, 12.5, 25, 50, 100) if b <= inside])} GB/s"
latency = "5 us"
"""
    return text, nodes * per_node, gib * 2**30
