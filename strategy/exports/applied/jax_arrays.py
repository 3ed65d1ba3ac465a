"""A plan's layouts for JAX: every op of a step reads and writes as the plan says, inside `jax.shard_map`.

`spec_of` is the PartitionSpec of what lives from step to step, for `jax.device_put`, `jax.jit` and `jax.shard_map`.
`JaxStep` holds the values of a step on one device of the mesh. `run` brings what an op reads to the layouts that it
wants, by the chains of conversions that the plan has, one collective each, and calls a function on the local arrays.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, PartitionSpec

PLAN: Any = json.loads("{}")
"""`mesh`, `state`, `ops` (what each reads, writes and updates, with layouts), `steps` (value -> layout -> chain)."""


def device_mesh() -> Mesh:
    """The plan's mesh over the first devices, its axes by their names."""
    shape = tuple(PLAN["mesh"].values())
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), tuple(PLAN["mesh"]))


def spec_of(layout: Sequence[str], rank: int) -> PartitionSpec:
    """A layout without terms as JAX writes it: for each of `rank` dims the mesh axes that split it, outermost first."""
    axes: list[list[str]] = [[] for _ in range(rank)]
    for axis, sbp in zip(PLAN["mesh"], layout, strict=True):
        if sbp.startswith("S("):
            axes[_dim(sbp)].append(axis)
    return PartitionSpec(*(tuple(names) or None for names in axes))


def _dim(sbp: str) -> int:
    return int(sbp[2:-1])


class JaxStep:
    """Values of one step on one device: local arrays of the state as it lies, inputs whole."""

    def __init__(self, state: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]) -> None:
        self.inputs = inputs
        self.known = {(name, *PLAN["state"][name]): array for name, array in state.items()}
        self.home = {name: tuple(PLAN["state"][name]) for name in state}

    def read(self, name: str, layout: Sequence[str]) -> jax.Array:
        """A value in a layout; a conversion is done once."""
        key = (name, *layout)
        if key in self.known:
            return self.known[key]
        if name in self.inputs:
            found = converted(self.inputs[name], ["B"] * len(layout), layout)
        else:
            found, have = self.known[(name, *self.home[name])], self.home[name]
            for target in PLAN["steps"][name][" ".join(layout)]:
                found, have = converted(found, have, target), target
        self.known[key] = found
        return found

    def run(self, op: str, function: Callable[..., Sequence[jax.Array]]) -> None:
        """Run an op: `function` takes the local arrays that it reads and updates, and gives those that it writes."""
        entry = PLAN["ops"][op]
        read = [self.read(name, layout) for name, layout in (*entry["reads"], *entry["updates"])]
        for (name, layout), local in zip((*entry["writes"], *entry["updates"]), function(*read), strict=True):
            self.home[name] = tuple(layout)
            self.known[(name, *layout)] = local


def converted(array: jax.Array, have: Sequence[str], want: Sequence[str]) -> jax.Array:
    """A local array in another layout: terms are summed and pieces joined from the inner axis on, then cut."""
    steps = list(zip(PLAN["mesh"].items(), have, want, strict=True))
    for (axis, _), before, after in reversed(steps):
        if before != after and before != "B":
            array = _left(array, axis, before, after)
    for (axis, size), before, after in steps:
        if before == "B" != after:
            array = _entered(array, axis, size, after)
    return array


def _left(array: jax.Array, axis: str, before: str, after: str) -> jax.Array:
    if before.startswith("P("):
        if after.startswith("S(") and before == "P(sum)":
            return lax.psum_scatter(array, axis, scatter_dimension=_dim(after), tiled=True)
        whole = {"P(sum)": lax.psum, "P(max)": lax.pmax, "P(min)": lax.pmin}[before](array, axis)
        return whole if after == "B" else _entered(whole, axis, PLAN["mesh"][axis], after)
    if after.startswith("S("):
        return lax.all_to_all(array, axis, _dim(after), _dim(before), tiled=True)
    if after == "P(sum)":
        dim, rows = _dim(before), array.shape[_dim(before)]
        shape = (*array.shape[:dim], rows * PLAN["mesh"][axis], *array.shape[dim + 1 :])
        return lax.dynamic_update_slice_in_dim(jnp.zeros(shape, array.dtype), array, lax.axis_index(axis) * rows, dim)
    whole = lax.all_gather(array, axis, axis=_dim(before), tiled=True)
    return whole if after == "B" else _entered(whole, axis, PLAN["mesh"][axis], after)


def _entered(array: jax.Array, axis: str, size: int, after: str) -> jax.Array:
    place = lax.axis_index(axis)
    if after.startswith("S("):
        rows = array.shape[_dim(after)] // size
        return lax.dynamic_slice_in_dim(array, place * rows, rows, _dim(after))
    return array if after != "P(sum)" else jnp.where(place == 0, array, jnp.zeros_like(array))


def collectives() -> Counter[str]:
    """How many of each kind a step has, by the plan."""
    return Counter(kind for chains in PLAN["kinds"].values() for chain in chains.values() for kind in chain)
