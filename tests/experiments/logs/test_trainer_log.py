"""Steps of trainers' logs, as others recorded them."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.logs.trainer_log import read_trainer_log
from strategy.base.errors import InputError

LOGS = Path(__file__).parents[3] / "experiments" / "reference" / "trainer_logs"


@pytest.mark.parametrize(
    ("name", "trainer", "steps", "seconds"),
    [
        ("primus_megatron_dsv2_lite.log", "Megatron-LM", 20, 32.06),
        ("nemo_qwen2.5_32b_32gpu.log", "NeMo", 20, 12.36),
        # 160 sequences of 128 tokens at 9,982 tokens/s; the log's own clock says 18.465 s for nine steps.
        ("torchtitan_qwen3_14b_1.log", "torchtitan", 2, 18.465 / 9),
    ],
)
def test_a_recorded_log_says_its_step(name: str, trainer: str, steps: int, seconds: float) -> None:
    found = read_trainer_log(LOGS / name)
    assert (found.trainer, len(found.steps_s)) == (trainer, steps)
    assert found.step_time_s == pytest.approx(seconds, rel=0.002)


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_every_recorded_log_is_read(path: Path) -> None:
    found = read_trainer_log(path)
    assert 0.1 < found.step_time_s < 100
    assert min(found.steps_s) == 1


def test_a_line_of_megatron_is_read_as_it_is_printed(tmp_path: Path) -> None:
    """The format of Megatron-LM's training log: milliseconds, one figure."""
    path = tmp_path / "megatron.log"
    line = " [2024-05-01 10:00:00] iteration {:8d}/     100 | consumed samples: {:12d} |"
    line += " elapsed time per iteration (ms): {} | learning rate: 1.0E-4 |"
    path.write_text("\n".join(line.format(step, 8 * step, ms) for step, ms in ((1, 9000.0), (2, 501.5), (3, 500.5))))
    assert read_trainer_log(path).steps_s == {1: 9.0, 2: 0.5015, 3: 0.5005}


@pytest.mark.parametrize("text", ["", "iteration 1/ 2 | lm loss: 3", "step: 1 loss: 2.0 tps: 100", "\xff\x00"])
def test_what_has_no_steps_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match="no steps of a trainer that is known"):
        read_trainer_log(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_trainer_log(tmp_path)
