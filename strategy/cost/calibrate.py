"""Calibrate: constants of the cost model from measurements, with provenance, interval and range of validity.

Per kind of act, `seconds = fixed + s_per_flop * FLOPs + s_per_byte * bytes` is fitted by non-negative least squares on
relative errors, without outliers and re-weighted after Huber (1964) so that a preempted sample does not decide.
Non-negative constants are monotone by construction. Kinds without measurements keep the data sheet's constants, and
sizes outside the measured range are flagged as extrapolated.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InputError
from strategy.base.files import read_json, write_atomic
from strategy.base.limits import LARGEST, LONGEST_ACT_S
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey, Features, Measurement, check_samples
from strategy.graph.ops import cost_class
from strategy.graph.ops.traits import counts_flop
from strategy.hardware.cluster import Cluster
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType

FORMAT = 2
HUBER_THRESHOLD = 0.1
"""Relative error beyond which a row counts linearly, not quadratically."""

SHORTEST_S = 1e-12
"""No measured act is shorter; clocks count nanoseconds."""
_FEWEST_JUDGED = 8
"""Of fewer rows of a kind it is not told which are outliers."""
_DRAWS, _DRAWN_ROWS = 100, 4
"""How often constants are found from a few rows, and from how many: one more than there are constants."""
_OUTLIER_SIGMAS = 5.0
_MAD_TO_SIGMA = 1.4826
"""Standard deviations in a median absolute deviation of normal noise."""
_SURELY_OFF = 2.0
"""A lesser factor is left to the weights of the fit."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants of one kind, where they come from and how far they hold.

    `spread` is the 90th percentile of the relative residuals: the half-width of the prediction's interval. `points` are
    the sizes that were fitted, by which a refinement remembers the shape of this fit.
    """

    coefficients: Coefficients
    rows: int
    samples: int
    sources: tuple[str, ...]
    spread: float
    points: tuple[Features, ...]

    @property
    def flop_range(self) -> tuple[int, int]:
        """Fewest and most FLOPs that were measured."""
        return min(p.flop for p in self.points), max(p.flop for p in self.points)

    @property
    def nbytes_range(self) -> tuple[int, int]:
        """Fewest and most bytes that were measured."""
        return min(p.nbytes for p in self.points), max(p.nbytes for p in self.points)


@dataclass(frozen=True, slots=True)
class Calibration:
    """All fitted kinds of one cluster, and the time that an act costs beyond its kernel."""

    cluster: str
    fitted: Mapping[CostKey, Fitted]
    act_overhead_s: float = 0.0

    def cost_model(self, cluster: Cluster) -> CostModel:
        """The cost model with these constants."""
        return CostModel(cluster, {key: found.coefficients for key, found in self.fitted.items()}, self.act_overhead_s)

    def extrapolates(self, features: Features) -> bool:
        """Whether an act is of a kind or size that was not measured (a quarter beyond the range is allowed)."""
        if features.parts:
            return any(map(self.extrapolates, features.parts))
        found = self.fitted.get(features.key)
        if found is None:
            return True
        pairs = ((features.flop, found.flop_range), (features.nbytes, found.nbytes_range))
        return any(not low / 1.25 <= value <= high * 1.25 for value, (low, high) in pairs)


def calibrate(measurements: Iterable[Measurement], cluster: Cluster, *, act_overhead_s: float = 0.0) -> Calibration:
    """Fit every kind that was measured.

    Raises:
        InputError: a measurement has no positive, finite time, or too few samples.
    """
    return Calibration(cluster.name, fitted_kinds(measurements), act_overhead_s)


def fitted_kinds(measurements: Iterable[Measurement]) -> dict[CostKey, Fitted]:
    """The constants of every kind that was measured.

    Raises:
        InputError: as `calibrate`.
    """
    by_key: dict[CostKey, list[Measurement]] = {}
    for row in measurements:
        if not (np.isfinite(row.seconds) and row.seconds > 0):
            raise InputError("a measurement without a time", where=row.source, got=row.seconds, expected="seconds > 0")
        check_samples(row.samples, f"{row.source}: {row.features.kind} of {row.features.nbytes} bytes")
        by_key.setdefault(row.features.key, []).append(row)
    return {key: _fit(_plausible(rows)) for key, rows in sorted(by_key.items())}


def _plausible(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """Rows without outliers: those off by more than noise from what most rows agree on.

    Relative errors alone do not do: a row that is a thousand times too fast outweighs all others in a fit of those. So
    constants are first found from a few rows at a time (random sample consensus; Fischler and Bolles 1981), the ones
    with the least median deviation are taken for what most rows say, and rows are judged by the median absolute
    deviation from these, in logarithms.
    """
    if len(rows) < _FEWEST_JUDGED:
        return rows
    deviations = min((_deviations(rows, few) for few in _draws(len(rows))), key=lambda found: float(np.median(found)))
    bound = max(_OUTLIER_SIGMAS * _MAD_TO_SIGMA * float(np.median(deviations)), math.log(_SURELY_OFF))
    return [row for row, deviation in zip(rows, deviations.tolist(), strict=True) if deviation <= bound]


def _draws(count: int) -> Iterator[list[int]]:
    """Rows that constants are found from; the same ones for the same number of rows."""
    rng = random.Random(count)
    return (rng.sample(range(count), _DRAWN_ROWS) for _ in range(_DRAWS))


def _deviations(rows: Sequence[Measurement], few: Sequence[int]) -> Floats:
    """[row]: |ln(measured / predicted)| by the constants that a few rows give."""
    from scipy.optimize import nnls

    seconds = np.array([row.seconds for row in rows])
    terms = np.array([_terms(row.features) for row in rows])
    chosen = terms[few] / seconds[few, None]
    scale = np.maximum(chosen.max(axis=0), 1e-300)
    solution, _ = nnls(chosen / scale, np.ones(len(few)))
    predicted = np.maximum(terms @ (solution / scale), 1e-300)
    return np.asarray(np.abs(np.log(seconds / predicted)))


def _fit(rows: Sequence[Measurement]) -> Fitted:
    from scipy.optimize import nnls

    seconds = np.array([row.seconds for row in rows])
    design = np.array([_terms(row.features) for row in rows]) / seconds[:, None]
    scale = np.maximum(design.max(axis=0), 1e-300)  # columns of like size, or nnls loses the small ones
    prior = np.sqrt([row.samples for row in rows])
    prior = np.minimum(prior, 30.0)
    weights = prior
    solution = np.zeros(design.shape[1])
    for _ in range(5):
        solution, _ = nnls(design / scale * weights[:, None], weights)
        residuals = np.abs(design / scale @ solution - 1.0)
        weights = prior * np.sqrt(np.minimum(1.0, HUBER_THRESHOLD / np.maximum(residuals, 1e-12)))
    fixed, per_flop, per_byte = (float(x) for x in solution / scale)
    late = _growing_late(rows, fixed, per_byte)
    if late is not None:
        fixed, per_byte = late
        solution = np.array([fixed, 0.0, per_byte]) * scale
    features = [row.features for row in rows]
    return Fitted(
        coefficients=Coefficients(fixed, per_flop, per_byte),
        rows=len(rows),
        samples=sum(row.samples for row in rows),
        sources=tuple(sorted({row.source for row in rows})),
        spread=float(np.quantile(np.abs(design / scale @ solution - 1.0), 0.9)),
        points=_spread_points(features),
    )


def _growing_late(rows: Sequence[Measurement], fixed: float, per_byte: float) -> tuple[float, float] | None:
    """Seconds (per hop), and seconds per byte, of a line through the smallest and the largest, if that is ignored.

    A relative error is at most one where a prediction is too low, and knows no bound where it is too high: of times
    that begin to grow late, as where a burst is free, a fit of such errors ignores those that grow.
    """
    by_size = sorted(rows, key=lambda row: (row.features.nbytes, row.seconds))
    (few, flop, low), (many, _, high) = (_terms(row.features) for row in (by_size[0], by_size[-1]))
    short, long = by_size[0].seconds, by_size[-1].seconds
    area = few * high - many * low
    if flop or area <= 0 or long < _SURELY_OFF * max(short * many / few, many * fixed + high * per_byte):
        return None
    return max(0.0, (short * high - long * low) / area), (few * long - many * short) / area


def _spread_points(features: Sequence[Features]) -> tuple[Features, ...]:
    """At most eight of the sizes, from the smallest to the largest."""
    ordered = sorted(dict.fromkeys(features), key=lambda f: (f.nbytes, f.flop, f.hops))
    picks = sorted({round(i * (len(ordered) - 1) / 7) for i in range(8)})
    return tuple(ordered[pick] for pick in picks)


def refine(
    base: Calibration, measurements: Iterable[Measurement], cluster: Cluster, *, act_overhead_s: float
) -> Calibration:
    """A calibration corrected by the measurements of runs.

    Runs say at what level a kind runs in its real surroundings, but often at one or two sizes only. So the shape of the
    base fit is kept: its points, scaled by the median ratio of run to base, are fitted together with the run's rows.
    Kinds that the runs lack stay as they are.
    """
    model = base.cost_model(cluster)
    by_key: dict[CostKey, list[Measurement]] = {}
    for row in measurements:
        by_key.setdefault(row.features.key, []).append(row)
    fitted = dict(base.fitted)
    for key, rows in sorted(by_key.items()):
        known = base.fitted.get(key)
        if known is None:
            fitted[key] = _fit(rows)
            continue
        bare = dataclasses.replace(model, act_overhead_s=0.0)
        level = float(np.median([row.seconds / max(bare.seconds(row.features), 1e-12) for row in rows]))
        shape = [Measurement(p, max(level * bare.seconds(p), 1e-9), 1, "shape of the base") for p in known.points]
        corrected = _fit([*rows, *shape])
        sources = tuple(sorted({*known.sources, *(row.source for row in rows)}))
        fitted[key] = dataclasses.replace(corrected, rows=known.rows + len(rows), sources=sources)
    return Calibration(cluster.name, fitted, act_overhead_s)


def scale(calibration: Calibration, factor: float) -> Calibration:
    """All constants times `factor`: every act, and so every step, takes so many times as long."""

    def scaled(found: Fitted) -> Fitted:
        c = found.coefficients
        return dataclasses.replace(
            found, coefficients=Coefficients(c.fixed_s * factor, c.s_per_flop * factor, c.s_per_byte * factor)
        )

    fitted = {key: scaled(found) for key, found in calibration.fitted.items()}
    return Calibration(calibration.cluster, fitted, calibration.act_overhead_s * factor)


def _terms(features: Features) -> tuple[float, float, float]:
    """(fixed, FLOPs, bytes): FLOPs only where they bind, for elsewhere they are proportional to bytes.

    Of what a host computes, the bytes alone are fitted; of what is sent, those that pass the link of its level.
    """
    flop = float(features.flop) if counts_flop(cost_class(features.kind)) and features.space is Space.DEVICE else 0.0
    return float(features.hops or 1), flop, features.nbytes * features.crossing


def _features_document(features: Features) -> dict[str, Any]:
    """Features as a file has them; groups only in a cluster that has some, a shape only of what has one."""
    found = dataclasses.asdict(features)
    for name in ("groups", "attention_shape", "near"):
        if not getattr(features, name):
            del found[name]
    return found


def _features(content: Mapping[str, Any]) -> Features:
    """Features as a file has them; acts of several parts are in none.

    Raises:
        TypeError, ValueError: an unknown key, or a value that is of another type or cannot be.
    """
    if "space" not in content:
        raise ValueError('no "space": measured by an older version; train or profile anew')
    if "groups" in content:
        raise ValueError("measured on nodes of several types, of which no constants are fitted")
    found = Features(**{**content, "parts": (), "space": Space(content["space"])})
    for name in ("kind", "level", "half"):
        _text(getattr(found, name), name)
    for name in ("flop", "nbytes", "hops", "near"):
        _whole(getattr(found, name), name, 0)
    if found.near and (found.near >= found.hops or found.level != "inter"):
        raise ValueError(f"near is {found.near}, of {found.hops} other ranks that are not all on one node")
    if found.half and not (DType(found.half).is_half or DType(found.half).is_code):
        raise ValueError(f"half is {found.half!r}, which is no dtype of 16 bits or 8")
    if found.level not in ("", "intra", "inter"):
        raise ValueError(f"level is {found.level!r}, which is neither intra nor inter")
    if not isinstance(found.every_pair, bool):
        raise TypeError(f"every_pair is {found.every_pair!r}, which is neither true nor false")
    if found.attention_shape is not None:
        batch, queries, heads, kv_heads, head_dim = (
            _whole(size, "attention_shape", 1) for size in found.attention_shape
        )
        found = dataclasses.replace(found, attention_shape=(batch, queries, heads, kv_heads, head_dim))
    if found.product is None:
        return found
    rows, columns, depth, count = (_whole(size, "product", 1) for size in found.product)
    return dataclasses.replace(found, product=(rows, columns, depth, count))


def _whole(value: object, name: str, least: int) -> int:
    if type(value) is not int or not least <= value <= LARGEST:
        raise ValueError(f"{name} is {value!r}, which is no whole number from {least} on")
    return value


def _figure(value: object, name: str, most: float, *, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, which is no figure from {least:g} to {most:g}")
    return float(value)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, which is no text")
    return value


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write the JSON file, replacing it as one step."""
    entries = [
        {
            **dataclasses.asdict(key),
            **dataclasses.asdict(found),
            "points": [_features_document(point) for point in found.points],
        }
        for key, found in sorted(calibration.fitted.items())
    ]
    content = {
        "format": FORMAT,
        "cluster": calibration.cluster,
        "act_overhead_s": calibration.act_overhead_s,
        "fitted": entries,
    }
    write_atomic(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        InputError: missing, truncated, or not a calibration; the message names the key.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        problem, hint = "not a calibration file", ""
        if isinstance(content, dict) and content.get("format") == 1:
            problem = "a calibration of an older version"
            hint = "profile this machine anew: mpiexec -n RANKS sbplan profile --out FILE"
        raise InputError(problem, where=str(path), expected=f'"format": {FORMAT}', hint=hint)
    try:
        fitted = {_key(entry): _fitted_of(entry) for entry in content["fitted"]}
        if len(fitted) < len(content["fitted"]):
            raise ValueError("two entries of one kind")  # noqa: TRY301 - told like any other wrong key
        overhead_s = _figure(content["act_overhead_s"], "act_overhead_s", LONGEST_ACT_S)
        return Calibration(_text(content["cluster"], "cluster"), fitted, overhead_s)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError("a key is missing or wrong", where=str(path), got=str(error)) from error


def _key(entry: Mapping[str, Any]) -> CostKey:
    kind, half, level = (_text(entry[name], name) for name in ("kind", "half", "level"))
    return CostKey(kind, half, level, Space(entry["space"]))


def _fitted_of(entry: Mapping[str, Any]) -> Fitted:
    constants = {name: _figure(value, name, LONGEST_ACT_S) for name, value in entry["coefficients"].items()}
    points = tuple(map(_features, entry["points"]))
    if {point.key for point in points} != {_key(entry)}:
        raise ValueError(f"the points of {_key(entry)} are none, or of other kinds")
    return Fitted(
        Coefficients(**constants),
        _whole(entry["rows"], "rows", 1),
        _whole(entry["samples"], "samples", 1),
        tuple(_text(source, "source") for source in entry["sources"]),
        _figure(entry["spread"], "spread", LARGEST),
        points,
    )


def write_measurements(rows: Sequence[Measurement], path: Path) -> None:
    """Write measurement rows as JSON."""
    entries = [{**dataclasses.asdict(row), "features": _features_document(row.features)} for row in rows]
    write_atomic(path, json.dumps(entries, indent=1) + "\n")


def read_measurements(path: Path) -> list[Measurement]:
    """Read measurement rows.

    Raises:
        InputError: missing, truncated, or a row is wrong; names the row.
    """
    content = read_json(path)
    if not isinstance(content, list):
        raise InputError("not a list of measurements", where=str(path))
    rows = []
    for number, entry in enumerate(content):
        try:
            seconds = _figure(entry["seconds"], "seconds", LONGEST_ACT_S, least=SHORTEST_S)
            samples, source = _whole(entry["samples"], "samples", 1), _text(entry["source"], "source")
            rows.append(Measurement(_features(entry["features"]), seconds, samples, source))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("not a measurement", where=f"{path}: row {number}", got=str(error)) from error
    return rows
