"""A key-value store, as MXNet's: every gradient is a key of its own, pushed to a server that sums it up, and pulled.

Li et al. 2014 (parameter server) and MXNet's `dist_sync` store: every node is worker and server. A node's GPUs are
reduced first. Keys up to `split_elements` elements live on one server, so that n - 1 nodes send to it at once; larger
ones are cut over all. Nothing is fused. A layer of the next step waits for its own keys alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.exchange.collectives import BRIDGE, GPU_IN, GPU_OUT
from simulator.exchange.fabric import Fabric
from simulator.exchange.loop import LinkGroup, Side
from simulator.exchange.training import Exchange, Task
from strategy.base.units import to_ns

_HOST_RATE = 1e9
"""A host is a link that moves its nanoseconds of work."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """`split_elements` is MXNet's MXNET_KVSTORE_BIGARRAY_BOUND."""

    split_elements: int = 1_000_000

    @property
    def barrier(self) -> bool:
        """MXNet's engine orders acts by what they read and write."""
        return False

    def links(self, fabric: Fabric) -> Mapping[str, LinkGroup]:
        """Every node for itself: servers differ in the keys that they have."""
        inside = {name: LinkGroup(fabric.inside_bytes_per_s, side, fabric.ranks) for name, side in _INSIDE.items()}
        inside[BRIDGE] = LinkGroup(fabric.bridge_bytes_per_s)
        per_node = {
            "out": LinkGroup(fabric.nic_bytes_per_s, Side.OUT, far=True),
            "in": LinkGroup(fabric.nic_bytes_per_s, Side.IN, far=True),
            **{thread: LinkGroup(fabric.thread_bytes_per_s) for thread in _THREADS},
            "host": LinkGroup(_HOST_RATE),
        }
        return inside | {f"{name} {node}": link for node in range(fabric.nodes) for name, link in per_node.items()}

    def start(self, task: Task) -> Exchange:
        """Deal out the keys to the servers."""
        return _KeyValue(task, self.split_elements)


_INSIDE = {GPU_OUT: Side.OUT, GPU_IN: Side.IN}
_ADD_PASSES, _UPDATE_PASSES = 3, 5
"""Times that a server's one thread moves what it adds (both terms and the sum) and updates (with a momentum)."""
_THREADS = ("worker", "server")
"""A node's two processes: all connections of each are one thread's, which sends and receives."""


class _KeyValue:
    def __init__(self, task: Task, split_elements: int) -> None:
        self._task = task
        self._split_bytes = 4 * split_elements

    def ready(self, gradient: int) -> None:
        """Reduce inside the nodes, push, add up and update, pull, broadcast inside the nodes."""
        task = self._task
        nbytes, nodes = task.nbytes[gradient], task.fabric.nodes
        # A multiplicative hash deals small keys out to the servers.
        owner = [gradient * 9973 % nodes] if nbytes <= self._split_bytes else range(nodes)
        shards = {server: (nbytes + place) // len(owner) for place, server in enumerate(owner)}
        hop_ns = to_ns(task.fabric.network_hop_s) if nodes > 1 else 0
        task.tally.data_messages += 2 * (nodes - 1) * len(owner) + 2 * nodes * (task.fabric.gpus_per_node - 1)
        sequence = [
            (self._inside(nbytes), 0),
            (self._across(shards, {"out": "in", "worker": "server"}), hop_ns),
            ({f"host {server}": self._summing_ns(shard) for server, shard in shards.items()}, 0),
            (self._across(shards, {"in": "out", "worker": "server"}), hop_ns),
            (self._inside(nbytes), 0),
        ]

        def go(place: int) -> None:
            if place == len(sequence):
                task.exchanged(gradient)
            else:
                task.loop.transfer(*sequence[place], lambda: go(place + 1))

        go(0)

    def _inside(self, nbytes: int) -> dict[str, int]:
        return {name: nbytes if self._task.fabric.gpus_per_node > 1 else 0 for name in (*_INSIDE, BRIDGE)}

    def _across(self, shards: Mapping[int, int], ends: Mapping[str, str]) -> dict[str, int]:
        """Every node exchanges every shard with its server; `ends` are kinds of links at the node -> at the server."""
        nodes, whole = self._task.fabric.nodes, sum(shards.values())
        found: dict[str, int] = {}
        for theirs, its in ends.items():
            for node in range(nodes):
                found[f"{theirs} {node}"] = whole - shards.get(node, 0)
            for server, shard in shards.items():
                name = f"{its} {server}"
                found[name] = found.get(name, 0) + shard * (nodes - 1)
        return found

    def _summing_ns(self, nbytes: int) -> int:
        fabric = self._task.fabric
        passes = _ADD_PASSES * fabric.nodes + _UPDATE_PASSES
        return to_ns(passes * nbytes / fabric.core_bytes_per_s + 2 * fabric.message_s * (fabric.nodes - 1))
