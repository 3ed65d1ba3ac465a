"""Modules on global tensors: their parameters, as the world holds them."""

from __future__ import annotations

from executor.frontend.global_tensor.tensor import GlobalTensor
from executor.frontend.world import current_world
from executor.runtime.initialize import initial_piece
from strategy.base.errors import InputError
from strategy.graph.graph import Role, Value
from strategy.nn.module import Module, Parameter
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B
from strategy.sbp.tensor import DType, Rate, TensorSpec


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
