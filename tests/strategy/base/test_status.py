"""Statuses: what documents hold, and what people are told."""

from __future__ import annotations

import json

from strategy.base.status import Status


def test_documents_hold_the_same_words_as_ever() -> None:
    words = ["optimal", "feasible", "infeasible", "cutoff", "limit", "interrupted"]
    assert json.loads(json.dumps(list(Status))) == words
    assert [f"{status}" for status in Status] == words


def test_every_status_has_a_message_of_its_own() -> None:
    assert len({status.message for status in Status}) == len(Status)
