"""Mutants of the source and the tests that catch them: a small part of `python -m tests.campaigns mutants`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaigns.mutants import EQUIVALENT, ROOMS, ROOT, Ring, Tree, caught, copied, exercised, rings_of, twin
from tests.support.source_mutants import Mutant, drawn, mutants_of

PLACEMENT = "strategy/sbp/placement.py"
TESTS = "tests/strategy/sbp/test_placement.py"
RING = Ring("quick", (TESTS,))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    made = copied(ROOT, tmp_path_factory.mktemp("mutants") / "tree")
    yield made
    made.close()


SEEDS = [seed for seed in range(30) if "strategy/ilp/**/*.py" not in ROOMS[seed % len(ROOMS)]]
"""Of every room but the solver's, which holds as much as all the others."""


@pytest.mark.long
def test_mutants_are_drawn_by_seed_from_their_room_and_are_python() -> None:
    found = [drawn(ROOT, ROOMS, seed) for seed in SEEDS]
    assert found == [drawn(ROOT, ROOMS, seed) for seed in SEEDS]
    for seed, mutant in zip(SEEDS, found, strict=True):
        assert any(Path(mutant.path).match(pattern) for pattern in ROOMS[seed % len(ROOMS)])
        source = (ROOT / mutant.path).read_text(encoding="utf-8")
        changed = mutant.applied(source)
        assert changed != source
        compile(changed, mutant.path, "exec")
    assert len({mutant.kind for mutant in found}) >= 6


@pytest.mark.parametrize(
    ("before", "kind", "after"),
    [
        ("a < b", "comparison", "(a <= b)"),
        ("a in b", "comparison", "(a not in b)"),
        ("a + b", "operator", "(a - b)"),
        ("a and b", "and, or", "(a or b)"),
        ("not a", "sign", "(a)"),
        ("-a", "sign", "(a)"),
        ("2", "constant", "(3)"),
        ("True", "constant", "(False)"),
        ("a if b else c", "branch", "(c if b else a)"),
        ("min(a)", "least, most", "(max(a))"),
        ("f(a, b)", "arguments", "(f(b, a))"),
    ],
)
def test_what_becomes_of_an_expression(before: str, kind: str, after: str) -> None:
    source = f'def f(a: int = 1) -> int:\n    """1 + 1."""\n    é = {before}\n    return é\n'
    (found,) = mutants_of("f.py", source)
    assert (found.kind, found.before, found.after, found.line) == (kind, before, after, 3)
    assert found.applied(source) == source.replace(f"é = {before}", f"é = {after}")


@pytest.mark.parametrize(
    "text", ['raise ValueError(f"{1 + 1}")', 'a = f"{1 + 1}"', 'a = "b" + c', "f(*a, b)", "f(a, a)"]
)
def test_what_is_left_alone(text: str) -> None:
    assert mutants_of("f.py", f"def f(a, c):\n    {text}\n") == ()


def test_every_test_is_asked_once_the_quick_ones_first() -> None:
    quick, mirrors, others = rings_of(ROOT)
    assert "tests/strategy/sbp" in quick.places
    assert "tests/strategy/ilp" in mirrors.places
    assert not set(quick.places) & set(mirrors.places)
    assert (others.places, set(others.but)) == (("tests",), {*quick.places, *mirrors.places})
    assert all((ROOT / place).exists() for ring in (quick, mirrors, others) for place in ring.places)


def test_what_is_named_equivalent_is_there() -> None:
    for named in EQUIVALENT:
        path = named.split()[0]
        assert named in {mutant.change for mutant in mutants_of(path, (ROOT / path).read_text(encoding="utf-8"))}


def test_a_mutant_of_another_text_is_refused() -> None:
    (mutant,) = mutants_of("f.py", "def f(a):\n    return -a\n")
    with pytest.raises(ValueError, match="another text"):
        mutant.applied("def f(a):\n    return +a\n")


def test_a_twin_is_the_same_change_to_the_same_function(tmp_path: Path) -> None:
    body = "    found = 1 + a\n    return found + 1\n"
    for folder, texts in {
        "new": {"strategy/base/one.py": f'def g(a):\n    """New."""\n{body}'},
        "old": {
            "strategy/two.py": f"\nclass A:\n    pass\n\ndef g(a):\n{body}",
            "strategy/three.py": "def h(a):\n" + body,
        },
    }.items():
        for path, text in texts.items():
            (tmp_path / folder / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / path).write_text(text)
    new, old = tmp_path / "new", tmp_path / "old"
    path = "strategy/base/one.py"
    mutants = mutants_of(path, (new / path).read_text())
    twins = [twin(mutant, new, old) for mutant in mutants]
    assert [(t and t.path, t and t.line, t and t.after) for t in twins] == [
        ("strategy/two.py", m.line + 3, m.after) for m in mutants
    ]


def test_a_mutant_is_caught_by_the_tests_that_run_its_line(tree: Tree) -> None:
    held = (tree.root / PLACEMENT).read_text()
    (mutant,) = (m for m in mutants_of(PLACEMENT, held) if m.before == "math.prod(self.mesh) != len(self.devices)")
    reached = tree.reach(RING).of(mutant)
    assert reached
    assert all(test.startswith(TESTS) for test in reached)
    by = caught(tree, mutant, [RING])
    assert by is not None
    assert by.startswith(f"quick: {TESTS}::test_")
    assert {"caught", "caught by make quick"} < set(exercised(mutant, by))
    assert (tree.root / PLACEMENT).read_text() == held
    assert tree.failing(reached, mutant_of_nothing(held), 60) is None


def mutant_of_nothing(source: str) -> Mutant:
    """A mutant that changes a text into itself."""
    at = source.index("return")
    return Mutant(PLACEMENT, "", "none", 1, at, "return", "return", compiled=False)


def test_a_test_that_fails_without_the_mutant_says_nothing(tree: Tree) -> None:
    broken = "tests/strategy/sbp/test_broken.py"
    (tree.root / broken).write_text("def test_that_fails() -> None:\n    assert False\n")
    mutant = mutant_of_nothing((tree.root / PLACEMENT).read_text())
    assert tree.failing([f"{broken}::test_that_fails", *tree.reach(RING).of(mutant)[:1]], mutant, 60) is None
    assert tree.unsound == {f"{broken}::test_that_fails"}
