"""Packed joins: min-marginals and entries are those of the table as it is written."""

from __future__ import annotations

import itertools

import numpy as np

from strategy.ilp.solve.joins import Join
from strategy.ilp.solve.packed_joins import cell_of, line_of_pick, min_marginal, pack_joins


def join_of(
    rng: np.random.Generator, sizes: tuple[int, ...], scope: tuple[int, ...], classes: tuple[list[int], ...]
) -> Join:
    return Join(scope, (9,), tuple(np.array(of, np.int64) for of in classes), rng.integers(0, 50, sizes))


def test_min_marginals_are_minima_of_the_table_less_messages() -> None:
    rng = np.random.default_rng(0)
    join = join_of(rng, (2, 3, 2), (0, 1, 2), ([0, 1, 1], [2, 0, 1], [1, 0]))
    joins = pack_joins((join,), (0, 1, 2))
    assert joins.num_lines.tolist() == [[1, 2, 3, 2]]
    assert joins.member.tolist() == [[-1, 0, 1, 2]]
    assert joins.message_at.tolist() == [[0, 1, 3, 6]]
    assert (joins.num_messages, joins.entries_read) == (8, 12)
    messages = np.concatenate(([0.0], rng.integers(0, 9, 7).astype(np.float64)))
    working = joins._replace(table=joins.table.astype(np.float64))
    left = join.table - messages[1:3, None, None] - messages[3:6, None] - messages[6:8]
    for axis in (1, 2, 3):
        own = messages[joins.message_at[0, axis] :][: joins.num_lines[0, axis]]
        into = np.empty(4)
        min_marginal(working, 0, axis, messages, np.full(4, -1), into)
        expected = left.min(axis=tuple(other for other in range(3) if other != axis - 1)) + own
        assert into[: own.size].tolist() == expected.tolist()
    into = np.empty(4)
    min_marginal(working, 0, 1, messages, np.array([-1, -1, 2, 0]), into)
    assert into[:2].tolist() == (left[:, 2, 0] + messages[1:3]).tolist()


def test_entries_go_by_the_classes_of_the_choices() -> None:
    join = join_of(np.random.default_rng(1), (2, 3, 2), (5, 7, 8), ([0, 1, 1], [2, 0, 1], [1, 0]))
    joins = pack_joins((join,), (7, 5, 8))
    for picks in itertools.product(range(3), range(3), range(2)):
        lines = join.classes[0][picks[1]], join.classes[1][picks[0]], join.classes[2][picks[2]]
        assert cell_of(joins, 0, np.array(picks)) == join.table[lines]
        assert [line_of_pick(joins, 0, axis, np.array(picks)) for axis in range(4)] == [0, *lines]


def test_links_say_who_is_first_and_last_of_a_join() -> None:
    rng = np.random.default_rng(2)
    join = join_of(rng, (1, 1, 1), (0, 1, 2), ([0], [0], [0]))
    joins = pack_joins((join, join), (2, 0, 1))
    assert joins.table_at.tolist() == [0, 0]
    assert joins.table.size == 1
    assert joins.link_at.tolist() == [0, 2, 4, 6]
    assert joins.is_first.tolist() == [True, True, False, False, False, False]
    assert joins.is_last.tolist() == [False, False, False, False, True, True]
