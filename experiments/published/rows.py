"""Rows: one published run per line of a CSV file, read into the jobs that it may have been.

What a row leaves open (micro-batch, interleaving, recompute, heads, the cut) is not picked by hand: the row becomes
several weighted jobs and its prediction is their mean, or a rule fills it in; `defaults` says which values were taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from experiments.published.cells import Cells, Unsupported, count, figure, inputs, read_cells
from experiments.published.row_shapes import adapter_rank, guessed_of_model, shapes_of
from experiments.published.spellings import FRAMEWORKS, PRECISIONS, named, sheet_named
from strategy.base.errors import InputError
from strategy.closed_form.frameworks import PROFILES, UNKNOWN
from strategy.closed_form.job import BITS, MODULES, Job, Shape
from strategy.hardware.devices import DEVICES, GIB, DeviceSheet

FABRICS = (("OmniPath", "omnipath"), ("EDR", "edr"))
V_SHAPES = {"zbv": 1.0, "zbv-formatted": 1.0, "v-half": 1 / 2, "v-min": 1 / 3}
"""Activations of schedules of V shape over those of a 1F1B's first stage."""
MOMENTS = (("muon", 1), ("lion", 1))
"""Averages that optimisers keep of each gradient, where they are not Adam's two."""
ONE_LAP = ("zbb", "zero-bubble")
"""Schedules that split the backward pass and go through the stages once, whatever is said of virtual ones."""
OMNIPATH_GBPS = 400.0
NEWEST = 2026 + 8 / 12
_SEQUENCE = 2048
_REPLICAS = 8
_MINOR_YEARS = 0.156
"""Years between two minor releases of Megatron-Core: 0.12 was of May 2025, 0.20 of August 2026."""
_NEWEST_MINOR = 20
_FUSED_FROM = {"dev": 12, "lts": 16}
"""Minor release of Megatron-Core from which "auto" fuses attention in deterministic runs, by kind of container."""
_NEW_SYSTEMS = ("Megatron-Bridge", "Megatron-Core", "InternEvo", "NeMo", "Primus", "MaxText", "DeepSpeed (HF)")
"""Systems of 2023 and later: where a row does not say, their attention is fused."""
_TUNED = ("Megatron-Bridge (NeMo)", "NeMo (ROCm)")
"""NeMo as tuned for benchmarks: its runs that say so multiply 8 bits or fewer, and the first's keep everything."""
_OPEN_RECOMPUTE = ("megatron-core", "megatron-bridge", "nemo", "maxtext")
"""Frameworks of which runs were measured that do not say what they recompute."""
_RECOMPUTES = ("none", "selective", "full")
_SHARING_ALL = ("torchtitan", "llm-foundry", "nemo-automodel", "maxtext", "deepspeed-zero")
"""Frameworks that share all weights out (FSDP, ZeRO-3) and cut nothing else, where a row says neither."""
_SHARE_OF_MEMORY = 0.5
"""Weights, gradients and optimiser of a cut that a row leaves open take no more of a device."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One job that a row may have been, and how likely."""

    job: Job
    weight: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its place in the file, its cells, and its candidates, or why it has none."""

    number: int
    cells: Mapping[str, str]
    candidates: tuple[Candidate, ...]
    why_not: str = ""


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, each with the jobs that it may have been; see `read_cells` for what is raised."""
    rows = []
    for number, cells in enumerate(read_cells(path), start=2):
        try:
            rows.append(Row(number, cells, candidates(inputs(cells))))
        except (Unsupported, InputError) as why:
            rows.append(Row(number, cells, (), str(why)))
    return rows


def candidates(cells: Cells) -> tuple[Candidate, ...]:
    """The jobs that a row may have been; weights sum to 1.

    Raises:
        Unsupported: a cell is no possible figure.
    """
    precisions = precisions_of(cells)
    tp, pp, cp, _ = _given_cut(cells)
    shapes = shapes_of(cells, tp, tp * pp * cp * sheet(cells).memory_bytes)
    base = replace(known(cells, shapes[0], precisions[0]), guessed=guessed(cells, shapes[0]))
    virtuals = virtuals_of(cells, base, shapes[0].layers)
    recomputes = recomputes_of(cells)
    modules = modules_of(cells, base.framework)
    many = count(cells, "num_microbatches", 2 * base.pp)
    found, weights = [], []
    for shape, micro, virtual, (recompute, weight), precision in product(
        shapes, micro_batches_of(cells, base), virtuals, recomputes, precisions
    ):
        batch = base.global_batch if cells["global_batch"] else base.dp * micro * many
        found.append(
            replace(base, shape=shape, micro_batch=micro, virtual=virtual, recompute=recompute, modules=modules,
                    precision=precision, global_batch=batch)
        )  # fmt: skip
        weights.append(weight)
    return tuple(Candidate(job, weight / sum(weights)) for job, weight in zip(found, weights, strict=True))


def sheet(cells: Cells) -> DeviceSheet:
    """The data sheet of a row's device; of one without a sheet, the middle one by rate of those of the nearest memory.

    Such a stand-in keeps its own name, so that no interval takes it for a device that was measured.
    """
    if found := sheet_named(cells["gpu"], cells["gpu_mem_gb"]):
        return found
    wanted = figure(cells, "gpu_mem_gb", 80.0) * GIB
    least = min(abs(one.memory_bytes - wanted) for one in DEVICES.values())
    near = [one for one in DEVICES.values() if abs(one.memory_bytes - wanted) == least]
    middle = sorted(near, key=lambda one: (one.half, one.name))[len(near) // 2]
    return replace(middle, name="unknown", products=())


def framework_of(cells: Cells) -> str:
    """The framework whose constants price a row."""
    _, found = named(cells["framework"], FRAMEWORKS) or ("", "")
    if found == "megatron-deepspeed" and not cells["zero_stage"]:
        return "megatron-fork"
    if found == "megatron-core" and cells["framework_version"].endswith(tuple(_FUSED_FROM)):
        return "megatron-core-tested"
    return found or UNKNOWN


def guessed(cells: Cells, shape: Shape) -> tuple[str, ...]:
    """Columns that had to be guessed: blank or not known, where no rule that was tried on runs stands in for them."""
    framework = framework_of(cells)
    again = cells["recompute"].partition("(")[0]
    found = {
        "gpu": sheet_named(cells["gpu"], cells["gpu_mem_gb"]) is None,
        "framework": framework == UNKNOWN,
        "dtype": not _precision_said(cells) and not cells["framework"].startswith(_TUNED),
        "recompute": again not in _RECOMPUTES if again else framework not in _OPEN_RECOMPUTE,
        "seq": not cells["seq"] and not shape.conv_flop,
        "num_gpus": not (cells["num_gpus"] or cells["dp"]) or _contradicts(cells),
        "global_batch": not (cells["global_batch"] or cells["num_microbatches"]),
        "cut": _blank_cut(cells) and framework not in _SHARING_ALL and not shape.conv_flop,
    }
    return (*(name for name, is_guessed in found.items() if is_guessed), *guessed_of_model(cells))


def known(cells: Cells, shape: Shape, precision: str) -> Job:
    """The job as far as the row tells it."""
    device = sheet(cells)
    framework = framework_of(cells)
    rank = adapter_rank(cells)
    tp, pp, cp, gpus = _cut(cells, shape, device, framework, frozen=rank > 0, narrow=BITS[precision] < 16)
    per_node = count(cells, "gpus_per_node", 8)
    fabric = next((name for text, name in FABRICS if text in cells["inter_link"]), "infiniband")
    default = OMNIPATH_GBPS if fabric == "omnipath" else device.nic_bytes_per_s * 8e-9 * per_node
    zero, shard = _sharing(cells, framework)
    shard *= cp  # ranks that share a sequence are replicas, too
    # A mixture's experts are cut as its other layers are, unless the row says otherwise.
    etp = count(cells, "etp", 1) if shape.moe_layers else 1
    sequence = 1 if shape.conv_flop else _SEQUENCE
    return Job(
        shape=shape, device=device, framework=framework, precision=precision, gpus=gpus, gpus_per_node=per_node,
        nic_bytes_per_s=figure(cells, "inter_bw_Gbps_per_node", default) * 1e9 / 8 / per_node, fabric=fabric,
        seq=count(cells, "seq", sequence), global_batch=count(cells, "global_batch", 1), micro_batch=1,
        tp=tp, pp=pp, cp=cp, ep=count(cells, "ep", 1), etp=etp, zero=zero, shard=shard,
        in_flight=V_SHAPES.get(cells["schedule"], 0.0), recompute_layers=_recomputed_layers(cells),
        frozen=rank > 0, adapter_rank=rank,
        sequence_parallel=cells["seq_parallel"] == "yes", flash=_fused_attention(cells),
        plain_modules=cells["attention_impl"].endswith("(local)"),
        wide_gradients=(cells["framework"].startswith("Megatron-DeepSpeed") and cells["dtype"].startswith("bf16"))
        or cells["grad_accum_dtype"] == "fp32",
        narrow_gradients=cells["grad_accum_dtype"] in ("fp16", "bf16"),
        last_stage=cells["mem_rank"].startswith(("last", "the rank that logs")),
        moments=next((number for name, number in MOMENTS if cells["optimizer"].startswith(name)), 2),
        release=_age_years(cells, framework),
    )  # fmt: skip


def _cut(
    cells: Cells, shape: Shape, device: DeviceSheet, framework: str, *, frozen: bool, narrow: bool
) -> tuple[int, int, int, int]:
    """Ranks along the tensor, the pipeline and the context axis, and devices in all.

    Where a row gives none of them, a system that shares all of its weights out cuts nothing else, and others cut as
    little as the memory allows; replicas that the batch is too small for share a sequence.
    """
    tp, pp, cp, gpus = _given_cut(cells)
    if _blank_cut(cells) and framework in _SHARING_ALL:
        return 1, 1, _per_sequence(gpus, cells), gpus
    if _blank_cut(cells) and not shape.conv_flop:
        weights = shape.layers * (4 * shape.hidden**2 + (2 + shape.gated) * shape.hidden * shape.ffn)
        per_weight = (1 if narrow else 2) if frozen else 8
        room = _SHARE_OF_MEMORY * device.memory_bytes
        ways = [(t * p, p, t) for p in (1, 2, 4, 8, 16) for t in (1, 2, 4, 8) if gpus % (t * p) == 0]
        fits = [way for way in ways if weights * per_weight <= room * way[0]] or ways[-1:]
        _, pp, tp = min(fits)
        return tp, pp, _per_sequence(gpus // (tp * pp), cells), gpus
    return tp, pp, cp, gpus


def _given_cut(cells: Cells) -> tuple[int, int, int, int]:
    """Ranks along the tensor, the pipeline and the context axis as the row has them, 1 where it is blank; devices.

    Where the number of devices contradicts that of replicas, the devices count: there are as many whole replicas as
    fit, and one at least.
    """
    tp, pp, cp = (count(cells, name, 1) for name in ("tp", "pp", "cp"))
    model = tp * pp * cp
    gpus = count(cells, "num_gpus", model * count(cells, "dp", _REPLICAS))
    return tp, pp, cp, max(gpus // model, 1) * model


def _contradicts(cells: Cells) -> bool:
    """Whether the number of devices is none of whole replicas."""
    return bool(cells["num_gpus"]) and _given_cut(cells)[-1] != count(cells, "num_gpus")


def _blank_cut(cells: Cells) -> bool:
    return not (cells["tp"] or cells["pp"] or cells["cp"] or cells["dp"])


def _per_sequence(replicas: int, cells: Cells) -> int:
    """Ranks that share a sequence where the batch is smaller than the number of replicas."""
    batch = count(cells, "global_batch", replicas)
    return replicas // batch if replicas > batch and replicas % batch == 0 else 1


def _sharing(cells: Cells, framework: str) -> tuple[int, int]:
    """The stage of ZeRO, and over how many ranks it goes (0: all replicas)."""
    if cells["zero_stage"]:
        zero = 0 if cells["zero_stage"] == "0" else count(cells, "zero_stage")
    elif cells["dist_optimizer"]:
        zero = 1 if cells["dist_optimizer"] == "yes" else 0
    else:
        zero = 3 if framework in _SHARING_ALL else 1 if PROFILES[framework].even or framework == UNKNOWN else 0
    if cells["fsdp_shard"] in ("", "0", "1"):
        return zero, 0
    return (2 if zero == 2 else max(zero, 3)), count(cells, "fsdp_shard")


def _fused_attention(cells: Cells) -> bool:
    """Whether attention is fused; where the row does not say, it is in systems of 2023 and later."""
    text = cells["attention_impl"]
    if text.startswith("auto") and cells["framework"].startswith("Megatron-Core"):
        minor = _minor(cells["framework_version"])
        if not cells["num_gpus"]:  # a release run, on however many nodes, is not deterministic
            return True
        return minor is None or minor >= _FUSED_FROM["lts" if cells["framework_version"].endswith("lts") else "dev"]
    if text.startswith("unfused"):
        return False
    return text.startswith(("flash", "fused", "auto")) or cells["framework"].startswith(_NEW_SYSTEMS)


def _minor(version: str) -> int | None:
    """The minor release of a version such as '0.20.0 dev'."""
    parts = version.removeprefix("r").partition(" ")[0].split(".")
    return int(parts[1]) if len(parts) > 1 and parts[0] == "0" and parts[1].isdecimal() and len(parts[1]) < 4 else None


def _age_years(cells: Cells, framework: str) -> float:
    """Years between a release and the newest one: of Megatron-Core by its number, of containers by their month."""
    if framework == "megatron-core-tested":
        minor = _minor(cells["framework_version"])
        return 0.0 if minor is None else max(_NEWEST_MINOR - minor, 0) * _MINOR_YEARS
    return age_years(cells["framework_version"])


def age_years(version: str) -> float:
    """Years between a container's release, as in '26.04.01 NeMo Container', and the newest one."""
    year, _, rest = version.partition(" ")[0].partition(".")
    parts = rest.split(".")
    if not (year.isdecimal() and len(year) == 2 and parts[0].isdecimal() and len(parts[0]) <= 2):
        return 0.0
    patch = 0.05 if len(parts) > 1 else 0.0
    return NEWEST - (2000 + int(year) + int(parts[0]) / 12 + patch)


def precisions_of(cells: Cells) -> list[str]:
    """The precision of products, or each of those that a recipe leaves open.

    Halves where nothing is said, but for systems tuned for benchmarks on devices that multiply 8 bits.
    """
    device = sheet(cells)
    tuned = cells["framework"].startswith(_TUNED) and device.eight > device.half
    return _precision_said(cells) or ["eight" if tuned else "half"]


def _precision_said(cells: Cells) -> list[str]:
    """The precisions that the recipe, else the dtype, may mean; none where neither is known."""
    for text in (cells["precision_recipe"], cells["dtype"]):
        if found := [line[1] for part in text.split("-or-") if (line := named(part, PRECISIONS))]:
            return found
    return []


def micro_batches_of(cells: Cells, base: Job) -> list[int]:
    """The micro-batch, or every power of two that fits the batch and keeps a pipeline busy."""
    if cells["micro_batch"]:
        return [count(cells, "micro_batch")]
    share = max(base.global_batch // base.dp, 1)
    if cells["num_microbatches"] and cells["global_batch"]:
        return [max(share // count(cells, "num_microbatches"), 1)]
    if base.framework == "maxtext":  # which adds no gradients up
        return [share]
    found = [size for size in (1, 2, 4, 8) if share % size == 0 and share // size >= min(2 * base.pp, share)]
    return found or [1]


def virtuals_of(cells: Cells, base: Job, layers: int) -> list[int]:
    """Virtual stages per device; of a schedule that is interleaved, every number that deals out the layers evenly.

    Two are the least that interleaving means, where the layers do not divide, and what a V consists of.
    """
    if cells["schedule"] in ONE_LAP:
        return [1]
    if cells["vpp"]:
        return [count(cells, "vpp")]
    if base.pp > 1 and cells["schedule"] in V_SHAPES:
        return [2]
    if "interleaved" not in cells["schedule"] or base.pp == 1:
        return [1]
    even = [v for v in (2, 3, 4, 5, 6, 7) if layers % (base.pp * v) == 0]
    return even or [2 if layers >= 2 * base.pp else 1]


def recomputes_of(cells: Cells) -> list[tuple[str, float]]:
    """What is recomputed, or the usual ways with how usual they are."""
    text = cells["recompute"].partition("(")[0]
    if text in _RECOMPUTES:
        return [(text, 1.0)]
    if cells["framework"].startswith("MaxText"):
        return [("full", 1.0)]
    if cells["framework"].startswith(_TUNED[0]):
        return [("none", 1.0)]
    return [("none", 0.8), ("selective", 0.1), ("full", 0.1)]


def modules_of(cells: Cells, framework: str) -> tuple[str, ...]:
    """What selective recompute computes again, as in 'selective(layernorm moe_act)'; else what the system does."""
    kind, _, modules = cells["recompute"].partition("(")
    if kind == "selective" and modules:
        words = modules.partition(")")[0].replace(",", " ").split()
        if found := tuple(word for word in words if word in MODULES):
            return found
    return ("per-op",) if framework == "torchtitan" else ("core_attn",)


def _recomputed_layers(cells: Cells) -> int:
    """How many layers are computed again, as in 'full(21 layers)'; 0 where that is all of them."""
    number = cells["recompute"].partition("(")[2].partition(" layers")[0]
    return int(number) if number.isdecimal() and len(number) < 6 else 0


FIELDS = (
    ("gpu", "device"), ("framework", "framework"), ("dtype", "precision"), ("num_gpus", "gpus"), ("seq", "seq"),
    ("tp", "tp"), ("pp", "pp"),
    ("cp", "cp"), ("ep", "ep"), ("vpp", "virtual"), ("zero_stage", "zero"), ("micro_batch", "micro_batch"),
    ("global_batch", "global_batch"), ("recompute", "recompute"), ("attention_impl", "flash"),
)  # fmt: skip
"""Columns whose values are stated where a row leaves them blank, and the fields of a job that hold them."""


def defaults(row: Row) -> str:
    """What was taken where the row is blank or contradicts itself: 'micro_batch 1 or 2; recompute none or full'."""
    said = []
    for column, name in FIELDS:
        if not row.cells.get(column, "").strip() or column in row.candidates[0].job.guessed:
            values = dict.fromkeys(_said(getattr(one.job, name)) for one in row.candidates)
            said.append(f"{column} {' or '.join(values)}")
    job = row.candidates[0].job
    if {"model", "hidden", "layers"} & {*job.guessed}:
        said.append(f"model {job.shape.layers} layers of {job.shape.hidden}")
    cells = inputs(row.cells)
    if cells["dp"] and figure(cells, "dp") != job.dp:
        said.append(f"dp {job.dp}, by the number of GPUs")
    return "; ".join(said)


def _said(value: object) -> str:
    if isinstance(value, DeviceSheet):
        return "of the nearest memory"
    return {True: "fused", False: "unfused"}[value] if isinstance(value, bool) else str(value)
