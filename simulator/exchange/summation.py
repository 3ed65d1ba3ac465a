"""BytePS: gradients in partitions, of which those that the next step needs first go first, summed on any CPUs.

Jiang et al. 2020 (OSDI, "A unified architecture for accelerating distributed DNN training", section 4): a node's GPUs
scatter a partition among them, its shards are pushed to summation services, pulled, and gathered. With k machines
without GPUs beside n with them, the former take 2 k (n - 1) / (n^2 + k n - 2 k) of the bytes, so that all NICs are
equally busy; none is a ring's traffic, n a parameter server's. Peng et al. 2019 (ByteScheduler): priority by need, and
a credit of bytes under way.

Partitions are spread over the services so evenly that each is simulated as if it were spread over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from simulator.exchange.collectives import BRIDGE, GPU_IN, GPU_OUT, NIC_IN, NIC_OUT, node_links
from simulator.exchange.fabric import Fabric
from simulator.exchange.loop import Action, Legs, LinkGroup, Side, TaskQueue
from simulator.exchange.training import Exchange, Task
from strategy.base.units import to_ns

_SERVER_OUT, _SERVER_IN, _TO, _FROM, _SUM = "server out", "server in", "connections to", "connections from", "sum"


@dataclass(frozen=True, slots=True)
class Summation:
    """`servers` machines without GPUs, bytes of a partition, and bytes under way at once."""

    servers: int = 0
    partition_bytes: int = 4_096_000
    credit_bytes: int = 8 * 4_096_000
    barrier: bool = False

    def links(self, fabric: Fabric) -> Mapping[str, LinkGroup]:
        """A node's NICs and its connections to all services, and those of one machine without GPUs."""
        peers = max(fabric.nodes - 1 + self.servers, 1)
        found = {
            **node_links(fabric),
            _TO: LinkGroup(peers * fabric.flow_bytes_per_s),
            _FROM: LinkGroup(peers * fabric.flow_bytes_per_s),
            _SUM: LinkGroup(fabric.sum_bytes_per_s),
        }
        if self.servers:
            found[_SERVER_OUT] = LinkGroup(fabric.nic_bytes_per_s, Side.OUT, self.servers)
            found[_SERVER_IN] = LinkGroup(fabric.nic_bytes_per_s, Side.IN, self.servers)
        return found

    def start(self, task: Task) -> Exchange:
        """An empty queue."""
        return _Queue(task, self)


class _Queue:
    """Partitions by priority: the number of their gradient, which is when the forward pass needs it."""

    def __init__(self, task: Task, options: Summation) -> None:
        self._task = task
        self._options = options
        self._waiting: list[tuple[int, int, int]] = []
        self._under_way = 0
        self._left: dict[int, int] = {}
        self._pushes, self._pulls = TaskQueue(), TaskQueue()

    def ready(self, gradient: int) -> None:
        """Cut it, and queue the partitions."""
        whole = self._task.nbytes[gradient]
        parts = -(-whole // self._options.partition_bytes)
        self._left[gradient] = parts
        for part in range(parts):
            heappush(self._waiting, (gradient, part, (whole + part) // parts))
        self._feed()

    def _feed(self) -> None:
        while self._waiting and self._under_way < self._options.credit_bytes:
            gradient, _, nbytes = heappop(self._waiting)
            self._under_way += nbytes
            self._scatter(gradient, nbytes)

    def _scatter(self, gradient: int, nbytes: int) -> None:
        """Scatter inside the node, push, sum, pull, gather inside the node."""
        task, fabric = self._task, self._task.fabric
        gpus = fabric.gpus_per_node
        shards = (gpus - 1) * -(-nbytes // gpus)
        inside = {GPU_OUT: shards, GPU_IN: shards}
        inside_ns = to_ns((gpus - 1) * fabric.inside_hop_s)
        push, pull, summed = self._traffic(nbytes)
        if gpus > 1:
            push[BRIDGE] = pull[BRIDGE] = nbytes
        hop_ns = to_ns(fabric.network_hop_s + 2 * fabric.message_s) if fabric.nodes > 1 else 0
        task.tally.data_messages += 2 * fabric.ranks * (gpus - 1) + 2 * (fabric.nodes - 1 + bool(self._options.servers))

        def gathered() -> None:
            self._left[gradient] -= 1
            if not self._left[gradient]:
                task.exchanged(gradient)

        def pulled() -> None:
            self._under_way -= nbytes
            self._feed()
            task.loop.transfer(inside, inside_ns, gathered)

        def pushed() -> None:
            task.loop.transfer({_SUM: summed}, 0, lambda: self._in_turn(self._pulls, pull, hop_ns, pulled))

        task.loop.transfer(inside, inside_ns, lambda: self._in_turn(self._pushes, push, hop_ns, pushed))

    def _in_turn(self, stream: TaskQueue, legs: Legs, latency_ns: int, done: Action) -> None:
        """Messages of a connection go one after another, so that pushing one partition overlaps pulling another."""

        def act(over: Action) -> None:
            def ended() -> None:
                over()
                done()

            self._task.loop.transfer(legs, latency_ns, ended)

        stream.put(act)

    def _traffic(self, nbytes: int) -> tuple[dict[str, int], dict[str, int], int]:
        """Bytes of pushing, of pulling, and summed per machine: whole units, so that what is sent is received."""
        n, k = self._task.fabric.nodes, self._options.servers
        if n == 1:
            return {}, {}, 0
        share = 2 * k * (n - 1) / (n * n + k * n - 2 * k)
        # Each server takes `apart` of every node's bytes, each node `own` of every other's.
        apart = round(share * nbytes / k) if k else 0
        own = -(-(nbytes - k * apart) // n)
        node, server = (n - 1) * own, n * apart
        push = {NIC_OUT: node + k * apart, NIC_IN: node, _TO: node + k * apart}
        pull = {NIC_IN: node + k * apart, NIC_OUT: node, _FROM: node + k * apart}
        if k:
            push[_SERVER_IN] = pull[_SERVER_OUT] = server
        return push, pull, max(n * own, server)
