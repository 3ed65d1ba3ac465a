"""Rows that nobody has seen: blanks, other names and other spellings are predicted, wide where something is guessed."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest

from experiments.published.cells import INPUTS, MORE, inputs, read_cells
from experiments.published.fitting import TRAINING, reference
from experiments.published.guesses import TAKEN, guess_costs
from experiments.published.predictions import Prediction, predict
from experiments.published.rows import Row, candidates
from experiments.published.scores import family_of, measured_seconds
from strategy.closed_form.calibration import shipped

Cells = dict[str, str]
OF_A_FAMILY = 2
WORDS = {
    "framework": ("", "Colossal-AI", "GPT-NeoX", "HF Accelerate", "Levanter", "MosaicML Composer", "PyTorch FSDP"),
    "gpu": ("", "Trainium2", "RTX 5090", "Ascend 910B", "MI400", "TPU v9", "Rubin"),
    "dtype": ("", "tf32", "int8", "mixed", "fp6"),
    "arch": ("", "mamba2", "diffusion unet", "rwkv7", "moe", "hybrid", "hybrid XYZ", "vit", "cnn", "mixture"),
    "recompute": ("", "sometimes", "selective(wings)", "full", "offloaded"),
    "schedule": ("", "dualpipe", "chimera", "gpipe"),
    "model": ("", "Lightning 9", "Llama-3.1-8B", "gpt2", "ResNet-152"),
    "attention_impl": ("", "paged", "flex", "ring"),
    "optimizer": ("", "shampoo", "adafactor", "sgd"),
    "inter_link": ("", "Slingshot 11", "400G Ethernet"),
    "num_gpus": ("", "3", "7", "100", "12288"),
    "tp": ("", "3", "8", "16"),
    "pp": ("", "5", "16"),
    "cp": ("", "0", "4"),
    "ep": ("", "0", "8", "64"),
    "vpp": ("", "0", "2", "3"),
    "hidden": ("", "100", "1000", "18432"),
    "layers": ("", "1", "13", "160"),
    "heads": ("", "1", "7", "96"),
    "seq": ("", "77", "131072", "1000000"),
    "global_batch": ("", "1", "3", "1,024", "20000"),
    "micro_batch": ("", "3", "64"),
    "experts": ("", "0", "8", "384"),
    "params_b": ("", "0.1", "7", "405", "1000"),
    "zero_stage": ("", "0", "1", "2", "3"),
}


@cache
def sample() -> tuple[Cells, ...]:
    """A few open rows of every family that were timed."""
    rng = random.Random(11)
    rows = [dict.fromkeys(MORE, "") | row for name in TRAINING for row in read_cells(reference(name))]
    rng.shuffle(rows)
    taken: Counter[str] = Counter()
    found = []
    for row in rows:
        if measured_seconds(row) is not None and taken[family_of(row)] < OF_A_FAMILY:
            taken[family_of(row)] += 1
            found.append(row)
    return tuple(found)


def read(rows: list[Cells]) -> list[Row]:
    return [
        Row(number, cells | {"row_id": str(number)}, candidates(inputs(cells))) for number, cells in enumerate(rows)
    ]


def predicted(rows: list[Cells]) -> list[Prediction]:
    return predict(read(rows), shipped())


def width(one: Prediction) -> float:
    return math.log(one.high / one.low)


def check(found: list[Prediction], rows: list[Cells]) -> None:
    for one, row in zip(found, rows, strict=True):
        cells = {name: cell for name, cell in row.items() if cell and name in (*INPUTS, *MORE)}
        assert one.status == "ok", (one.status, cells)
        figures = (one.seconds, one.low, one.high, one.allocated_gib, one.memory_gib)
        assert all(map(math.isfinite, figures)), cells
        assert 0 < one.low <= one.seconds <= one.high, cells
        assert one.memory_gib > 0, cells


@cache
def blanked() -> dict[str, tuple[list[Cells], list[Prediction]]]:
    """Column -> rows without it and their predictions: all at once, for what takes long is a call."""
    rows = {column: [row | {column: ""} for row in sample()] for column in (*INPUTS, *MORE)}
    found = iter(predicted([row for some in rows.values() for row in some]))
    return {column: (some, list(islice(found, len(some)))) for column, some in rows.items()}


@pytest.mark.parametrize("column", [*INPUTS, *MORE])
def test_a_row_is_predicted_whatever_column_is_blank(column: str) -> None:
    rows, found = blanked()[column]
    check(found, rows)


def test_a_row_of_which_nothing_is_known_is_predicted_very_wide() -> None:
    blank = dict.fromkeys((*INPUTS, *MORE), "")
    (found,) = predicted([blank])
    check([found], [blank])
    for name in ("gpu", "framework", "dtype", "seq", "num_gpus", "global_batch", "cut", "model"):
        assert f"{name} guessed" in found.extrapolated
        assert name in shipped().guesses
    assert width(found) / 2 > max(shipped().guesses.values())


def drawn(rng: random.Random) -> Iterator[Cells]:
    for row in sample():
        names = rng.sample(sorted(WORDS), rng.randrange(1, 7))
        yield row | {name: rng.choice(WORDS[name]) for name in names}


@pytest.mark.parametrize("seed", range(2))
def test_rows_of_other_trainers_devices_and_models_are_predicted(seed: int) -> None:
    rows = list(drawn(random.Random(seed)))
    found = predicted(rows)
    check(found, rows)
    guessed = sum(bool(one.extrapolated) for one in found)
    print(f"{len(rows)} rows, {guessed} beyond what was measured")
    assert guessed > len(rows) / 2


@pytest.mark.parametrize(
    ("column", "text", "why"),
    [
        ("gpu", "Trainium2", "gpu guessed"),
        ("framework", "Colossal-AI", "framework guessed"),
        ("dtype", "int3", "dtype guessed"),
        ("recompute", "sometimes", "recompute guessed"),
        ("seq", "", "seq guessed"),
        ("tp", "7", "num_gpus guessed"),
    ],
)
def test_what_is_guessed_is_named_stated_and_widens(column: str, text: str, why: str) -> None:
    (row,) = [one for one in sample() if family_of(one) == "mtnlg"]
    whole, less = predicted([row, row | {column: text, "dp": ""}])
    assert why in less.extrapolated
    assert width(less) / 2 == pytest.approx(
        math.hypot(width(whole) / 2, shipped().guesses[why.partition(" ")[0]]), rel=0.6
    )
    assert width(less) > width(whole)
    stated = "gpu" if column == "gpu" else "num_gpus" if column == "tp" else column
    assert stated in less.defaults or column == "tp"


def test_spellings_do_not_tell_rows_apart() -> None:
    def otherwise(row: Cells) -> Cells:
        more = {"gpu": f"NVIDIA {row['gpu'].lower()}", "framework": row["framework"].upper()}
        more["dtype"] = row["dtype"].upper()
        more["seq_parallel"] = {"yes": "True", "no": "false"}.get(row["seq_parallel"], "")
        more["global_batch"] = f"{int(row['global_batch']):,}"
        return row | more | {name: row[name] or "0" for name in ("vpp", "experts", "ep", "cp")}

    rows = [row for row in sample() if row["global_batch"].isdecimal()]
    plain, other = predicted(rows), predicted([otherwise(row) for row in rows])
    assert [replace(one, defaults="") for one in plain] == [replace(one, defaults="") for one in other]


def test_a_model_by_its_public_name_has_its_dimensions() -> None:
    blank = {name: "" for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "params_b")}
    (row,) = [one for one in sample() if family_of(one) == "mtnlg"]
    found = [read([row | blank | {"model": name}])[0].candidates[0].job.shape for name in
             ("Llama-3.1-8B", "llama2-70b", "Qwen2.5-32B", "Mixtral-8x7B-v0.1", "DeepSeekV3")]  # fmt: skip
    assert [(one.layers, one.hidden) for one in found] == [
        (32, 4096), (80, 8192), (64, 5120), (32, 4096), (61, 7168),
    ]  # fmt: skip
    assert found[3].experts == 8


def test_a_model_of_a_size_alone_is_about_that_large() -> None:
    blank = {name: "" for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    (row,) = [one for one in sample() if family_of(one) == "mtnlg"]
    for billions in (1.3, 7, 70, 405):
        shape = read([row | blank | {"model": "x", "params_b": str(billions)}])[0].candidates[0].job.shape
        assert 12 * shape.layers * shape.hidden**2 == pytest.approx(billions * 1e9, rel=0.6)


@pytest.mark.long
def test_guesses_cost_what_they_move() -> None:
    """Of runs that are all moved alike, that much; and what is no guess of any costs nothing."""
    rows = [replace(row, cells=dict(row.cells) | {"iter_time_s": "1"}) for row in read(sample())]
    costs = guess_costs(rows, ["a"] * len(rows), shipped())
    assert set(costs) <= set(TAKEN)
    assert all(np.isfinite(list(costs.values())))
    assert costs["seq"] > costs["dtype"] > 0
