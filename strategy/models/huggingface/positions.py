"""Rotary positions as configs say them: a base, and how the frequencies of its pairs are scaled for longer contexts.

linear    all divided by the factor (Chen et al. 2023, arXiv:2306.15595)
dynamic   a larger base, by how far the sample exceeds the context ("NTK-aware")
llama3    long waves divided by the factor, short ones kept (Dubey et al. 2024, arXiv:2407.21783)
yarn      as llama3 by a ramp over the pairs, and what turns is scaled (Peng et al. 2023, arXiv:2309.00071)
longrope  each divided by a factor of its own (Ding et al. 2024, arXiv:2402.13753)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from strategy.models.huggingface.keys import Keys

KINDS = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}


@dataclass(frozen=True, slots=True)
class Positions:
    """How heads turn.

    Attributes:
        base: of the angles.
        frequencies: in place of those of the base, or empty.
        scale: of what turns.
        score_scale: what scores are multiplied by (YaRN with `mscale_all_dim`).
    """

    base: float
    frequencies: tuple[float, ...] = ()
    scale: float = 1.0
    score_scale: float = 1.0


def read_positions(
    keys: Keys,
    *,
    width: int,
    turning: int,
    context: int,
    sequence: int,
    base: float,
    scaling: Keys | None = None,
) -> Positions:
    """The positions of a config's heads.

    Args:
        keys: the config.
        width: of a head.
        turning: elements of it that turn.
        context: of the config.
        sequence: of the samples.
        base: unless given.
        scaling: the keys of what is scaled, where they are not those of `rope_parameters` or `rope_scaling`.
    """
    newer = scaling or keys.inner("rope_parameters")
    older = keys.inner("rope_scaling")
    if newer is not None and older is not None:
        keys.wrong("rope_scaling", "positions are given twice", "rope_parameters too", "one of them")
    base = keys.figure("rope_theta", base, least=1.001)
    return _scaled(keys, newer or older, width=width, turning=turning, context=context, sequence=sequence, base=base)


def _scaled(
    keys: Keys, scaling: Keys | None, *, width: int, turning: int, context: int, sequence: int, base: float
) -> Positions:
    kind = "default"
    if scaling is not None:
        base = scaling.figure("rope_theta", base, least=1.001)
        name = "rope_type" if scaling.given("rope_type") else "type"
        kind = scaling.word(name, "default", KINDS)
        scaling.read |= {"rope_type", "type", "partial_rotary_factor"}
    plain = [base ** (-2 * pair / turning) for pair in range(turning // 2)]
    found = Positions(base, tuple(plain) if turning < width else ())
    if scaling is not None and kind != "default":
        original = scaling.size("original_max_position_embeddings", _original(keys, context))
        found = _SCALED[kind](scaling, base, plain, context, original, sequence)
    if scaling is not None:
        scaling.close()
    return found


def _original(keys: Keys, context: int) -> int:
    found = keys.content.get("original_max_position_embeddings")
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else context


def _linear(s: Keys, base: float, plain: Sequence[float], context: int, original: int, sequence: int) -> Positions:
    factor = s.figure("factor", least=1.0)
    return Positions(base, tuple(one / factor for one in plain))


def _dynamic(s: Keys, base: float, plain: Sequence[float], context: int, original: int, sequence: int) -> Positions:
    factor, width = s.figure("factor", least=1.0), 2 * len(plain)
    if sequence <= context or width <= 2:
        return Positions(base, tuple(plain))
    larger = base * (factor * sequence / context - (factor - 1)) ** (width / (width - 2))
    return Positions(base, tuple(larger ** (-2 * pair / width) for pair in range(len(plain))))


def _llama3(s: Keys, base: float, plain: Sequence[float], context: int, original: int, sequence: int) -> Positions:
    factor = s.figure("factor", least=1.0)
    low, high = s.figure("low_freq_factor", least=1e-6), s.figure("high_freq_factor", least=1e-6)
    if high <= low:
        s.wrong("high_freq_factor", "no higher than low_freq_factor", (low, high), "a larger figure")
        return Positions(base)

    def divided(frequency: float) -> float:
        waves = original * frequency / (2 * math.pi)
        kept = min(max((waves - low) / (high - low), 0.0), 1.0)
        return (1 - kept) * frequency / factor + kept * frequency

    return Positions(base, tuple(map(divided, plain)))


def _yarn(s: Keys, base: float, plain: Sequence[float], context: int, original: int, sequence: int) -> Positions:
    factor = s.figure("factor", context / original, least=1.0)
    fast, slow = s.figure("beta_fast", 32.0, least=1e-6), s.figure("beta_slow", 1.0, least=1e-6)
    truncate = s.flag("truncate", True)
    one, all_dims = s.figure("mscale", 0.0), s.figure("mscale_all_dim", 0.0)

    def stretched(of: float) -> float:
        return 0.1 * of * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale = stretched(one) / stretched(all_dims) if one and all_dims else stretched(1.0)
    scale = s.figure("attention_factor", scale, least=1e-6)
    width = 2 * len(plain)

    def pair_of(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_of(fast), pair_of(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    last += 0.001 * (first == last)

    def divided(pair: int, frequency: float) -> float:
        ramp = min(max((pair - first) / (last - first), 0.0), 1.0)
        return ramp * frequency / factor + (1 - ramp) * frequency

    frequencies = tuple(divided(pair, frequency) for pair, frequency in enumerate(plain))
    return Positions(base, frequencies, scale, stretched(all_dims) ** 2 if all_dims else 1.0)


def _longrope(s: Keys, base: float, plain: Sequence[float], context: int, original: int, sequence: int) -> Positions:
    factor = s.figure("factor", context / original, least=1e-6)
    long, short = s.figures("long_factor", len(plain)), s.figures("short_factor", len(plain))
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    scale = s.figure("attention_factor", scale, least=1e-6)
    divisors = long if sequence > original else short
    return Positions(base, tuple(one / by for one, by in zip(plain, divisors, strict=True)), scale)


_SCALED = {"linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
