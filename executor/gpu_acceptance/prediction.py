"""Part of acceptance: the refine loop. Models are run, the time model is fitted to them, and others are foretold.

The models that are foretold are searched with the calibration, and so predicted, before any of them is run; what they
take is the median of their last steps, which are not timed act by act.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.commands import folder_of_plans, last_line, make_plan, run_sbplan, train
from executor.gpu_acceptance.outcome import Figures, PartFailed
from strategy.base.files import write_atomic

_STEPS, _LATE = 44, 12
WANTED_MEAN, WANTED_WORST = 0.05, 0.10
_REFINE_S = 60.0
_AT_ONCE = 4
"""Searches."""


def _gpt(width: int, layers: int, positions: int, classes: int = 50304) -> dict[str, object]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": width,
        "n_layer": layers,
        "n_head": width // 64,
        "n_positions": positions,
        "vocab_size": classes,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def _llama(width: int, layers: int, positions: int, inner: int, keys: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": keys,
        "intermediate_size": inner,
        "vocab_size": 32000,
        "max_position_embeddings": positions,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }


Shapes = Mapping[str, tuple[Mapping[str, object], int]]
"""Name -> a configuration in Hugging Face's keys, and samples of a step."""
FITTED: Shapes = {
    "gpt 768 x 12, 512": (_gpt(768, 12, 512), 16),
    "gpt 1536 x 6, 1024": (_gpt(1536, 6, 1024), 8),
    "llama 1024 x 8, 1024": (_llama(1024, 8, 1024, 2816, 16), 8),
    "llama 2048 x 4, 2048": (_llama(2048, 4, 2048, 5632, 8), 4),
}
FORETOLD: Shapes = {
    "gpt 1024 x 12, 1024": (_gpt(1024, 12, 1024), 8),
    "gpt 768 x 8, 1024": (_gpt(768, 8, 1024), 4),
    "gpt 1280 x 10, 512": (_gpt(1280, 10, 512), 24),
    "gpt 2048 x 5, 1024": (_gpt(2048, 5, 1024), 8),
    "llama 1536 x 8, 1024": (_llama(1536, 8, 1024, 4096, 8), 8),
    "llama 1024 x 12, 2048": (_llama(1024, 12, 2048, 2816, 4), 4),
    "llama 2560 x 4, 1024": (_llama(2560, 4, 1024, 6912, 40), 4),
    "llama 2048 x 6, 512": (_llama(2048, 6, 512, 8192, 8), 16),
}


def prediction(bench: Bench) -> Figures:
    """Step times of models that the fit has not seen, foretold and measured."""
    figures: dict[str, Any] = {}
    with folder_of_plans() as folder:
        runs = []
        for name, plan in _planned(bench, folder, "fitted", FITTED).items():
            reports, summary = train(bench, plan, steps=_STEPS)
            runs.append(str(summary["run"]))
            figures[name] = {"before_s": summary["predicted_step_time_s"], "measured_s": _late_s(reports)}
        calibration = folder / "calibration.json"
        code, written = run_sbplan(bench, ("refine", *runs, "--out", str(calibration), "--json"), _REFINE_S)
        if code:
            raise PartFailed(f"refine ends with code {code}: {last_line(written)}", figures)
        errors = {}
        for name, plan in _planned(bench, folder, "foretold", FORETOLD, calibration).items():
            reports, summary = train(bench, plan, steps=_STEPS)
            foretold, measured = float(summary["predicted_step_time_s"]), _late_s(reports)
            errors[name] = foretold / measured - 1
            spread = [report["step_time_s"] for report in reports[-_LATE:]]
            figures[name] = {
                "foretold_s": foretold,
                "measured_s": measured,
                "error": errors[name],
                "spread_s": [min(spread), max(spread)],
            }
    mean, worst = fmean(map(abs, errors.values())), max(map(abs, errors.values()))
    figures |= {"mean_error": mean, "worst_error": worst}
    if not (mean <= WANTED_MEAN and worst <= WANTED_WORST):
        raise PartFailed(f"steps are foretold within {mean:.1%} in the mean, {worst:.1%} at worst", figures)
    return figures


def _planned(bench: Bench, folder: Path, kind: str, shapes: Shapes, calibration: Path | None = None) -> dict[str, Path]:
    """Name -> a plan of each, all searched for, and so foretold, before any is run."""

    def planned(number: int, config: Mapping[str, object], batch: int) -> Path:
        inner = folder / f"{kind}{number}"
        inner.mkdir()
        file = inner / "config.json"
        write_atomic(file, json.dumps(config))
        return make_plan(bench, inner, str(file), {"dp": 1, "tp": 1, "pp": 1}, batch=batch, calibration=calibration)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        searches = [pool.submit(planned, number, *shape) for number, shape in enumerate(shapes.values())]
    return {name: search.result() for name, search in zip(shapes, searches, strict=True)}


def _late_s(reports: list[dict[str, Any]]) -> float:
    return float(median(report["step_time_s"] for report in reports[-_LATE:]))
