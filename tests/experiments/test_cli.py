"""The command: help, typos, shadowed packages, and every way in which a job can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from experiments.cli import VERBS, dispatch, guarded
from experiments.entry import PACKAGES
from experiments.version import VERSION
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, InternalError, RunError, SbplanError
from strategy.base.status import Status
from strategy.ilp.problem import Node, Problem
from tests.conftest import Sbplan

ROOT = Path(__file__).parent.parent.parent
HEAVY = ("numpy", "scipy", "ortools", "numba", "llvmlite", "matplotlib", "mpi4py", "msgspec", "rich", "cupy", "torch")
CONTRACT = {
    "demo": "--ranks --out --json",
    "search": "MODEL --cluster --global-batch --seq --training --calibration --pin --time-limit --gap --no-incumbents "
    "--gpus --gpu --tokens --mtbf --restart --storage --save --for --out --json",
    "verify": "PLAN --certificate --json",
    "simulate": "PLAN --calibration --trace --figure --json",
    "explain": "PLAN --diff --op --why-not --others --calibration --time-limit --json",
    "report": "PLAN|RUN --out --others --calibration --time-limit --json",
    "train": "PLAN --steps --data --checkpoint --resume --backend numpy cupy --launch --json",
    "profile": "--out --json",
    "refine": "RUN --calibration --out --json",
    "predict": "ROWS.csv --out --constants --json",
    "validate": "--choices --search --only --time-limit --out --json",
    "solve": "PROBLEM.json[.gz] --time-limit --work-limit --certificate --json",
    "bench": "search joint simulator --time-limit --pairs --seed --json",
    "figures": "--all --store --out --json",
    "price": "FILE --from --model --seq --cluster --gpus --gpu --tokens --no-search --time-limit --json",
    "export": "PLAN --to --lossy --out --json",
    "run": "SUITE.toml --quick --out --json",
    "runs": "list show compare export delete --store --out --unfinished --json",
    "cite": "PLAN --json",
    "doctor": "--ops --write --json",
    "completion": "bash|zsh|fish",
}


def run_python(code: str, *args: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_lists_every_verb(sbplan: Sbplan) -> None:
    done = sbplan("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for verb, text in VERBS.items():
        assert f"  {verb:<11}{text}\n" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    done = run_python(
        "import sys; sys.argv = ['sbplan', '--help']\n"
        "from experiments.entry import main\n"
        "assert main() == 0\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_the_process_ends_after_what_was_registered_for_its_end() -> None:
    done = run_python(
        "import atexit, sys\n"
        "from experiments.entry import leave\n"
        "atexit.register(print, 'registered')\n"
        "sys.stdout.write('in the buffer\\n')\n"
        "leave(3)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "in the buffer\nregistered\n", "")


def test_ranks_of_mpi_end_as_its_library_wants() -> None:
    done = run_python(
        "import sys, types\n"
        "from experiments.entry import leave\n"
        "sys.modules['mpi4py.MPI'] = types.ModuleType('mpi4py.MPI')\n"
        "try: leave(3)\n"
        "except SystemExit as stop: print('left to the interpreter', stop.code)"
    )
    assert done.stdout == "left to the interpreter 3\n"


def test_there_is_one_file_per_verb() -> None:
    files = {path.stem for path in (ROOT / "experiments" / "verbs").glob("*.py")} - {"__init__"}
    assert files == VERBS.keys() == CONTRACT.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_takes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        guarded(lambda: dispatch([verb, "--help"]), [])
    page = capsys.readouterr().out
    assert page.startswith(f"usage: sbplan {verb} ")
    for word in CONTRACT[verb].split():
        assert word in page


def test_no_verb_at_all_is_bad_input(sbplan: Sbplan) -> None:
    done = sbplan()
    assert done.returncode == 2
    assert "verbs:" in done.stdout


def test_the_version(sbplan: Sbplan) -> None:
    done = sbplan("--version")
    assert (done.returncode, done.stdout) == (0, f"sbplan {VERSION}\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["simulat"], "no such verb (got 'simulat'); did you mean 'simulate'?"),
        (["--hepl"], "no such verb (got '--hepl')"),
        (["quote", "plan.json"], "no such verb (got 'quote'); known: bench, cite, completion, demo, doctor, "),
        (["bench", "gpu"], "invalid choice: 'gpu' (choose from 'cpu', 'search', "),
        (["search", "gpt-tiny", "--clustre", "local"], "did you mean '--cluster'?"),
        (["search", "gpt-tiny", "--clustre=local"], "no such flag (got '--clustre'); did you mean '--cluster'?"),
        (["search", "gpt-tiny", "--clus", "local"], "no such flag (got '--clus')"),
        (["search"], "the following arguments are required: MODEL; see 'sbplan search --help'"),
        (["search", "gpt-tiny", "--cluster", "local", "--seq", "0"], "got '0', expected a whole number of at least 1"),
        (
            ["search", "gpt-tiny", "--cluster", "local", "--seq", "2k"],
            "got '2k', expected a whole number of at least 1",
        ),
        (["search", "gpt-tiny", "--cluster", "local", "--time-limit", "1 min"], "got '1 min', expected a number of"),
        (["search", "gpt-tiny", "--cluster", "local", "--time-limit", "nan"], "expected a number of seconds above"),
        (["solve", "p.json", "--time-limit", "-1"], "expected a number of seconds above zero"),
        (["train", "plan.json", "--backend", "numpi"], "invalid choice: 'numpi'"),
        (["verify", "one.json", "two.json"], "unrecognized arguments: two.json"),
    ],
)
def test_mistakes_are_one_message(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = guarded(lambda: dispatch(argv), argv)
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.startswith("sbplan: ")
    assert message in said.err
    assert "Traceback" not in said.err


@pytest.fixture
def console_script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command as it is installed: a copy of the entry, far from the packages."""
    script = tmp_path / "bin" / "sbplan"
    script.parent.mkdir()
    script.write_text((ROOT / "experiments" / "entry.py").read_text())

    def run(*args: str, first: Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, (first, ROOT)))
        return subprocess.run(
            [sys.executable, str(script), *args],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("kind", ["package", "module"])
def test_a_stranger_that_shadows_ours_is_named(
    tmp_path: Path, console_script: Callable[..., subprocess.CompletedProcess[str]], name: str, kind: str
) -> None:
    stranger = tmp_path / "stranger"
    file = stranger / name / "__init__.py" if kind == "package" else stranger / f"{name}.py"
    file.parent.mkdir(parents=True)
    file.write_text("raise SystemExit('the stranger was imported')\n")
    done = console_script("--help", first=stranger)
    assert done.returncode == 5
    assert done.stdout == ""
    assert done.stderr.startswith(f"sbplan: {name!r} in {stranger} shadows ours (expected ")
    assert done.stderr.count("shadows ours") == 1


def test_strangers_in_the_majority_are_all_named(
    tmp_path: Path, console_script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    for name in PACKAGES[:3]:
        (tmp_path / "stranger" / name).mkdir(parents=True)
        (tmp_path / "stranger" / name / "__init__.py").touch()
    done = console_script("--help", first=tmp_path / "stranger")
    assert done.returncode == 5
    assert done.stderr.count("shadows ours") == 3


def test_a_folder_that_only_has_the_name_does_not_shadow(
    tmp_path: Path, console_script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "stranger" / "experiments").mkdir(parents=True)
    (tmp_path / "stranger" / "experiments" / "notes.txt").touch()
    assert console_script("--help", first=tmp_path / "stranger").returncode == 0


def test_the_current_folder_may_shadow_with_dash_m(tmp_path: Path, sbplan: Sbplan) -> None:
    (tmp_path / "executor").mkdir()
    (tmp_path / "executor" / "__init__.py").touch()
    done = sbplan("--help", cwd=tmp_path)
    assert done.returncode == 5
    assert f"'executor' in {tmp_path} shadows ours" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("unknown key", where="c.toml: link", got="bw"), 2, "c.toml: link: unknown key (got 'bw')"),
        (InfeasibleError("70 GiB do not fit"), 3, "infeasible: 70 GiB do not fit"),
        (RunError("rank 1 is gone"), 6, "rank 1 is gone"),
        (MemoryError(), 6, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_message_and_its_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def job() -> int:
        raise error

    assert guarded(job, []) == code
    assert capsys.readouterr().err == f"sbplan: {message}\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), InternalError("no such state")])
def test_a_bug_leaves_a_crash_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def job() -> int:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_SECRET", "open sesame")
    assert guarded(job, ["search", "gpt-tiny"]) == 70
    said = capsys.readouterr().err
    assert said.startswith(f"sbplan: {type(error).__name__}: {error}\nthis is a bug, please report it; ")
    assert "Traceback" not in said
    crash = json.loads((tmp_path / "crash.json").read_text())
    assert crash["argv"] == ["search", "gpt-tiny"]
    assert str(error) in crash["traceback"][-1]
    assert "in job" in "".join(crash["traceback"])
    assert crash["versions"]["numpy"].count(".") == 2
    assert "open sesame" not in json.dumps(crash)


def test_a_bug_where_nothing_can_be_written_is_still_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_path: Path, _data: str) -> None:
        raise RunError("read-only file system")

    monkeypatch.setattr("experiments.command.crash.write_atomic", refuse)
    assert guarded(lambda: 1 // 0, []) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


SLEEPING_JOB = """
import sys, time
from experiments import cli

def job(argv):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("kept what was there", flush=True)

cli.dispatch = job
sys.exit(cli.main([]))
"""


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "sbplan: interrupted\n"), (signal.SIGTERM, 143, "sbplan: terminated\n")],
)
def test_a_signal_unwinds(number: signal.Signals, code: int, message: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPING_JOB], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "kept what was there\n", message)


def test_a_reader_that_has_gone_is_no_bug() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "--help"],
        cwd=ROOT,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")
    assert not (ROOT / "crash.json").exists()


ONE_RANK_FAILS = """
import sys
from experiments import cli
from strategy.base.budget import Budget
from strategy.base.status import Status
from strategy.base.errors import RunError

def job(argv):
    from mpi4py import MPI
    if MPI.COMM_WORLD.Get_rank() == 1:
        raise RunError("rank 1 cannot go on")
    MPI.COMM_WORLD.Barrier()
    return 0

cli.dispatch = job
sys.exit(cli.main([]))
"""


@pytest.mark.mpi
def test_a_rank_that_fails_ends_the_whole_job(mpiexec: str) -> None:
    started = time.monotonic()
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-c", ONE_RANK_FAILS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "sbplan: rank 1 cannot go on\n" in done.stderr
    assert time.monotonic() - started < 10


def solve_with(monkeypatch: pytest.MonkeyPatch, problem: Problem, **solution: object) -> list[Budget]:
    """Put a solver that returns `solution` behind `sbplan solve`; returns the budgets that it is given."""
    budgets: list[Budget] = []

    def solve(_problem: Problem, *, budget: Budget, **_options: object) -> SimpleNamespace:
        budgets.append(budget)
        return SimpleNamespace(**solution)

    reader, solver = ModuleType("strategy.ilp.problem_file"), ModuleType("strategy.ilp.solve")
    reader.__dict__["read_problem"] = lambda _path: problem
    solver.__dict__["solve"] = solve
    monkeypatch.setitem(sys.modules, "strategy.ilp.problem_file", reader)
    monkeypatch.setitem(sys.modules, "strategy.ilp.solve", solver)
    return budgets


SMALL = Problem(name="small", nodes=(Node("a", (3, 5)), Node("b", (7, 4))), edges=(), limit=100)


def solve_verb(argv: list[str]) -> int:
    return guarded(lambda: dispatch(["solve", *argv]), argv)


def test_solve_prints_the_document_and_then_the_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solve_with(monkeypatch, SMALL, status=Status.FEASIBLE, choice=(0, 1), cost=8, lower_bound=7, first_feasible_s=0.5)
    assert solve_verb(["p.json", "--json"]) == 0
    said = capsys.readouterr()
    document, choice = said.out.splitlines()
    figures = json.loads(document)
    assert choice == "[0, 1]"
    assert list(figures) == [
        "status",
        "cost",
        "lower_bound",
        "gap",
        "solve_time_s",
        "first_feasible_s",
        "peak_rss_bytes",
    ]
    assert (figures["status"], figures["cost"], figures["lower_bound"], figures["gap"]) == ("feasible", 8, 7, 0.125)
    assert figures["first_feasible_s"] >= 0.5
    assert 2**20 < figures["peak_rss_bytes"] < 2**36
    assert "small: feasible, cost 8, gap 12.500%, lower bound 7" in said.err


def test_solve_without_json_prints_the_choice_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets = solve_with(
        monkeypatch, SMALL, status=Status.LIMIT, choice=(0, 1), cost=0, lower_bound=0, first_feasible_s=0.0
    )
    assert solve_verb(["p.json", "--time-limit", "30"]) == 4
    assert capsys.readouterr().out == "[0, 1]\n"
    assert 25 < budgets[0].left_s() <= 30


def test_every_error_class_has_a_code_of_the_contract() -> None:
    def descendants(cls: type[SbplanError]) -> list[type[SbplanError]]:
        return [cls, *(found for child in cls.__subclasses__() for found in descendants(child))]

    assert {cls.exit_code for cls in descendants(SbplanError)} <= {2, 3, 4, 5, 6, 70}


def test_names_with_escape_sequences_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b]0;title\x07\x1b[31mplan.json"
    assert guarded(lambda: dispatch(["simulate", name]), ["simulate", name]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\\x1b[31mplan.json: no such file" in said
