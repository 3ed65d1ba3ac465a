"""Plan: the file that says how to train one model on one cluster.

One JSON document. It holds the inputs in full (model, training, cluster, constants of the cost model), the answer
(stages, the signature of every op, every boxing step), what is claimed of it (memory, objective, bound, simulated time)
and the hash of all that. The same inputs give the same bytes; no wall-clock time is in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError, PlanError, SbplanError, present
from strategy.base.files import read_json, write_atomic
from strategy.closed_form.calibration import shipped
from strategy.closed_form.memory_error import LEAST, MOST
from strategy.comm.boxing import BoxingStep
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey
from strategy.graph.graph import Graph
from strategy.graph.ops.learning_rate import Decay
from strategy.graph.signature import Signature
from strategy.hardware.cluster import NETWORKS, AlikeNodes, Cluster, Device, Host
from strategy.layout.arrangement import Pipeline
from strategy.layout.config import Context, Offload, PlanConfig, Recompute
from strategy.layout.layout import Conversion, Copy, Home, Layout, Stages
from strategy.layout.objective import Priced, pipeline_of
from strategy.layout.schedule import Schedule
from strategy.layout.shared_links import crossing_pairs
from strategy.models import FAMILIES, Model, family_of
from strategy.passes.mixed_precision import Precision
from strategy.passes.parameter_groups import ParameterGroup
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.document_reader import DocumentReader
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement, Space
from strategy.sbp.sbp import format_nd
from strategy.sbp.tensor import DType
from strategy.space.trainer_space import TargetTrainer

FORMAT = 4
WRITTEN_BY = "a plan is what `sbplan search MODEL --cluster C --out plan.json` writes"
UNLIMITED = "inf"
"""`max_norm` where nothing is clipped."""
NOT_SAID = ("runs", "stage_order", "strides", "kept_layers")
"""Lists of a configuration that a file leaves out where they hold nothing."""
INPUTS = ("model", "training", "cluster", "calibration")


@dataclass(frozen=True, slots=True)
class FitClaim:
    """With which probability memory suffices: of a trainer that runs the plan, or of a system that was never seen."""

    probability: float
    trainer: TargetTrainer | None = None


def most_memory_bytes(cluster: Cluster, claim: FitClaim | None) -> int:
    """What a rank may hold, by the plan's own count: all of a device, or what leaves the margin of a claim free.

    What a trainer holds, its file tells, not the plan's count.
    """
    if claim is None or claim.trainer is not None:
        return cluster.largest_memory_bytes
    errors = present(shipped().memory, "errors of memory")
    return math.floor(cluster.largest_memory_bytes / errors.margin("", claim.probability))


@dataclass(frozen=True, slots=True)
class Claims:
    """What a plan says of itself; `verify` recomputes what can be recomputed without a search."""

    status: str
    objective_s: float
    lower_bound_s: float
    gap: float
    step_time_s: float
    simulated_lower_bound_s: float
    peak_memory_bytes: tuple[int, ...]
    peak_host_memory_bytes: tuple[int, ...]
    memory_limit_bytes: int
    sent_bytes_per_step: tuple[int, ...]
    fit: FitClaim | None = None


@dataclass(frozen=True)
class Plan:
    """Inputs, answer and claims."""

    model_name: str
    model: Model
    training: Training
    cluster: Cluster
    cost: CostModel
    config: PlanConfig
    layout: Layout
    claims: Claims
    certificate: Mapping[str, Any] | None = None
    """Why nothing takes less than the bound (`bounds.certificate`), as JSON values."""

    @cached_property
    def graph(self) -> Graph:
        """The training graph that the plan lays out."""
        return planned_graph(self.model, self.training, self.config)

    @property
    def pipeline(self) -> Pipeline:
        """Micro-batches and schedule."""
        count, stages = self.training.num_micro_batches, self.layout.stages.placements
        crosses = crossing_pairs(self.cost.cluster.devices_per_node, [stage.devices for stage in stages])
        return pipeline_of(self.config, count, self.cost, stages[0], crosses)

    @cached_property
    def priced(self) -> Priced:
        """What the plan lays out, at the prices that it was made with."""
        return Priced(self.graph, self.layout, self.pipeline, self.cost)

    def claiming(self, claims: Claims | None = None, certificate: Mapping[str, Any] | None = None) -> Plan:
        """The same with other claims, another certificate, or both; what it lays out is known as far as it was."""
        found = replace(self, claims=claims or self.claims, certificate=certificate or self.certificate)
        vars(found).update({name: vars(self)[name] for name in ("graph", "priced") if name in vars(self)})
        return found

    def with_prices(self, priced: Priced) -> Plan:
        """Itself, whose graph and prices need not be worked out any more."""
        vars(self).update(graph=priced.graph, priced=priced)
        return self

    def __getstate__(self) -> dict[str, object]:
        """What it is sent as: not what follows from the rest."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def ranks(self) -> int:
        """Processes that run the plan."""
        return sum(len(placement.devices) for placement in self.layout.stages.placements)

    @property
    def peak_flop_per_s(self) -> float:
        """Of one device, on average over all, by its data sheet, for products in the training's precision."""
        return self.cluster.product_flop_per_s(self.training.product_dtype)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the global batch."""
        return self.training.global_batch * self.model.tokens_per_sample

    @cached_property
    def plan_hash(self) -> str:
        """Digest of everything else in the document."""
        return digest(document(self, with_hash=False))


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def document(plan: Plan, *, with_hash: bool = True) -> dict[str, Any]:
    """The plan as JSON values."""
    claims = _without_empty(dataclasses.asdict(plan.claims), "fit")
    found: dict[str, Any] = {
        "format": FORMAT,
        "model": _model_document(plan),
        "training": _training_document(plan.training),
        "cluster": _cluster_document(plan.cluster),
        "calibration": {
            "act_overhead_s": plan.cost.act_overhead_s,
            "coefficients": _coefficients_document(plan.cost.coefficients),
        },
        "config": config_document(plan.config),
        **claims,
        "stages": [
            {"devices": stage.devices, "mesh": stage.mesh, "axes": stage.axes}
            for stage in plan.layout.stages.placements
        ],
        "ops": {
            name: {
                "stage": plan.layout.stages.stage_of[name],
                "lap": plan.layout.stages.lap_of(name),
                "inputs": [format_nd(nd) for nd in signature.inputs],
                "outputs": [format_nd(nd) for nd in signature.outputs],
                "updates": [format_nd(nd) for nd in signature.updates],
            }
            for name, signature in plan.layout.signatures.items()
        },
        "boxing": [_conversion_document(conversion) for conversion in plan.layout.conversions],
    }
    if plan.certificate is not None:
        found["certificate"] = plan.certificate
    found["inputs_hash"] = digest({key: found[key] for key in INPUTS})
    if with_hash:
        found["plan_hash"] = plan.plan_hash
    return found


def _cluster_document(cluster: Cluster) -> dict[str, Any]:
    """Groups, and whether links overlap, only where they say something."""
    found = _without_empty(dataclasses.asdict(cluster), "groups")
    for link in (found["intra"], found["inter"], *(group["intra"] for group in found.get("groups", ()))):
        if link["overlaps"] is None:
            del link["overlaps"]
    return found


def _model_document(plan: Plan) -> dict[str, Any]:
    dimensions = dataclasses.asdict(plan.model)  # type: ignore[call-overload]
    return {"name": plan.model_name, "family": family_of(plan.model).name, **dimensions}


def _training_document(training: Training) -> dict[str, Any]:
    """JSON knows no infinity: that of a norm which clips nothing is written as text."""
    found = _without_empty(dataclasses.asdict(training), "groups", "fused")
    return {**found, "max_norm": UNLIMITED} if math.isinf(training.max_norm) else found


def config_document(config: PlanConfig) -> dict[str, Any]:
    """A configuration as JSON values; some only where they say something."""
    found = _without_empty(dataclasses.asdict(config), *NOT_SAID, "zero_group", "bucket_bytes")
    if not config.bucket_bytes:
        del found["exchange_streams"]
    return found


def _without_empty(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A record without those of these keys that hold nothing."""
    return {key: value for key, value in record.items() if value or key not in keys}


def _conversion_document(conversion: Conversion) -> dict[str, Any]:
    return {
        "value": conversion.copy.value,
        "from": {"stage": conversion.source.stage, "layout": format_nd(conversion.source.layout)},
        "to": {"stage": conversion.copy.stage, "layout": format_nd(conversion.copy.layout)},
        "steps": [
            {"kind": str(step.kind), "axes": step.axes, "layout": format_nd(step.target)} for step in conversion.steps
        ],
    }


def write_plan(plan: Plan, path: Path) -> None:
    """Write the document, replacing the file as one step; an op or a boxing per line, so that plans can be diffed."""
    write_atomic(path, plan_text(plan))


def plan_text(plan: Plan) -> str:
    """The bytes of the plan file."""
    parts = []
    for key, value in document(plan).items():
        if key == "ops":
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items())
            parts.append(f'"{key}": {{\n{lines}\n}}')
        elif key == "boxing":
            lines = ",\n".join(f"  {json.dumps(entry)}" for entry in value)
            parts.append(f'"{key}": [\n{lines}\n]' if value else f'"{key}": []')
        else:
            parts.append(f'"{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_plan(path: Path) -> Plan:
    """Read a plan file and check its hash; what it claims is checked by `verify`.

    Raises:
        InputError: the file is missing, truncated, or no plan; the message names the key.
        PlanError: a hash is not that of the content, or a value is of a wrong type or out of range.
    """
    try:
        content = read_json(path)
    except InputError as error:
        if path.exists() and not error.hint:
            raise InputError(error.problem, where=error.where, got=error.got, hint=WRITTEN_BY) from None
        raise
    reader = DocumentReader(str(path))
    found = reader.mapping(content, "plan")
    if found.get("format") != FORMAT:
        got = found.get("format", "no format at all")
        raise PlanError("not a plan of this format", where=str(path), got=got, expected=str(FORMAT), hint=WRITTEN_BY)
    try:
        for key, hashed in (("plan_hash", [k for k in found if k != "plan_hash"]), ("inputs_hash", INPUTS)):
            stated, actual = found.get(key), digest({k: found[k] for k in hashed})
            if stated != actual:
                where = f"{path}: {key}"
                raise PlanError("the content is not what was written", where=where, got=stated, expected=actual)
        return _plan_of(reader, found)
    except InputError:
        raise
    except (SbplanError, TypeError, KeyError, ValueError, ArithmeticError, RecursionError) as error:
        raise PlanError("not a well-formed plan", where=str(path), got=f"{type(error).__name__}: {error}") from error


def _plan_of(reader: DocumentReader, found: Mapping[str, Any]) -> Plan:
    model = dict(reader.mapping(found["model"], "model"))
    name, family = model.pop("name"), FAMILIES.get(model.pop("family"))
    if family is None:
        where, known = f"{reader.path}: model.family", ", ".join(FAMILIES)
        raise PlanError("unknown family of models", where=where, got=found["model"]["family"], expected=known)
    cluster = _cluster_of(reader, found["cluster"])
    calibration = reader.mapping(found["calibration"], "calibration")
    coefficients = _coefficients_of(reader, calibration["coefficients"])
    cost = CostModel(cluster, coefficients, reader.seconds(calibration["act_overhead_s"], "calibration.act_overhead_s"))
    dimensions = reader.record(family.model, model, "model")
    if dimensions.layers > len(reader.mapping(found["ops"], "ops")):
        raise PlanError("more layers than ops", where=f"{reader.path}: model.layers", got=dimensions.layers)
    claims = {field.name: found[field.name] for field in dataclasses.fields(Claims) if field.name != "fit"}
    return Plan(
        model_name=str(name),
        model=dimensions,
        training=_training_of(reader, found["training"]),
        cluster=cluster,
        cost=cost,
        config=_config_of(reader, found["config"]),
        layout=_layout_of(reader, found),
        claims=reader.record(
            Claims,
            claims,
            "plan",
            peak_memory_bytes=reader.integers(claims["peak_memory_bytes"], "peak_memory_bytes"),
            peak_host_memory_bytes=reader.integers(claims["peak_host_memory_bytes"], "peak_host_memory_bytes"),
            sent_bytes_per_step=reader.integers(claims["sent_bytes_per_step"], "sent_bytes_per_step"),
            fit=None if "fit" not in found else _fit_of(reader, found["fit"]),
        ),
        certificate=None if "certificate" not in found else reader.mapping(found["certificate"], "certificate"),
    )


def _cluster_of(reader: DocumentReader, content: Any) -> Cluster:
    cluster = {"groups": [], **reader.mapping(content, "cluster")}
    parts: dict[str, Any] = {
        "device": reader.record(Device, cluster["device"], "cluster.device"),
        "intra": reader.link(cluster["intra"], "cluster.intra"),
        "inter": reader.link(cluster["inter"], "cluster.inter"),
    }
    if cluster["host"] is not None:
        parts["host"] = reader.record(Host, cluster["host"], "cluster.host")
    for key, part in parts.items():
        reader.rates_and_times(part, f"cluster.{key}")
    groups = tuple(_group_of(reader, one, f"cluster.groups.{i}") for i, one in enumerate(cluster["groups"]))
    where: Cluster = reader.record(Cluster, cluster, "cluster", **parts, groups=groups)
    if where.fabric not in NETWORKS:
        at, known = f"{reader.path}: cluster.fabric", ", ".join(NETWORKS)
        raise PlanError("unknown network", where=at, got=where.fabric, expected=known)
    if not where.gpu_direct and where.host is None:
        raise PlanError("no host to pass through", where=f"{reader.path}: cluster.gpu_direct", got=False)
    return where


def _training_of(reader: DocumentReader, content: Any) -> Training:
    training = reader.mapping(content, "training")
    found: Training = reader.record(
        Training,
        {
            "groups": [],
            "fused": False,
            **training,
            **({"max_norm": math.inf} if training["max_norm"] == UNLIMITED else {}),
        },
        "training",
        dtype=DType(training["dtype"]),
        optimizer=Optimizer(training["optimizer"]),
        decay=Decay(training["decay"]),
        precision=Precision(training["precision"]),
        frozen=reader.texts(training["frozen"], "training.frozen"),
        groups=tuple(_parameter_group_of(reader, one) for one in reader.listed(training.get("groups", []))),
    )
    return found


def _config_of(reader: DocumentReader, content: Any) -> PlanConfig:
    unsaid = {
        **{name: [] for name in NOT_SAID},
        **{"zero_group": 0, "bucket_bytes": 0, "exchange_streams": 1},
    }
    config = {**unsaid, **reader.mapping(content, "config")}
    found: PlanConfig = reader.record(
        PlanConfig,
        config,
        "config",
        schedule=Schedule(config["schedule"]),
        recompute=Recompute(config["recompute"]),
        tiled=reader.texts(config["tiled"], "config.tiled"),
        recompute_values=reader.texts(config["recompute_values"], "config.recompute_values"),
        kept_layers=reader.integers(config["kept_layers"], "config.kept_layers"),
        offload=Offload(config["offload"]),
        offload_values=reader.texts(config["offload_values"], "config.offload_values"),
        context=Context(config["context"]),
    )
    return found


def _fit_of(reader: DocumentReader, content: Any) -> FitClaim:
    claim = reader.mapping(content, "fit")
    trainer = None if claim["trainer"] is None else TargetTrainer(claim["trainer"])
    found: FitClaim = reader.record(FitClaim, claim, "fit", trainer=trainer)
    if not LEAST <= found.probability <= MOST:
        expected = f"from {LEAST} to {MOST}"
        raise PlanError("no such probability", where=f"{reader.path}: fit", got=found.probability, expected=expected)
    return found


def _parameter_group_of(reader: DocumentReader, content: Any) -> ParameterGroup:
    group = reader.mapping(content, "training.groups")
    names = reader.texts(group.get("names"), "training.groups.names")
    found: ParameterGroup = reader.record(ParameterGroup, group, "training.groups", names=names)
    return found


def _coefficients_document(coefficients: Mapping[CostKey, Coefficients]) -> dict[str, list[dict[str, Any]]]:
    """Measured constants by kind of act, and within a kind by dtype, level and place."""
    found: dict[str, list[dict[str, Any]]] = {}
    for key, constants in sorted(coefficients.items()):
        where = {"half": key.half, "level": key.level, "space": key.space}
        found.setdefault(key.kind, []).append({**where, **dataclasses.asdict(constants)})
    return found


def _group_of(reader: DocumentReader, content: Any, key: str) -> AlikeNodes:
    """One of several groups of nodes."""
    group = reader.mapping(content, key)
    parts: dict[str, Any] = {
        "device": reader.record(Device, group["device"], f"{key}.device"),
        "intra": reader.link(group["intra"], f"{key}.intra"),
    }
    if group["host"] is not None:
        parts["host"] = reader.record(Host, group["host"], f"{key}.host")
    for name, part in parts.items():
        reader.rates_and_times(part, f"{key}.{name}")
    found: AlikeNodes = reader.record(AlikeNodes, group, key, **parts)
    if found.nodes < 1:
        raise PlanError("a group without nodes", where=f"{reader.path}: {key}.nodes", got=found.nodes)
    return found


def _coefficients_of(reader: DocumentReader, content: Any) -> dict[CostKey, Coefficients]:
    found: dict[CostKey, Coefficients] = {}
    for kind, entries in reader.mapping(content, "calibration.coefficients").items():
        where = f"calibration.coefficients.{kind}"
        if not isinstance(entries, list):
            raise PlanError(
                "not a list of constants", where=f"{reader.path}: {where}", got=entries, hint="search the plan anew"
            )
        for entry in entries:
            rest = dict(reader.mapping(entry, where))
            half, level, space = (rest.pop(name) for name in ("half", "level", "space"))
            reader.texts([half, level, space], where)
            constants = reader.record(Coefficients, rest, where)
            reader.rates_and_times(constants, where)
            key = CostKey(str(kind), half, level, Space(space))
            if key in found:
                raise PlanError("given twice", where=f"{reader.path}: {where}", got=str(key))
            found[key] = constants
    return found


def _layout_of(reader: DocumentReader, found: Mapping[str, Any]) -> Layout:
    placements = []
    for index, entry in enumerate(found["stages"]):
        where = f"stages.{index}"
        content = reader.mapping(entry, where)
        devices, mesh = (reader.integers(content[key], f"{where}.{key}") for key in ("devices", "mesh"))
        placements.append(Placement(devices, mesh, tuple(map(str, content["axes"]))))
    stage_of: dict[str, int] = {}
    laps: dict[str, int] = {}
    signatures: dict[str, Signature] = {}
    for name, entry in reader.mapping(found["ops"], "ops").items():
        stage_of[name] = reader.integer(entry["stage"], f"ops.{name}.stage")
        laps[name] = reader.integer(entry["lap"], f"ops.{name}.lap")
        parts = (reader.layouts(entry[key], f"ops.{name}.{key}") for key in ("inputs", "outputs", "updates"))
        signatures[name] = Signature(*parts)
    conversions = []
    for entry in found["boxing"]:
        key = f"boxing of {entry['value']}"
        steps = tuple(
            BoxingStep(ActKind(step["kind"]), reader.integers(step["axes"], key), reader.layout(step["layout"], key))
            for step in entry["steps"]
        )
        source = Home(reader.integer(entry["from"]["stage"], key), reader.layout(entry["from"]["layout"], key))
        copy = Copy(
            str(entry["value"]), reader.integer(entry["to"]["stage"], key), reader.layout(entry["to"]["layout"], key)
        )
        conversions.append(Conversion(copy, source, steps))
    laps = laps if any(laps.values()) else {}
    return Layout(Stages(tuple(placements), stage_of, laps=laps), signatures, tuple(conversions))
