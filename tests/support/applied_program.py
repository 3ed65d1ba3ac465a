"""Runs an exported program of DTensor or JAX: one training step of a small model, against the same on one device.

    python -m tests.support.applied_program dtensor|jax CASE FOLDER

writes FOLDER/found.json: the largest error of a variable after the step, what was counted and what the plan says.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.op_validation.pieces import error_of
from strategy.exports.step_layouts import written_program
from strategy.graph.graph import Graph, Op, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.half_precision import run_act
from strategy.models import Model
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig
from strategy.models.mlp import MlpConfig
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.sbp import local_box
from strategy.sbp.tensor import box_shape
from tests.support.reference import run_graph, start_variables
from tests.support.small_plans import config_of, deduced_plan, request

Array = npt.NDArray[Any]

MODELS: dict[str, Model] = {
    "mlp": MlpConfig(layers=2, features=8, width=16, classes=8),
    "gpt": GptConfig(layers=1, width=16, heads=4, sequence=8, vocabulary=32),
    "experts": DecoderConfig(
        1, 16, 4, 4, 4, 32, 8, 32, sparse=(1,), experts=4, choices=2, expert_hidden=16
    ),
}  # fmt: skip
MESHES: dict[str, dict[int, dict[str, int]]] = {
    "mlp": {4: {"dp": 2, "tp": 2}, 8: {"dp": 2, "tp": 4}},
    "gpt": {4: {"dp": 2, "tp": 2}, 8: {"dp": 2, "tp": 4}},
    "experts": {4: {"dp": 2, "ep": 2, "tp": 2}, 8: {"dp": 4, "ep": 2, "tp": 2}},
}
TRAINING = Training(global_batch=8, optimizer=Optimizer.SGD)


def plan_of(case: str, ranks: int) -> Plan:
    """By rules of data, expert and tensor parallelism."""
    asked = request(ranks, TRAINING, model=MODELS[case])
    config = config_of(TRAINING, **MESHES[case][ranks])
    return deduced_plan(asked, config, config.axes)


def loaded(plan: Plan, to: str, folder: Path) -> ModuleType:
    """The exported program."""
    path = folder / f"{to}_{os.getpid()}.py"
    path.write_text(written_program(plan, to))
    spec = importlib.util.spec_from_file_location("layouts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start_of(plan: Plan) -> tuple[dict[str, Array], dict[str, Array]]:
    """Variables and inputs, drawn."""
    rng, graph = np.random.default_rng(7), plan.graph
    variables = start_variables(graph, rng)
    inputs = {}
    for value in graph.with_role(Role.INPUT):
        most = getattr(plan.model, "vocabulary", getattr(plan.model, "classes", 0))
        is_float = value.spec.dtype.is_float
        drawn = rng.standard_normal(value.spec.shape) if is_float else rng.integers(0, most, value.spec.shape)
        inputs[value.name] = np.asarray(drawn, value.spec.dtype.numpy)
    return variables, inputs


def local(graph: Graph, plan: Plan, op: Op, coords: tuple[int, ...]) -> Callable[[Sequence[Array]], list[Array]]:
    """The op on the pieces of one rank, by its own meaning: outputs, then what it updates."""
    signature, mesh = plan.layout.signatures[op.name], plan.config.mesh

    def boxes(names: Sequence[str], layouts: Sequence[Any]) -> list[Any]:
        return [local_box(s.shape, nd, mesh, coords) for s, nd in zip(graph.specs(names), layouts, strict=True)]

    input_boxes, output_boxes = boxes(op.inputs, signature.inputs), boxes(op.outputs, signature.outputs)

    def function(pieces: Sequence[Array]) -> list[Array]:
        read: list[Any] = []
        for spec, box, piece in zip(graph.specs(op.inputs), input_boxes, pieces, strict=False):
            held: Any = np.array(piece, order="C")
            if spec.ragged is not None:
                held = piece_of(np, spec, box)
                held.hold_dense(np.asarray(piece))
            read.append(held)
        updates = tuple(np.array(piece, order="C") for piece in pieces[len(op.inputs) :])
        outputs = tuple(piece_of(np, s, box) for s, box in zip(graph.specs(op.outputs), output_boxes, strict=True))
        call = Call(np, op.attrs, tuple(read), outputs, updates, tuple(input_boxes), tuple(output_boxes), Workspace(np))
        call.first_of_piece = True
        run_act(op_definition(op.kind), call)
        return [*(one.dense() if isinstance(one, Rows) else one for one in outputs), *updates]

    return function


def shapes_of(graph: Graph, plan: Plan, op: Op) -> list[tuple[tuple[int, ...], Any]]:
    """Local shape and dtype of what an op writes and updates."""
    signature, mesh = plan.layout.signatures[op.name], plan.config.mesh
    names, layouts = (*op.outputs, *op.updates), (*signature.outputs, *signature.updates)
    zeros = (0,) * len(mesh)
    return [
        (box_shape(local_box(spec.shape, nd, mesh, zeros)), spec.dtype.numpy)
        for spec, nd in zip(graph.specs(names), layouts, strict=True)
    ]


def on_rank(case: str, folder: Path, rank: int) -> None:
    """One of four gloo processes."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.debug import CommDebugMode

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    plan = plan_of(case, 4)
    graph, layouts = plan.graph, loaded(plan, "dtensor", folder)
    variables, inputs = start_of(plan)
    wanted = {name: array.copy() for name, array in variables.items()}
    run_graph(graph, [inputs], wanted)
    mesh = layouts.device_mesh("cpu")
    state = layouts.distributed({name: torch.from_numpy(a) for name, a in variables.items()}, mesh)
    step = layouts.TorchStep(mesh, state, {name: torch.from_numpy(a) for name, a in inputs.items()})
    coords = tuple(int(one) for one in np.unravel_index(rank, plan.config.mesh))
    with CommDebugMode() as counted:
        for op in graph.ops:
            run = local(graph, plan, op, coords)
            step.run(op.name, lambda *read, run=run: [torch.from_numpy(a) for a in run([t.numpy() for t in read])])
    counts = {str(kind).rpartition(".")[2]: count for kind, count in counted.get_comm_counts().items() if count}
    error = max(error_of(step.known[name, *step.home[name]].full_tensor().numpy(), wanted[name]) for name in variables)
    if rank == 0:
        said = {"error": error, "counted": counts, "said": dict(layouts.collectives())}
        (folder / "found.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def over_devices(case: str, folder: Path) -> None:
    """One process with eight devices of the host."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import jax

    plan = plan_of(case, 8)
    graph, layouts = plan.graph, loaded(plan, "jax", folder)
    variables, inputs = start_of(plan)
    wanted = {name: array.copy() for name, array in variables.items()}
    run_graph(graph, [inputs], wanted)
    mesh = layouts.device_mesh()
    names = list(variables)
    specs = {
        n: layouts.spec_of(layouts.PLAN["state"][n], variables[n].ndim) for n in names if n in layouts.PLAN["state"]
    }
    axes = tuple(axis for axis, parts in zip(plan.config.axes, plan.config.mesh, strict=True) if parts > 1)

    def of_step(state: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
        step = layouts.JaxStep(state, batch)
        for op in graph.ops:
            shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes_of(graph, plan, op)]
            place = [jax.lax.axis_index(axis) for axis in axes]

            def on_host(coords: Any, *read: Any, op: Op = op) -> tuple[Array, ...]:
                found = iter(int(one) for one in coords)
                full = tuple(next(found) if parts > 1 else 0 for parts in plan.config.mesh)
                return tuple(local(graph, plan, op, full)([np.asarray(a) for a in read]))

            def function(*read: Any, shapes: Any = shapes, on_host: Any = on_host, place: Any = place) -> Any:
                return jax.pure_callback(on_host, tuple(shapes), jax.numpy.stack(place), *read)

            step.run(op.name, function)
        return {name: step.known[name, *step.home[name]] for name in state}

    state = {name: variables[name] for name in specs}
    whole = {name: jax.sharding.PartitionSpec() for name in inputs}
    mapped = jax.shard_map(of_step, mesh=mesh, in_specs=(specs, whole), out_specs=specs, check_vma=False)
    text = str(jax.make_jaxpr(mapped)(state, inputs))
    kinds = {"psum": "all_reduce", "pmax": "all_reduce", "pmin": "all_reduce", "all_gather": "all_gather",
             "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all"}  # fmt: skip
    counts: dict[str, int] = {}
    for word, kind in kinds.items():
        number = text.count(f" {word}[")
        if number:
            counts[kind] = counts.get(kind, 0) + number
    found = jax.jit(mapped)(state, inputs)
    error = max(error_of(np.asarray(found[name]), wanted[name]) for name in state)
    said = {"error": error, "counted": counts, "said": dict(layouts.collectives())}
    (folder / "found.json").write_text(json.dumps(said))


def main(to: str, case: str, folder: Path, rank: str = "") -> None:
    """Run it."""
    if to == "jax":
        over_devices(case, folder)
    elif rank:
        on_rank(case, folder, int(rank))
    else:
        words = [sys.executable, "-m", "tests.support.applied_program", to, case, str(folder)]
        ranks = [subprocess.Popen([*words, str(number)]) for number in range(4)]
        codes = [one.wait(timeout=240) for one in ranks]
        assert codes == [0] * 4, codes


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
