"""The sources' figures come out of the simulation as printed, and move the right way with links, sizes and ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from experiments.published import exchange_figures, job_figures, pipeline_figures
from experiments.published.source_figure import SourceFigure, falling, near
from experiments.published.sources import as_table
from simulator.exchange.fabric import rdma_nvlink, rdma_pcie, tcp_cloud


@cache
def usual_four_nodes() -> list[SourceFigure]:
    return exchange_figures.four_nodes()


QUICK = {
    "jobs": job_figures.job_figures,
    "pipelines": pipeline_figures.pipeline_figures,
    "Horovod": lambda: [exchange_figures.horovod_at_scale()],
    "four nodes": usual_four_nodes,
    "negotiation": lambda: [exchange_figures.negotiation()],
    "barrier": lambda: [exchange_figures.barrier()],
    "saturation": lambda: [exchange_figures.saturation()],
    "BytePS": lambda: [exchange_figures.summation()],
    "BERT": lambda: [exchange_figures.bert_at_scale()],
    "tables": lambda: [exchange_figures.tables()],
}


def values(figure: SourceFigure) -> list[float]:
    return list(figure.simulated.values())


@pytest.mark.parametrize("name", QUICK)
def test_figures_are_as_published(name: str) -> None:
    found = QUICK[name]()
    assert found
    assert all(figure.within for figure in found), as_table(found)


@pytest.mark.long
def test_figures_of_tuning_are_as_published() -> None:
    found = [exchange_figures.tuner(), exchange_figures.growth()]
    assert all(figure.within for figure in found), as_table(found)


def test_horovod_scales_better_over_faster_links_and_worse_over_more_nodes() -> None:
    usual = rdma_pcie(128, 25, gpus_per_node=4)
    found = values(exchange_figures.horovod_at_scale(usual))
    faster = values(exchange_figures.horovod_at_scale(rdma_pcie(128, 50, gpus_per_node=4)))
    wider = values(exchange_figures.horovod_at_scale(replace(usual, nodes=512)))
    assert all(more > 0.999 * own > less for more, own, less in zip(faster, found, wider, strict=True))
    assert faster[2] - found[2] > 0.1, "VGG-16 is bound by its links"


@pytest.mark.long
def test_gains_over_horovod_shrink_where_one_connection_takes_all_and_links_are_fast() -> None:
    fast = tcp_cloud(4, 100)
    easy = exchange_figures.four_nodes(replace(fast, flow_bytes_per_s=fast.nic_bytes_per_s))
    assert easy[1].simulated["mean"] < 0.75 * usual_four_nodes()[1].simulated["mean"]


def test_a_coordinator_has_as_many_messages_as_ranks_twice() -> None:
    few, many = (exchange_figures.negotiation(tcp_cloud(nodes, 25)).simulated for nodes in (10, 160))
    assert (few["at the root"], many["at the root"]) == (158, 2558)
    assert many["ms at the root"] > 15 * few["ms at the root"]
    assert many["ms without"] < 2 * few["ms without"]


@pytest.mark.long
def test_gains_of_summation_shrink_as_the_network_grows_faster() -> None:
    slow, fast = ((tcp_cloud(8, rate), rdma_pcie(8, 5 * rate, gpus_per_node=8)) for rate in (10, 20))
    (vgg_slow, resnet_slow), (vgg_fast, resnet_fast) = (
        values(exchange_figures.summation(fabrics))[:2] for fabrics in (slow, fast)
    )
    assert resnet_slow > 2 * resnet_fast
    assert vgg_slow > 0.99 * vgg_fast, "bound by either network, so that the gain stays what it is"


@pytest.mark.long
def test_bert_scales_worse_over_slower_links() -> None:
    fast, slow = (values(exchange_figures.bert_at_scale(rdma_nvlink(32, rate))) for rate in (200, 50))
    assert all(less < more - 0.02 for less, more in zip(slow, fast, strict=True))


def test_a_faster_gpu_takes_less_time_for_tables() -> None:
    old, new = (values(exchange_figures.tables(gpu)) for gpu in ("V100-16", "A100-80"))
    assert all(fast < slow for fast, slow in zip(new, old, strict=True))


@pytest.mark.long
def test_a_trillion_parameters_want_their_nics_and_more_gpus_take_fewer_days() -> None:
    usual, starved = (job_figures.trillion(share).simulated["HFU"] for share in (1.0, 0.25))
    assert starved < usual
    assert job_figures.trillion(pp=32).simulated["HFU"] != usual
    assert job_figures.month(2048).simulated["days"] < 0.6 * job_figures.month(1024).simulated["days"]


def test_near_and_falling_judge_as_they_say() -> None:
    assert near({"a": 1.05}, {"a": 1.0}, 0.0501)
    assert not near({"a": 1.06}, {"a": 1.0}, 0.05)
    assert falling([3, 2, 1])
    assert not falling([3, 3, 1])


def test_the_table_says_what_is_outside() -> None:
    text = as_table([SourceFigure("bubble", "someone", "3", "exact", {"it": 4.0}, within=False)])
    assert text.splitlines()[0].startswith("OUTSIDE  bubble")
    assert "it 4" in text
