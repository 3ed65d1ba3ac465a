"""Cluster files: every mistake has its place, and what is written reads back."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import string
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.base.errors import InputError
from strategy.hardware.cluster import (
    AlikeNodes,
    Cluster,
    Device,
    Host,
    Link,
    host_memory_bytes,
    of_groups,
)
from strategy.hardware.cluster_file import read_cluster, write_cluster
from strategy.hardware.presets import PRESETS, find_cluster
from strategy.sbp.tensor import DType
from tests.support.long_parameters import long_but

GOOD: dict[str, Any] = {
    "name": "two-boxes",
    "nodes": 2,
    "devices_per_node": 8,
    "device": {
        "name": "A100",
        "backend": "cupy",
        "memory": "80 GiB",
        "memory_bandwidth": "2039 GB/s",
        "launch": "5 us",
        "compute": "156 TFLOP/s",
    },
    "intra": {"bandwidth": "300 GB/s", "latency": "3 us"},
    "inter": {"bandwidth": "25 GB/s", "latency": "5 us"},
    "host": {
        "memory": "256 GiB",
        "memory_bandwidth": "51 GB/s",
        "compute": "1.1 TFLOP/s",
        "bandwidth": "31.5 GB/s",
        "latency": "10 us",
    },
}
MIXED: dict[str, Any] = {
    "name": "three-and-two",
    "devices_per_node": 5,
    "inter": GOOD["inter"],
    "group": [
        {"nodes": 3, "device": GOOD["device"], "intra": GOOD["intra"], "host": GOOD["host"]},
        {
            "nodes": 2,
            "device": {
                **GOOD["device"],
                "name": "H100",
                "memory": "60 GiB",
                "compute": "494 TFLOP/s",
                "launch": "4 us",
                "slowdown": 0.1,
            },
            "intra": {"bandwidth": "450 GB/s", "latency": "4 us"},
            "host": {**GOOD["host"], "compute": "1 TFLOP/s", "latency": "5 us"},
        },
    ],
}
FIGURES = [
    (table, key)
    for table, content in GOOD.items()
    if isinstance(content, dict)
    for key in content
    if key not in ("name", "backend")
]

Reader = Callable[[dict[str, Any]], Cluster]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.toml"


@pytest.fixture
def read(path: Path) -> Reader:
    def reader(document: dict[str, Any]) -> Cluster:
        path.write_text(toml(document), encoding="utf-8")
        return read_cluster(path)

    return reader


def toml(document: dict[str, Any], within: str = "") -> str:
    """Keys, then tables, then those of which there are several."""
    several = {key: value for key, value in document.items() if isinstance(value, list) and is_table(value)}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    lines = [f"{key} = {literal(value)}" for key, value in document.items() if key not in {**several, **tables}]
    lines += [f"[{within}{key}]\n" + toml(value, f"{within}{key}.") for key, value in tables.items()]
    lines += [f"[[{within}{key}]]\n" + toml(one, f"{within}{key}.") for key, value in several.items() for one in value]
    return "\n".join(lines) + "\n"


def is_table(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(one, dict) for one in value)


def literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def without(table: str | None, key: str) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    del (document if table is None else document[table])[key]
    return document


def having(table: str | None, key: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    (document if table is None else document[table])[key] = value
    return document


def keys() -> Iterator[tuple[str | None, str]]:
    for key, content in GOOD.items():
        yield None, key
        if isinstance(content, dict):
            yield from ((key, inner) for inner in content)


def misspelt(key: str) -> set[str]:
    """Every deletion and substitution of one character that leaves a bare TOML key."""
    found = {key[:i] + key[i + 1 :] for i in range(len(key))}
    found |= {key[:i] + c + key[i + 1 :] for i in range(len(key)) for c in string.ascii_letters + string.digits + "_-"}
    return found - {key, ""}


def test_a_good_file_is_read(read: Reader) -> None:
    cluster = read(GOOD)
    assert cluster == Cluster(
        "two-boxes",
        2,
        8,
        Device("A100", "cupy", 80 * 2**30, 2039 * 1e9, 156e12, 5 * 1e-6),
        Link(300e9, 3 * 1e-6),
        Link(25e9, 5 * 1e-6),
        Host(256 * 2**30, 51e9, 1.1e12, 31.5e9, 10 * 1e-6),
    )
    assert cluster.devices == 16


def test_without_inter_the_links_are_those_of_a_node(read: Reader) -> None:
    cluster = read(without(None, "inter"))
    assert cluster.inter == cluster.intra


def test_without_host_there_is_none(read: Reader) -> None:
    cluster = read(without(None, "host"))
    assert cluster.host is None
    assert host_memory_bytes(cluster) == 0


@pytest.mark.slow
@pytest.mark.parametrize("every", long_but([5, 1], 0))
def test_every_misspelt_key_is_refused_with_its_place(path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Thousands of files, so none is written; every run takes one of five."""
    tried = 0
    for table, key in keys():
        for wrong in sorted(misspelt(key))[::every]:
            content = GOOD if table is None else GOOD[table]
            renamed = {wrong if k == key else k: v for k, v in content.items()}
            document = renamed if table is None else {**GOOD, table: renamed}
            if wrong in content:
                continue
            monkeypatch.setattr(Path, "read_text", lambda _, encoding, document=document: toml(document))
            with pytest.raises(InputError) as caught:
                read_cluster(path)
            text = str(caught.value)
            assert text.startswith(f"{path}: " + (f"[{table}]: " if table else "")), text
            assert f"{wrong}: unknown key" in text
            assert key in text, text
            tried += 1
    assert tried > 5000 / every


def test_gpu_direct_is_said_and_needs_a_host_where_it_is_not(read: Reader) -> None:
    assert read(having("inter", "fabric", "tcp")).gpu_direct
    found = read(having("inter", "gpu_direct", False))
    assert not found.gpu_direct
    assert tomllib.loads(write_cluster(found))["inter"]["gpu_direct"] is False
    with pytest.raises(InputError, match=r"\[inter\]: gpu_direct: neither true nor false"):
        read(having("inter", "gpu_direct", "no"))
    inter = {**GOOD["inter"], "gpu_direct": False}
    with pytest.raises(InputError, match="gpu_direct: no host to pass through"):
        read({**{key: value for key, value in GOOD.items() if key != "host"}, "inter": inter})


@pytest.mark.parametrize("wrong", [-0.1, 1, 1.5, True, "19 %", math.nan])
def test_a_slowdown_is_a_share_of_one(read: Reader, wrong: object) -> None:
    assert read(GOOD).device.slowdown == 0.0
    assert read(having("device", "slowdown", 0.25)).device.slowdown == 0.25
    with pytest.raises(InputError, match=r"\[device\]: slowdown: not a share"):
        read(having("device", "slowdown", wrong))


def test_an_added_key_is_refused(read: Reader) -> None:
    for table in (None, "device", "intra", "inter", "host"):
        with pytest.raises(InputError, match=r"cluster\.toml: .*colour: unknown key"):
            read(having(table, "colour", "red"))


@pytest.mark.parametrize(("table", "key"), [pair for pair in keys() if pair not in ((None, "inter"), (None, "host"))])
def test_every_missing_key_is_named(read: Reader, path: Path, table: str | None, key: str) -> None:
    with pytest.raises(InputError, match="is missing") as caught:
        read(without(table, key))
    assert caught.value.where == f"{path}: " + (f"[{table}]: {key}" if table else key)


@pytest.mark.parametrize(("table", "key"), FIGURES)
def test_figures_need_a_unit_and_a_possible_value(read: Reader, path: Path, table: str, key: str) -> None:
    unit = GOOD[table][key].split()[1]
    zero = [] if key in ("launch", "latency") else [f"0 {unit}"]
    wrong = ["80", "", "80 parsec", f"-1 {unit}", f"nan {unit}", f"inf {unit}", f"1e999 {unit}", f"{unit}", *zero]
    for value in [*wrong, 80, 80.0, True, math.nan, math.inf, -1, [80], {"value": 80}]:
        if isinstance(value, dict):
            continue
        with pytest.raises(InputError) as caught:
            read(having(table, key, value))
        assert caught.value.where == f"{path}: [{table}]: {key}", value


@pytest.mark.parametrize("key", ["nodes", "devices_per_node"])
@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, math.nan, math.inf, True, "2", [2], "2020-01-01"])
def test_counts_are_whole_and_positive(read: Reader, path: Path, key: str, value: object) -> None:
    with pytest.raises(InputError, match="not a count") as caught:
        read(having(None, key, value))
    assert caught.value.where == f"{path}: {key}"


@pytest.mark.parametrize(("table", "key"), [(None, "name"), ("device", "name"), ("device", "backend")])
@pytest.mark.parametrize("value", [1, True, "", ["x"]])
def test_texts_are_texts(read: Reader, table: str | None, key: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"{key}: not a text"):
        read(having(table, key, value))


def test_a_backend_is_one_of_two(read: Reader) -> None:
    for value in ("torch", "NumPy", "cupy "):
        with pytest.raises(InputError, match=r"\[device\]: backend: unknown backend.*numpy.*cupy"):
            read(having("device", "backend", value))


@pytest.mark.parametrize("table", ["device", "intra", "inter", "host"])
@pytest.mark.parametrize("value", [1, "text", [1], True])
def test_tables_are_tables(read: Reader, table: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"\[{table}\]: not a table"):
        read(having(None, table, value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "name =",
        "name = two-boxes",
        "nodes = 1\nnodes = 2",
        "[device]\n[device]",
        "\x00",
        f"nodes = {'9' * 5000}",
        "nodes = 2020-13-45",
        "a = " + "[" * 100_000,
    ],
    ids=range(10),
)
def test_broken_files_are_refused_with_their_path(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(str(path))):
        read_cluster(path)


def test_unreadable_files_are_refused_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.toml: no such cluster file"):
        read_cluster(tmp_path / "absent.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(InputError, match=r"latin\.toml: cannot be read"):
        read_cluster(tmp_path / "latin.toml")


def test_every_preset_reads_back(path: Path) -> None:
    for name in PRESETS:
        cluster = find_cluster(f"{name}:3")
        path.write_text(write_cluster(cluster), encoding="utf-8")
        assert find_cluster(str(path)) == cluster


POSITIVE = st.floats(1.0, 1e18, allow_nan=False)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    cluster=st.builds(
        Cluster,
        NAMES,
        st.integers(1, 10**6),
        st.integers(1, 64),
        st.builds(
            Device,
            NAMES,
            st.sampled_from(["numpy", "cupy"]),
            st.integers(1, 2**50),
            POSITIVE,
            POSITIVE,
            st.floats(0, 1),
        ),
        st.builds(Link, POSITIVE, st.floats(0, 1)),
        st.builds(Link, POSITIVE, st.floats(0, 1)),
    )
)
def test_every_cluster_reads_back(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> None:
    path = tmp_path_factory.getbasetemp() / "c.toml"
    path.write_text(write_cluster(cluster), encoding="utf-8", newline="")
    assert read_cluster(path) == cluster


@pytest.mark.parametrize("wrong", ['"fast"', "0", "-1.0", "inf", "nan", "true"])
def test_a_speedup_that_is_no_ratio_is_refused(path: Path, wrong: str) -> None:
    path.write_text(toml(GOOD).replace("launch =", f"bf16_speedup = {wrong}\nlaunch ="))
    with pytest.raises(InputError, match=r"\[device\]: bf16_speedup: not a ratio"):
        read_cluster(path)


def test_products_in_halves_are_as_fast_as_the_data_sheet_says(path: Path) -> None:
    path.write_text(toml(GOOD).replace("launch =", "fp16_speedup = 2\nlaunch ="))
    device = read_cluster(path).device
    rates = [device.product_flop_per_s(dtype) for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)]
    assert rates == [156e12, 156e12, 312e12]
    path.write_text(write_cluster(read_cluster(path)))
    assert read_cluster(path).device == device
    for name, half in (("dgx-a100", 312e12), ("dgx-h100", 989e12), ("dgx-b200", 2250e12)):
        preset = find_cluster(name).device
        assert preset.product_flop_per_s(DType.BFLOAT16) == preset.product_flop_per_s(DType.FLOAT16) == half
    old = find_cluster("v100-ib100").device
    assert old.product_flop_per_s(DType.FLOAT16) == pytest.approx(125e12)
    assert old.product_flop_per_s(DType.BFLOAT16) == old.flop_per_s


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("device", "memory", "1e300 B"),
        ("device", "memory", "9223372036854775808 B"),
        ("device", "memory_bandwidth", "1e-3 B/s"),
        ("device", "compute", "1e30 FLOP/s"),
        ("device", "launch", "1e7 s"),
        ("device", "bf16_speedup", 1e-30),
        ("intra", "latency", "1e7 s"),
        (None, "nodes", 10**30),
    ],
)
def test_what_no_plan_may_hold_is_refused(read: Reader, table: str | None, key: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"{key}: .*(out of range|possible figure)"):
        read(having(table, key, value))


def mixed_having(group: int | None, table: str | None, **values: object) -> dict[str, Any]:
    """The mixed file with other values; None takes a key away."""
    document = copy.deepcopy(MIXED)
    part = document if group is None else document["group"][group]
    part = part if table is None else part[table]
    part.update(values)
    for key in [key for key, value in part.items() if value is None]:
        del part[key]
    return document


def test_groups_of_nodes_are_read(read: Reader, path: Path) -> None:
    cluster = read(MIXED)
    first, second = cluster.groups
    assert (first.nodes, first.device.name, second.nodes, second.device.name) == (3, "A100", 2, "H100")
    assert (cluster.nodes, cluster.devices, cluster.largest_memory_bytes) == (5, 25, 80 * 2**30)
    assert cluster.device == Device("A100 + H100", "cupy", 60 * 2**30, 2039 * 1e9, 156e12, 5 * 1e-6, slowdown=0.1)
    assert cluster.intra == Link(300e9, 4 * 1e-6)
    assert cluster.host == Host(256 * 2**30, 51e9, 1e12, 31.5e9, 10 * 1e-6)
    path.write_text(write_cluster(cluster), encoding="utf-8")
    assert read_cluster(path) == cluster


def test_ranks_count_group_by_group(read: Reader) -> None:
    cluster = read(MIXED)
    assert [cluster.groups_of((rank,)) for rank in (0, 14, 15, 24)] == [(0,), (0,), (1,), (1,)]
    assert cluster.groups_of((0, 14)) == (0,)
    assert cluster.groups_of((20, 14)) == (0, 1)
    assert [one.device.name for one in cluster.types] == ["A100", "H100"]
    assert all(not one.groups and one.nodes == 5 for one in cluster.types)
    assert cluster.around(15) == cluster.types[1]
    assert cluster.memory_limit_bytes(2**40, (14,)) == 80 * 2**30
    assert cluster.memory_limit_bytes(2**40, (14, 15)) == 60 * 2**30
    assert cluster.memory_limit_bytes(2**30, (15,)) == 2**30
    assert cluster.product_flop_per_s(DType.FLOAT32) == pytest.approx((3 * 156e12 + 2 * 494e12) / 5)


def test_nodes_that_are_all_alike_have_no_groups(read: Reader) -> None:
    cluster = read(GOOD)
    assert cluster.groups_of((0, 15)) == ()
    assert cluster.types == (cluster,)
    assert cluster.around(3) is cluster
    assert cluster.memory_limit_bytes(2**50, (0,)) == 2**50
    assert "group" not in write_cluster(cluster)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({**MIXED, "nodes": 5}, "nodes: not beside groups of nodes"),
        ({**MIXED, "device": GOOD["device"]}, "device: not beside groups of nodes"),
        ({**MIXED, "intra": GOOD["intra"]}, "intra: not beside groups of nodes"),
        ({**MIXED, "host": GOOD["host"]}, "host: not beside groups of nodes"),
        ({**MIXED, "groups": 1}, r"groups: unknown key.*did you mean 'group'"),
        (mixed_having(None, None, inter=None), "inter: the key is missing"),
        (mixed_having(None, None, name=None), "name: the key is missing"),
        (mixed_having(None, None, devices_per_node=0), "devices_per_node: not a count"),
        ({**MIXED, "group": MIXED["group"][:1]}, r"\[\[group\]\]: not several tables"),
        ({**MIXED, "group": 3}, r"\[\[group\]\]: not several tables"),
        ({**MIXED, "group": [1, 2]}, r"\[\[group\]\] 1: not a table"),
        (mixed_having(0, None, nodes=0), r"\[\[group\]\] 1: nodes: not a count"),
        (mixed_having(1, None, nodes=None), r"\[\[group\]\] 2: nodes: the key is missing"),
        (
            mixed_having(1, None, device=None),
            r"\[\[group\]\] 2: device: the key is missing",
        ),
        (mixed_having(1, None, intra=None), r"\[\[group\]\] 2: intra: the key is missing"),
        (mixed_having(1, None, inter=GOOD["inter"]), r"\[\[group\]\] 2: inter: unknown key"),
        (mixed_having(1, None, devices_per_node=5), r"\[\[group\]\] 2: devices_per_node: unknown key"),
        (mixed_having(1, "device", memory="60"), r"\[\[group\]\] 2: \[device\]: memory"),
        (mixed_having(1, "device", backend="numpy"), r"\[\[group\]\]: groups of several backends.*cupy, numpy"),
        (mixed_having(1, "intra", bandwidth="fast"), r"\[\[group\]\] 2: \[intra\]: bandwidth"),
        (mixed_having(1, None, host=None), r"\[\[group\]\]: host: some groups have a host"),
    ],
)
def test_wrong_groups_are_refused_with_their_place(
    read: Reader, path: Path, document: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read(document)
    assert str(caught.value).startswith(str(path))


def test_groups_pass_through_the_host_only_where_each_has_one(read: Reader) -> None:
    inter = {**GOOD["inter"], "gpu_direct": False}
    assert not read({**MIXED, "inter": inter}).gpu_direct
    bare = [{key: value for key, value in one.items() if key != "host"} for one in MIXED["group"]]
    assert read({**MIXED, "group": bare}).host is None
    with pytest.raises(InputError, match=r"\[inter\]: gpu_direct: no host to pass through"):
        read({**MIXED, "group": bare, "inter": inter})


def test_what_every_node_has_follows_from_the_groups(read: Reader) -> None:
    cluster = read(MIXED)
    with pytest.raises(InputError, match="cluster three-and-two: not what all groups of nodes have at least"):
        dataclasses.replace(cluster, device=cluster.groups[0].device)
    with pytest.raises(InputError, match="not what all groups"):
        dataclasses.replace(cluster, nodes=6)


@settings(max_examples=30)
@given(
    groups=st.lists(
        st.builds(
            AlikeNodes,
            st.integers(1, 10**6),
            st.builds(Device, NAMES, st.just("cupy"), st.integers(1, 2**50), POSITIVE, POSITIVE, st.floats(0, 1)),
            st.builds(Link, POSITIVE, st.floats(0, 1)),
        ),
        min_size=2,
        max_size=4,
    ),
    inter=st.builds(Link, POSITIVE, st.floats(0, 1)),
)
def test_every_mixed_cluster_reads_back(
    tmp_path_factory: pytest.TempPathFactory, groups: list[AlikeNodes], inter: Link
) -> None:
    cluster = of_groups("mixed", 4, groups, inter)
    path = tmp_path_factory.getbasetemp() / "mixed.toml"
    path.write_text(write_cluster(cluster), encoding="utf-8", newline="")
    assert read_cluster(path) == cluster


def test_the_files_of_the_guide_are_read(path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text(encoding="utf-8")
    alike, several = re.findall(r"^```toml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    path.write_text(alike, encoding="utf-8")
    assert read_cluster(path).devices == 16
    path.write_text(several, encoding="utf-8")
    assert [one.device.name for one in read_cluster(path).groups] == ["A100-SXM4-80GB", "H100-SXM5-80GB"]


@pytest.mark.parametrize("level", ["intra", "inter"])
def test_a_link_says_whether_it_overlaps(read: Reader, level: str) -> None:
    assert getattr(read(GOOD), level).overlaps is None
    for said in (True, False):
        found = read(having(level, "overlaps", said))
        assert getattr(found, level).overlaps is said
        assert tomllib.loads(write_cluster(found))[level]["overlaps"] is said
    with pytest.raises(InputError, match="overlaps: neither true nor false"):
        read(having(level, "overlaps", "yes"))
