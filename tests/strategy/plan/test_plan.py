"""Plan files: the same bytes, the same plan; whatever is wrong with one is refused in words."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError, PlanError
from strategy.base.limits import LARGEST, LONGEST_ACT_S
from strategy.cost.cost import CostModel
from strategy.layout.config import Recompute
from strategy.passes.mixed_precision import Precision
from strategy.passes.parameter_groups import ParameterGroup
from strategy.passes.training import Training
from strategy.plan.plan import INPUTS, FitClaim, Plan, digest, document, plan_text, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.sbp.tensor import DType
from strategy.space.trainer_space import TargetTrainer
from tests.support.long_parameters import long_but
from tests.support.mixed_clusters import mixed
from tests.support.small_plans import HOST, MODEL, config_of, deduced_plan, plan_by_rules, request

JUNK: list[Any] = [None, True, "x", "", -1, 0, 0.5, 10**9, 10**400, 1e308, [], [[]], {}, {"x": 1}, [None], ["B", 1]]
HOST_WITHOUT_LINK = {**asdict(HOST), "link_bytes_per_s": 0.0}


@cache
def real_plan(pp: int = 1, schedule: str = "1f1b") -> Plan:
    training = Training(global_batch=4, num_micro_batches=2)
    config = config_of(training, tp=2, pp=pp, schedule=schedule)
    return plan_by_rules(request(2 * pp, training, model=replace(MODEL, layers=2 * pp)), config, ("data", "tensor"))


def stamped(content: dict[str, Any]) -> str:
    """The document with the hashes that its writer would have given it."""
    rest = {key: value for key, value in content.items() if key not in ("plan_hash", "inputs_hash")}
    if rest.keys() >= set(INPUTS):
        rest["inputs_hash"] = digest({key: rest[key] for key in INPUTS})
    return json.dumps({**rest, "plan_hash": digest(rest)})


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document; of long lists and of the ops only the first few."""
    yield path
    if isinstance(value, dict):
        items = list(value.items())
        for key, item in items[:2] if path == ("ops",) else items:
            yield from paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:2]):
            yield from paths(item, (*path, index))


def put(content: Any, path: tuple[str | int, ...], value: Any) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


@pytest.mark.parametrize(("pp", "schedule"), [(1, "1f1b"), (2, "1f1b"), (2, "interleaved")])
def test_round_trip(tmp_path: Path, pp: int, schedule: str) -> None:
    plan, path = real_plan(pp, schedule), tmp_path / "plan.json"
    write_plan(plan, path)
    found = read_plan(path)
    assert document(found) == document(plan)
    assert plan_text(found) == path.read_text() == plan_text(plan)
    assert found.layout == plan.layout
    assert set(found.layout.stages.laps.values()) == ({0, 1} if schedule == "interleaved" else set())
    assert found.plan_hash == plan.plan_hash
    assert verify(found) == []
    assert json.loads(path.read_text())["ops"].keys() == found.layout.signatures.keys()


@pytest.mark.parametrize("trainer", [None, TargetTrainer.MEGATRON])
def test_a_claim_to_fit_is_read_back(tmp_path: Path, trainer: TargetTrainer | None) -> None:
    plan = real_plan()
    fits = plan.claiming(replace(plan.claims, fit=FitClaim(0.9, trainer)))
    path = tmp_path / "plan.json"
    write_plan(fits, path)
    assert read_plan(path).claims.fit == FitClaim(0.9, trainer)
    content = document(fits, with_hash=False)
    content["fit"]["probability"] = 0.3
    path.write_text(stamped(content))
    with pytest.raises(PlanError, match="no such probability"):
        read_plan(path)


@pytest.mark.parametrize(
    ("settings", "degrees", "written"),
    [
        ({"groups": (ParameterGroup(("*.bias",), 0.5, weight_decay=0.0),)}, {}, ("training", "groups")),
        ({"max_norm": math.inf}, {}, ("training", "max_norm")),
        ({"fused": True}, {}, ("training", "fused")),
        ({}, {"bucket_bytes": 4096, "exchange_streams": 2}, ("config", "exchange_streams")),
        ({}, {"bucket_bytes": 4096}, ("config", "bucket_bytes")),
        ({}, {"recompute": Recompute.FULL, "kept_layers": (1,)}, ("config", "kept_layers")),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_what_most_plans_leave_out_is_read_back(
    tmp_path: Path, settings: dict[str, Any], degrees: dict[str, Any], written: tuple[str, str]
) -> None:
    training, path = Training(global_batch=4, num_micro_batches=2, **settings), tmp_path / "plan.json"
    plan = deduced_plan(request(2, training), config_of(training, dp=2, **degrees), ("data", "tensor"))
    write_plan(plan, path)
    part, key = written
    assert key in json.loads(path.read_text())[part]
    again = read_plan(path)
    assert again == plan
    assert plan_text(again) == path.read_text()
    assert verify(again) == []


def test_links_and_groups_of_nodes_are_read_back(tmp_path: Path) -> None:
    """Also what links say of overlapping, where they do."""
    training, path = Training(global_batch=4, num_micro_batches=2), tmp_path / "plan.json"
    config, alike = config_of(training, pp=2), request(2, training, overlaps=True)
    unlike = replace(alike, cost=CostModel(mixed(1.0, 2.0, per_node=1), {}))
    for asked, places in ((alike, ("intra", "inter")), (unlike, ())):
        plan = deduced_plan(asked, config, config.axes)
        write_plan(plan, path)
        written = json.loads(path.read_text())["cluster"]
        assert [name for name in ("intra", "inter") if "overlaps" in written[name]] == list(places)
        assert len(written.get("groups", ())) == len(plan.cluster.groups)
        assert read_plan(path) == plan
        assert plan_text(read_plan(path)) == path.read_text()


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("nodes",), 0, "cluster.groups.1.nodes: a group without nodes (got 0)"),
        (("device", "flop_per_s"), 0.5, "cluster.groups.1.device.flop_per_s: a rate or time out of range (got 0.5)"),
        (("intra", "latency_s"), -1.0, "cluster.groups.1.intra.latency_s: a rate or time out of range (got -1.0)"),
        (("host",), HOST_WITHOUT_LINK, "cluster.groups.1.host.link_bytes_per_s: a rate or time out of range (got 0.0)"),
        (("intra",), 7, "cluster.groups.1.intra: not an object (got 7)"),
        (("more",), 7, "cluster.groups.1: keys differ (got ['more'], expected also [])"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_a_group_of_nodes_is_refused_by_its_key(
    tmp_path: Path, place: tuple[str, ...], value: object, said: str
) -> None:
    path, content = tmp_path / "plan.json", json.loads(plan_text(real_plan()))
    content["cluster"]["groups"] = json.loads(json.dumps([asdict(one) for one in mixed(1.0, 2.0).groups]))
    put(content["cluster"]["groups"][1], place, value)
    path.write_text(stamped(content))
    with pytest.raises(PlanError) as refused:
        read_plan(path)
    assert str(refused.value) == f"{path}: {said}"


def test_a_certificate_is_part_of_the_plan(tmp_path: Path) -> None:
    plan, path = real_plan(), tmp_path / "plan.json"
    certified = plan.claiming(certificate={"kind": "boxes"})
    assert certified.graph is plan.graph
    assert certified.plan_hash != plan.plan_hash
    write_plan(certified, path)
    assert read_plan(path).certificate == {"kind": "boxes"}
    content = document(certified)
    content["certificate"] = ["boxes"]
    path.write_text(stamped(content))
    with pytest.raises(PlanError, match=r"plan\.json: certificate: not an object \(got \['boxes'\]\)"):
        read_plan(path)


def test_a_plan_is_sent_without_what_follows_from_it() -> None:
    plan = real_plan(2)
    assert {"graph", "priced"} <= vars(plan).keys()
    sent = copy.copy(plan)
    assert vars(sent).keys() == {field.name for field in fields(Plan)}
    assert sent == plan
    assert sent.with_prices(plan.priced).graph is plan.graph
    assert sent.ranks == 4


@pytest.mark.parametrize("places", long_but([40, 150], 0))
def test_truncated_and_flipped_files_are_refused(tmp_path: Path, places: int) -> None:
    path = tmp_path / "plan.json"
    data = plan_text(real_plan()).encode()
    rng = random.Random(0)
    for _ in range(places):
        at = rng.randrange(len(data) - 2)
        flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        for damaged in (data[:at], flipped):
            path.write_bytes(damaged)
            with pytest.raises(InputError):
                read_plan(path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "7", '{"format": 1}', "\ud800", "[" * 100_000, '{"a":' * 900])
def test_other_documents_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError):
        read_plan(path)


def test_deep_documents_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for depth in (100, 500, 900, 950, 990, 2000, 50_000):
        content = {key: value for key, value in document(real_plan()).items() if key != "stages"}
        path.write_text(f'{json.dumps(content)[:-1]}, "stages": {"[" * depth}{"]" * depth}}}')
        with pytest.raises(InputError):
            read_plan(path)


@pytest.mark.parametrize("mutants", long_but([60, 200], 0))
def test_wrong_values_under_a_right_hash_are_refused_by_name(tmp_path: Path, mutants: int) -> None:
    """Wherever junk is put, reading or verifying says so; no other exception, and no memory without end."""
    path = tmp_path / "plan.json"
    content = json.loads(plan_text(real_plan(2)))
    accepted = []
    places = [place for place in paths(content) if place and place[0] not in ("plan_hash", "inputs_hash")]
    mutations = [(place, junk) for place in places for junk in JUNK]
    for place, junk in random.Random(0).sample(mutations, mutants):
        damaged = copy.deepcopy(content)
        put(damaged, place, junk)
        if damaged == content:
            continue
        path.write_text(stamped(damaged))
        try:
            problems = verify(read_plan(path))
        except InputError:
            continue
        if not problems:
            accepted.append((place, junk))
    assert [(place, junk) for place, junk in accepted if not free_to_say(place)] == []


def free_to_say(place: tuple[str | int, ...]) -> bool:
    """What makes another plan, not a wrong one: names, settings, devices and links to spare, a roomier limit."""
    names = {("model", "name"), ("cluster", "name"), ("cluster", "device", "name")}
    spare = {("cluster", "nodes"), ("cluster", "devices_per_node"), ("memory_limit_bytes",)}
    graph = {"global_batch", "num_micro_batches", "dtype", "optimizer", "frozen", "precision", "skip_nonfinite"}
    settings = {("training", field.name) for field in fields(Training) if field.name not in graph}
    speeds = ("bf16_speedup", "fp16_speedup", "fp8_speedup", "mx_scales", "nvfp4_speedup", "slowdown")
    spare |= {("cluster", "device", name) for name in speeds}
    simulated = {("step_time_s",), ("simulated_lower_bound_s",)}
    unused = place[:2] in (("cluster", "inter"), ("cluster", "host"), ("config", "zero_min_size"))
    return place in names | spare | settings | simulated or unused


def test_a_number_of_micro_batches_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    content = json.loads(plan_text(real_plan()))
    content["training"].update(global_batch=2 * 10**12, num_micro_batches=10**12)
    content["config"]["num_micro_batches"] = 10**12
    path.write_text(stamped(content))
    assert any("objective_s" in problem for problem in verify(read_plan(path)))


def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    content = json.loads(plan_text(real_plan()))
    for place in paths(content):
        if not place or not isinstance(place[-1], str) or place[0] in ("plan_hash", "inputs_hash"):
            continue
        damaged = copy.deepcopy(content)
        parent = damaged
        for key in place[:-1]:
            parent = parent[key]
        del parent[place[-1]]
        path.write_text(stamped(damaged))
        try:
            refusal = "; ".join(verify(read_plan(path)))
        except PlanError as error:
            refusal = str(error)
        assert place[-1] in refusal, place


def test_a_changed_file_is_refused_by_its_hashes(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    content = json.loads(plan_text(real_plan()))
    path.write_text(json.dumps({**content, "step_time_s": 1e-9}))
    with pytest.raises(PlanError, match="plan_hash"):
        read_plan(path)
    changed = {**content, "training": {**content["training"], "lr": 1.0}}
    del changed["plan_hash"]
    path.write_text(json.dumps({**changed, "plan_hash": digest(changed)}))
    with pytest.raises(PlanError, match="inputs_hash"):
        read_plan(path)


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_text(real_plan()).replace('"format":', '"format": 3, "format":', 1))
    with pytest.raises(InputError, match="key 'format' is given 2 times in one object"):
        read_plan(path)


@pytest.mark.parametrize(
    ("place", "legal", "illegal"),
    [
        (("cluster", "device", "memory_bytes_per_s"), (1.0, 9e18), (0.99, 1e19)),
        (("cluster", "device", "launch_s"), (0.0, LONGEST_ACT_S), (-1e-9, 1.01 * LONGEST_ACT_S)),
        (("cluster", "device", "bf16_speedup"), (1 / LARGEST, 9e18), (0.0, -1.0, 1e19)),
        (("cluster", "device", "slowdown"), (0.0, 0.99), (-0.01, 1.0)),
        (("cluster", "host", "link_latency_s"), (0.0, LONGEST_ACT_S), (-1e-9, 1.01 * LONGEST_ACT_S)),
        (("calibration", "act_overhead_s"), (0.0, LONGEST_ACT_S), (-1e-9, 1.01 * LONGEST_ACT_S)),
        (("memory_limit_bytes",), (LARGEST,), (LARGEST + 1, 0.5, True)),
    ],
    ids=lambda value: ".".join(value) if value and isinstance(value[0], str) else "",
)
def test_a_figure_has_a_range(
    tmp_path: Path, place: tuple[str, ...], legal: tuple[float, ...], illegal: tuple[float, ...]
) -> None:
    path = tmp_path / "plan.json"
    content = json.loads(plan_text(real_plan()))
    for value in legal:
        put(content, place, value)
        path.write_text(stamped(content))
        assert json.loads(plan_text(read_plan(path))) == json.loads(path.read_text())
    for value in illegal:
        put(content, place, value)
        path.write_text(stamped(content))
        with pytest.raises(PlanError, match=place[-1]):
            read_plan(path)


MEASURED = {"half": "", "level": "", "space": "device", "fixed_s": 1e-6, "s_per_flop": 1e-12, "s_per_byte": 1e-10}


def test_measured_constants_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    content = json.loads(plan_text(real_plan()))
    content["calibration"]["coefficients"] = {
        "all_reduce": [{**MEASURED, "level": "inter"}, {**MEASURED, "level": "intra"}],
        "matmul": [MEASURED, {**MEASURED, "half": "bfloat16", "fixed_s": 2e-6}],
    }
    path.write_text(stamped(content))
    found = read_plan(path)
    assert len(found.cost.coefficients) == 4
    assert json.loads(plan_text(found)) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("calibration", "coefficients"), {"matmul": MEASURED}, "not a list of constants"),
        (("calibration", "coefficients"), {"matmul": [MEASURED, MEASURED]}, "given twice"),
        (("calibration", "coefficients"), {"matmul": [{**MEASURED, "half": 16}]}, "not a list of texts"),
        (("calibration", "coefficients"), {"matmul": [{**MEASURED, "s_per_flop": -1.0}]}, "out of range"),
        (("model", "layers"), 10**6, "more layers than ops"),
        (("cluster", "gpu_direct"), False, "no host to pass through"),
        (("cluster", "fabric"), "carrier pigeons", "unknown network .*'carrier pigeons', expected .*tcp"),
        (("model", "family"), "oracle", "unknown family of models .*'oracle', expected .*gpt"),
        (("training", "groups"), {"names": ["*"]}, r"training\.groups: not a list \(got"),
    ],
    ids=["no list", "twice", "no text", "negative", "layers", "no host", "network", "family", "groups"],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, place: tuple[str, ...], value: object, message: str
) -> None:
    path = tmp_path / "plan.json"
    content = json.loads(plan_text(real_plan()))
    put(content, place, value)
    if place[-1] == "gpu_direct":
        content["cluster"]["host"] = None
    path.write_text(stamped(content))
    with pytest.raises(PlanError, match=message):
        read_plan(path)


def test_the_peak_is_that_of_products_in_the_precision_of_the_training() -> None:
    plan = real_plan()
    device = replace(plan.cluster.device, bf16_speedup=8.0)
    halved = replace(
        plan,
        cluster=replace(plan.cluster, device=device),
        training=replace(plan.training, dtype=DType.FLOAT32, precision=Precision.BF16),
    )
    assert plan.peak_flop_per_s == plan.cluster.device.flop_per_s
    assert halved.peak_flop_per_s == 8.0 * device.flop_per_s


@pytest.mark.parametrize("text", ["# A page", "{}", '{"format": 3}', "[1, 2]"])
def test_of_what_is_no_plan_it_is_said_what_writes_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_plan(path)
    assert str(path) in str(refused.value)
    assert ("sbplan search" in str(refused.value)) == (text != "[1, 2]")
