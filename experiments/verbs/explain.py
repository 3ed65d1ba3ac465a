"""Say where a plan's step goes by cause, what binds it, and why another plan was not chosen."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import MOST_OTHERS, add_calibration, add_json, seconds
from experiments.command.console import emit, say

if TYPE_CHECKING:
    from experiments.explanation.alternatives import Alternative
    from experiments.explanation.simulated import SimulatedPlan
    from experiments.explanation.time_by_cause import TimeByCause
    from experiments.explanation.why_not import Refusal, Undecided
    from experiments.reporting.others import OtherPlan
    from strategy.search.search_result import SearchResult

EXPLAIN_LIMIT_S = 60.0
MOST_SHOWN = 12
"""Signatures of an op that people are shown; JSON has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan explain` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    parser.add_argument("--diff", type=Path, metavar="PLAN2", help="split by cause what this plan takes more")
    parser.add_argument("--op", metavar="NAME", help="the other signatures that an op may have, and what each costs")
    parser.add_argument(
        "--why-not",
        nargs="+",
        metavar="KEY=VALUE",
        help="search again with these pinned, such as tp=8 or 'pp=2 schedule=zbv' (the keys of [config] in a pin "
        "file): what the best such plan takes more, by cause, or what stands in its way, and by how much",
    )
    parser.add_argument(
        "--others",
        type=int,
        choices=range(MOST_OTHERS + 1),
        default=0,
        metavar="N",
        help="search for the best plans with other degrees, so many at most: how probable it is that the plan is the "
        "fastest of these, and which measurement would tell (default: %(default)s)",
    )
    add_calibration(parser)
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=EXPLAIN_LIMIT_S,
        metavar="S",
        help="for --why-not, --op and --others, the searches together (default: %(default)g)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Verify and simulate the plan, then answer what is asked."""
    from experiments.explanation.binding import binding
    from experiments.explanation.certainty import Unknown, best_document, best_text, certainty_among, intervals_of
    from experiments.explanation.simulated import read_simulated
    from experiments.planning.pins import pins_of_settings
    from strategy.base.budget import UNLIMITED, Budget
    from strategy.search.search_result import SearchResult

    pins = None if args.why_not is None else pins_of_settings([word for text in args.why_not for word in text.split()])
    one = read_simulated(args.plan)
    calibration, compared = intervals_of(one.plan, args.calibration), [one.plan]
    binds = binding(one)
    budget = Budget.of(args.time_limit)
    found: dict[str, object] = {"plan": str(args.plan), **causes_document(one.causes), "binding": asdict(binds)}
    lines = [causes_text(str(args.plan), one.causes), *binds.lines()]
    if args.op is not None:
        from experiments.explanation.alternatives import alternatives

        options = alternatives(one.plan, args.op, budget)
        found["op"] = {"name": args.op, "alternatives": [option.document() for option in options]}
        lines += op_lines(args.op, options)
    if args.diff is not None:
        other = read_simulated(args.diff)
        found["diff"] = {"plan": str(args.diff), **difference_document(one.causes, other.causes)}
        lines.append(difference_text(str(args.diff), one, other))
        compared.append(other.plan)
    if pins is not None:
        from experiments.command.outputs import clean_stdout
        from experiments.explanation.why_not import pinned_request, why_not

        with clean_stdout():
            answer = why_not(pinned_request(one.plan, pins), budget)
        compared += [answer.plan] if isinstance(answer, SearchResult) else []
        asked = " ".join(args.why_not)
        document, text = why_not_answer(one, asked, answer)
        found["why_not"] = document
        lines.append(text)
    if args.others:
        from experiments.command.outputs import clean_stdout
        from experiments.reporting.others import other_plans

        with clean_stdout():
            others = list(other_plans(one, args.others, budget))
        found["others"] = [other.document() for other in others]
        lines += [other_text(one, other) for other in others]
        compared += [other.plan for other in others if other.plan is not None]
    best = certainty_among(compared, calibration, UNLIMITED)
    found |= best_document(best)
    if len(compared) > 1:
        lines.append(best_text(best) if isinstance(best, Unknown) else f"{args.plan} is {best}")
    if args.json:
        emit(found)
    say("\n".join(lines))
    return 0


def other_text(one: SimulatedPlan, other: OtherPlan) -> str:
    """A plan next to the plan, for people."""
    from strategy.base.units import format_seconds

    if other.step_time_s is None:
        return f"  {other.settings}: {other.reason}"
    slower = other.step_time_s / one.causes.step_time_s - 1
    return f"  {other.settings}: {format_seconds(other.step_time_s)} a step ({slower:+.1%})"


def causes_document(causes: TimeByCause) -> dict[str, object]:
    """Where a step goes, as JSON knows it."""
    return {
        "step_time_s": causes.step_time_s,
        "by_group_s": causes.by_group_s,
        "by_cause_s": dict(causes.by_cause_s),
    }


def causes_text(name: str, causes: TimeByCause) -> str:
    """Where a step goes, for people: a line per group, with the causes in it."""
    from experiments.explanation.time_by_cause import GROUPS
    from strategy.base.units import format_seconds

    lines = [f"{name}: {format_seconds(causes.step_time_s)} a step, a mean over ranks:"]
    for group, total_s in causes.by_group_s.items():
        parts = [
            f"{cause} {causes.by_cause_s[cause] / causes.step_time_s:.1%}"
            for cause in GROUPS[group]
            if abs(causes.by_cause_s[cause]) >= 5e-4 * causes.step_time_s
        ]
        inside = f" ({', '.join(parts)})" if len(GROUPS[group]) > 1 and parts else ""
        lines.append(f"  {total_s / causes.step_time_s:7.1%}  {group}{inside}")
    return "\n".join(lines)


def difference_document(one: TimeByCause, other: TimeByCause) -> dict[str, object]:
    """What another step takes more, by cause."""
    from experiments.explanation.time_by_cause import differences_by_cause_s, grouped_s

    more = differences_by_cause_s(one, other)
    added_s = other.step_time_s - one.step_time_s
    return {
        "step_time_s": other.step_time_s,
        "added_s": added_s,
        "added_by_group_s": grouped_s(more),
        "added_by_cause_s": more,
        "remainder_s": added_s - sum(more.values()),
    }


def difference_text(name: str, one: SimulatedPlan, other: SimulatedPlan) -> str:
    """What another plan takes more, for people: the causes that count, the largest first."""
    from experiments.explanation.time_by_cause import differences_by_cause_s
    from experiments.planning.config_text import degrees
    from strategy.base.units import format_seconds

    before_s, after_s = one.causes.step_time_s, other.causes.step_time_s
    word = "slower" if after_s >= before_s else "faster"
    lines = [
        f"{name}: {degrees(other.plan.config)}; {format_seconds(after_s)} a step, "
        f"{format_seconds(abs(after_s - before_s))} ({abs(after_s / before_s - 1):.1%}) {word}:"
    ]
    more = differences_by_cause_s(one.causes, other.causes)
    for cause, added_s in sorted(more.items(), key=lambda item: -abs(item[1])):
        if abs(added_s) >= 1e-3 * before_s:
            sign = "+" if added_s > 0 else "-"
            lines.append(f"  {sign} {format_seconds(abs(added_s)):>9}  {cause}")
    return "\n".join(lines)


def op_lines(name: str, options: tuple[Alternative, ...]) -> list[str]:
    """The signatures of an op, for people."""
    from strategy.base.units import format_seconds

    lines = [f"{name}: {len(options)} signatures; what an act takes, what the step takes more, all else as it is:"]
    for option in options[:MOST_SHOWN]:
        added = "not known" if option.added_s is None else f"{option.added_s * 1e6:+.1f} us"
        mark = "  (chosen)" if option.chosen else ""
        lines.append(f"  {format_seconds(option.act_s):>9}  {added:>12}  {option}{mark}")
    if len(options) > MOST_SHOWN:
        lines.append(f"  and {len(options) - MOST_SHOWN} more, which --json lists")
    return lines


def why_not_answer(
    one: SimulatedPlan, asked: str, answer: SearchResult | Refusal | Undecided
) -> tuple[dict[str, object], str]:
    """Why the plan is not another, as JSON knows it and for people."""
    from experiments.explanation.simulated import simulated
    from experiments.explanation.why_not import Refusal, Undecided
    from strategy.plan.plan import config_document

    if isinstance(answer, Undecided):
        return _undecided(one, asked, answer)
    if not isinstance(answer, Refusal):
        other = simulated(answer.plan)
        document = difference_document(one.causes, other.causes)
        claims = answer.plan.claims
        document |= {"config": config_document(answer.plan.config), "status": str(answer.status), "gap": claims.gap}
        return {"asked": asked, "admitted": True, **document}, difference_text(f"with {asked}", one, other)
    constraint = answer.constraint
    document = {"asked": asked, "admitted": False, "reason": answer.reason}
    document["constraint"] = None if constraint is None else asdict(constraint)
    text = f"with {asked} there is no plan: {answer.reason if constraint is None else constraint}"
    if answer.plan is not None:
        other = simulated(answer.plan)
        document["relaxed"] = difference_document(one.causes, other.causes)
        text += "\n" + difference_text("with that", one, other)
    return document, text


def _undecided(one: SimulatedPlan, asked: str, answer: Undecided) -> tuple[dict[str, object], str]:
    """What is known where the time was over: a bound, and whether that alone tells that the plan is the faster one."""
    from strategy.base.units import format_seconds

    bound_s, own_s = answer.bound_s, one.plan.claims.objective_s
    slower = bound_s is not None and bound_s >= own_s
    reason = f"the search found neither a plan nor a proof that there is none within {answer.limit_s:.3g} s"
    document: dict[str, object] = {
        "asked": asked,
        "admitted": None,
        "reason": reason,
        "bound_s": bound_s,
        "slower": slower or None,
    }
    text = f"with {asked}: not decided: {reason}"
    if bound_s is not None:
        than = f"which is {'more than' if slower else 'no more than'} the plan's {format_seconds(own_s)}"
        text += f"; no such step takes less than {format_seconds(bound_s)} by its work alone, {than}"
    return document, text + ("" if slower else "; raise --time-limit")
