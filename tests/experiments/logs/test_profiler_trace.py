"""Steps in traces of PyTorch's profiler: one that others published, one that is recorded here, and what is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiments.logs.trainer_log import read_trainer_log
from strategy.base.errors import InputError

LOGS = Path(__file__).parents[3] / "experiments" / "reference" / "trainer_logs"


def mark(step: int, microseconds: object, category: str = "user_annotation") -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": f"ProfilerStep#{step}", "ts": 0, "dur": microseconds}


def test_a_published_trace_says_its_step() -> None:
    """DeepSeek-V3's training on H800s: the mark of its only step lasts 112,202 us."""
    found = read_trainer_log(LOGS / "kineto_deepseek_train.json.gz")
    assert (found.trainer, dict(found.steps_s)) == ("PyTorch profiler", {1: 0.112202})


def test_steps_are_the_hosts_marks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    other = {"ph": "X", "cat": "kernel", "name": "ProfilerStep#9", "dur": 5}
    marks = [mark(2, 9000.5), mark(3, 1000), mark(4, 2000), mark(3, 7, "gpu_user_annotation"), other]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": marks}))
    assert read_trainer_log(path).steps_s == {2: 0.0090005, 3: 0.001, 4: 0.002}
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(marks).encode()))  # a bare list of events is Chrome's format, too
    assert read_trainer_log(packed).step_time_s == pytest.approx(0.0015)


def test_what_this_torch_records_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'sbplan[torch]'")
    model, path = torch.nn.Linear(64, 64), tmp_path / "trace.json.gz"
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
        for _ in range(6):
            model(torch.ones(8, 64)).sum().backward()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    found = read_trainer_log(path)
    assert len(found.steps_s) == 4
    assert 0 < found.step_time_s < 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no trace of the PyTorch profiler"),
        ('{"traceEvents": 3}', "no trace of the PyTorch profiler"),
        ('{"traceEvents": []}', r"no step is marked.*call profiler.step\(\)"),
        (json.dumps([mark(1, -1), mark(2, "x"), mark(3, 0), 4]), "no step is marked"),
        ("{", "in the middle"),
    ],
)
def test_what_has_no_steps_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_trainer_log(path)
    with pytest.raises(InputError, match="no such file"):
        read_trainer_log(tmp_path / "nowhere.json")
