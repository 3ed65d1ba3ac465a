"""Modules on global tensors: their parameters, as the world holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from executor.frontend.global_tensor.creation import from_numpy
from executor.frontend.global_tensor.tensor import GlobalTensor
from executor.frontend.world import current_world
from executor.runtime.initialize import initial_piece
from strategy.base.errors import InputError, did_you_mean, report
from strategy.graph.graph import Role, Value
from strategy.nn.module import Module, Parameter
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B
from strategy.sbp.tensor import DType, Rate, Shape, TensorSpec


def materialize(
    module: Module,
    *,
    placement: Placement,
    seed: int = 0,
    dtype: DType = DType.FLOAT32,
    name: str = "",
) -> None:
    """Give every parameter of a module its first value, whole on every rank of a placement.

    `name` comes before the names of the parameters, on which their values depend. Parameters that have a value keep it.
    """
    world = current_world()
    world.check(placement)
    layout = (B,) * len(placement.mesh)
    for path, parameter in module.parameters(name):
        if parameter not in world.state:
            spec = TensorSpec(parameter.shape, dtype)
            value = Value(path, spec, Rate.STEP, Role.VARIABLE, parameter.init)
            world.agree(f"materialize({path} {dtype}{list(spec.shape)} on {placement})")
            whole = tuple((0, size) for size in spec.shape)
            piece = initial_piece(value, whole, seed=seed) if world.rank in placement.devices else None
            world.state[parameter] = GlobalTensor(spec, placement, layout, piece, world, is_state=True)


def value_of(parameter: Parameter) -> GlobalTensor:
    """The value of a parameter in the current world.

    Raises:
        InputError: it has none yet.
    """
    world = current_world()
    if parameter not in world.state:
        raise InputError("the parameter has no value yet", got=parameter, hint="run a graph, or materialize the module")
    found: GlobalTensor = world.state[parameter]
    return found


def assign(parameter: Parameter, value: GlobalTensor) -> None:
    """Write a new value into a parameter's memory, which graphs that hold it share; its layout stays.

    Raises:
        InputError: the parameter has no value yet, or one of another shape or dtype.
        RunError: the ranks do not assign the same.
    """
    held = value_of(parameter)
    if value.spec != held.spec:
        raise InputError("a parameter of another type", where="assign", got=str(value), expected=str(held))
    write(held, value)


def write(held: GlobalTensor, value: GlobalTensor | NDArray[Any]) -> None:
    """Write a value into the memory of a tensor of its shape, as that lies: a tensor, or an array all ranks have."""
    if not isinstance(value, GlobalTensor):
        value = from_numpy(value.astype(held.dtype.numpy), placement=held.placement, sbp=held.sbp)
    moved = value.to_global(placement=held.placement, sbp=held.sbp)
    held.settle()
    if held.piece is not None:
        held.piece[...] = moved.piece


def state_dict(module: Module) -> dict[str, GlobalTensor]:
    """The parameters of a module that have a value, by name; they share its memory."""
    state = current_world().state
    return {name: state[parameter] for name, parameter in module.parameters() if parameter in state}


def load_state_dict(module: Module, state: Mapping[str, GlobalTensor | NDArray[Any]]) -> None:
    """Give all parameters of a module other values: global tensors, or arrays that every rank has the whole of.

    Raises:
        InputError: a name is missing or unknown, or a shape is another, all of it at once; or there is no value yet.
    """
    named = dict(module.parameters())
    report(state_problems({name: p.shape for name, p in named.items()}, state), where="state")
    for name, parameter in named.items():
        write(value_of(parameter), state[name])


def state_problems(shapes: Mapping[str, Shape], state: Mapping[str, GlobalTensor | NDArray[Any]]) -> list[InputError]:
    """What is wrong with a state for tensors of these names and shapes."""
    missing = [InputError("nothing is given for it", where=name) for name in shapes if name not in state]
    unknown = [
        InputError("there is no such tensor", where=name, hint=did_you_mean(name, shapes))
        for name in state
        if name not in shapes
    ]
    both = [name for name in shapes if name in state and tuple(state[name].shape) != tuple(shapes[name])]
    wrong = [
        InputError("another shape", where=n, got=tuple(state[n].shape), expected=str(tuple(shapes[n]))) for n in both
    ]
    return [*missing, *unknown, *wrong]
