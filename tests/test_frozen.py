"""Parameters that nothing updates: they stay as they are, in every layout, and evaluation is made of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from executor.data.synthetic import BatchLoader
from executor.runtime.initialize import initial_piece
from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.loopback import LoopbackHub
from executor.runtime.worker import Worker
from simulator.simulate import simulate
from strategy.base.errors import InputError, SbpError
from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Phase, Role, deciding_op
from strategy.graph.ops import REGISTRY
from strategy.graph.signature import op_signatures
from strategy.layout.arrangement import Pipeline
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Layout, assign_stages, home_of
from strategy.lowering.lower import lower
from strategy.passes.training import REPORT, Training, evaluation_graph, training_graph
from strategy.plan.plan import document, plan_text, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.program.protocol import admit
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import Split, has_partial, local_box
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import batches, on_one_device
from tests.support.long_parameters import long_but
from tests.support.reference import run_graph
from tests.support.small_plans import MODEL, cluster, config_of, corpus, deduced_plan, request, train

Array = npt.NDArray[Any]
TRAINING = Training(global_batch=4, num_micro_batches=2, dtype=DType.FLOAT64)


def fine_tuning(**settings: Any) -> Training:
    return Training(4, 2, dtype=DType.FLOAT64, frozen=("token", "layers.0.*"), **settings)


def test_frozen_parameters_have_neither_gradient_nor_moments_nor_a_part_in_the_norm() -> None:
    graph = training_graph(MODEL, fine_tuning())
    names = [value.name for value in graph.with_role(Role.VARIABLE)]
    still = [name for name in names if name == "token" or name.startswith("layers.0.")]
    assert all(name not in graph.updater and ":" not in name for name in still)
    assert {op.updates[0] for op in graph.ops if op.kind == "adamw"} == {n for n in names if ":" not in n} - set(still)
    assert not any(op.kind == "matmul_tn" and op.layer == 0 for op in graph.ops), "a gradient that nobody wants"
    assert not any(op.name.startswith("embed:") for op in graph.ops)


def test_what_lies_below_all_trained_parameters_has_no_backward_pass() -> None:
    graph = training_graph(MODEL, Training(4, frozen=("token", "position", "layers.*")))
    backward = [op.kind for op in graph.ops if op.phase is Phase.BACKWARD]
    assert len(backward) <= 4, backward


@pytest.mark.parametrize("degrees", long_but([{"dp": 2}, {"tp": 2}, {"tp": 2, "pp": 2}, {"dp": 2, "pp": 2}], 2))
def test_fine_tuning_leaves_them_alone_and_trains_the_rest_alike(degrees: dict[str, int]) -> None:
    training = fine_tuning()
    ranks = int(np.prod(list(degrees.values())))
    plan = deduced_plan(request(ranks, training), config_of(training, **degrees), ("samples split", "tensor"))
    assert verify(plan) == []
    trained = train(plan, corpus(MODEL.vocabulary), steps=2)
    start, _ = on_one_device(plan, steps=0)
    wanted, losses = on_one_device(plan, steps=2)
    assert [report.loss for report in trained.reports] == pytest.approx(losses, rel=1e-9)
    held = set()
    for trainer in trained.trainers:
        for piece in trainer.owned_pieces():
            index = tuple(slice(begin, end) for begin, end in piece.box)
            np.testing.assert_allclose(piece.array, wanted[piece.name][index], rtol=1e-9, atol=1e-12)
            held.add(piece.name)
            if piece.name == "token" or piece.name.startswith("layers.0."):
                np.testing.assert_array_equal(piece.array, start[piece.name][index])
    assert held == {value.name for value in plan.graph.with_role(Role.VARIABLE)}


def test_a_plan_with_frozen_parameters_is_read_as_it_was_written(tmp_path: Any) -> None:
    training = fine_tuning()
    plan = deduced_plan(request(2, training), config_of(training, tp=2), ("data", "tensor"))
    write_plan(plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again.training == training
    assert plan_text(again) == plan_text(plan)
    assert document(plan)["training"]["frozen"] == ("token", "layers.0.*")


def test_a_frozen_home_is_never_partial() -> None:
    graph = training_graph(MODEL, fine_tuning())
    for value in graph.with_role(Role.VARIABLE):
        op = deciding_op(graph, value.name)
        assert op is not None
        position = op.inputs.index(value.name) if value.name in op.inputs else None
        if position is not None and value.name not in graph.updater:
            assert not any(has_partial(s.inputs[position]) for s in op_signatures(graph, op, (2, 2)))


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (("tokem",), r"frozen: a pattern matches no parameter \(got 'tokem'\); did you mean 'token'"),
        (("*",), r"frozen: nothing is trained"),
    ],
)
def test_patterns_that_leave_nothing_or_match_nothing_are_refused(frozen: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        training_graph(MODEL, Training(4, frozen=frozen))


def laid_out_at_random(graph: Graph, seed: int) -> tuple[Layout, Converter, tuple[Placement, ...]]:
    rng = random.Random(seed)
    placements = tuple(Placement((2 * s, 2 * s + 1), (2,), ("tensor",)) for s in range(2))
    converter = Converter(CostModel(cluster(4), {}), placements)
    stages = assign_stages(graph, placements)
    while True:
        drawn = {op.name: rng.choice(op_signatures(graph, op, stages.placement(op.name).mesh)) for op in graph.ops}
        try:
            return lay_out(graph, stages, drawn, converter), converter, placements
        except SbpError:
            continue


@pytest.mark.parametrize("seed", range(4))
def test_evaluation_over_two_stages_reports_the_loss_of_one_device_every_step(seed: int) -> None:
    graph = evaluation_graph(MODEL, TRAINING)
    assert not any(op.updates for op in graph.ops)
    layout, _, placements = laid_out_at_random(graph, seed)
    pipeline = Pipeline(TRAINING.num_micro_batches)
    program = lower(graph, layout, pipeline, CostModel(cluster(4), {}))
    admit(program)
    assert simulate(program, steps=3).timeline.records
    hub = LoopbackHub(4, lanes_of(program))
    found = run_on_threads(graph, layout, placements, program, hub, steps=3)
    plan = deduced_plan(request(1, TRAINING), config_of(TRAINING), ("data", "tensor"))
    variables, _ = on_one_device(plan, steps=0)
    for step, reported in enumerate(found):
        assert (reported == found[0]).all() == (step == 0), "every step sees another batch"
        wanted = run_graph(graph, batches(plan, step), {n: variables[n] for n in variables if ":" not in n})[REPORT]
        np.testing.assert_allclose(reported, wanted, rtol=1e-9)


def run_on_threads(
    graph: Graph, layout: Layout, placements: tuple[Placement, ...], program: Any, hub: LoopbackHub, *, steps: int
) -> list[Array]:
    """The reports of every step, by workers that hold the pieces that the layout says."""
    import threading

    shapes = {value.name: value.spec.shape for value in graph.with_role(Role.INPUT)}
    home = home_of(graph, layout.stages, layout.signatures, REPORT)
    assert home is not None
    reports: list[Array] = []

    def drive(rank: int) -> None:
        try:
            loader = BatchLoader(MODEL.batch, shapes, corpus(MODEL.vocabulary), seed=0, num_micro_batches=2)
            tells = rank == placements[home.stage].devices[0]
            worker = Worker(
                program,
                graph,
                rank,
                hub.transport(rank),
                open_kernels("numpy"),
                REGISTRY,
                loader,
                reports=(REPORT,) if tells else (),
                hooks=hooks(reports) if tells else None,
            )
            for value in graph.with_role(Role.VARIABLE):
                where = home_of(graph, layout.stages, layout.signatures, value.name)
                assert where is not None
                placement = placements[where.stage]
                if rank in placement.devices:
                    box = local_box(value.spec.shape, where.layout, placement.mesh, placement.coords(rank))
                    worker.write(value.name, initial_piece(value, box, seed=0))
            worker.run(steps=steps)
        except BaseException as failure:  # noqa: BLE001 - whatever ends one rank ends all
            hub.poison(failure)

    threads = [threading.Thread(target=drive, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if hub.failure is not None:
        raise hub.failure
    return reports


def hooks(reports: list[Array]) -> Any:
    from executor.runtime.hooks import Hooks

    return Hooks(on_step=lambda step, told: reports.append(told[REPORT]))


def test_splits_of_frozen_weights_are_real() -> None:
    """Some of the random layouts split a frozen weight, so that ranks hold pieces of it."""
    graph = evaluation_graph(MODEL, TRAINING)
    split = 0
    for seed in range(4):
        layout, _, _ = laid_out_at_random(graph, seed)
        for value in graph.with_role(Role.VARIABLE):
            home = home_of(graph, layout.stages, layout.signatures, value.name)
            split += home is not None and any(isinstance(sbp, Split) for sbp in home.layout)
    assert split >= 8
