"""Emulated nodes: an mpiexec whose ranks lie on several nodes, which are network namespaces of this machine.

    python -m experiments.machine.emulated_nodes --nodes 2 --gbit-per-s 1 -n 4 sbplan train plan.json

    bridge 10.77.0.254 --+-- eth0 10.77.0.1   node1: half of the ranks, a host name of its own
                         +-- eth0 10.77.0.2   node2: the other half

Each cable has a token bucket at both ends, so that what leaves or reaches a node goes at the given rate and no faster.
Nodes have cores of their own, an even share of this machine's, as far as there are any. Everything lies in namespaces
that the launcher is alone in: nothing of the machine changes, and nothing is left behind when its last process ends,
however it ends. The clocks of the nodes after the first can be set ahead, as the clocks of real nodes differ. Linux
with iproute2 and util-linux, MPICH; as root, or where users may make namespaces.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from executor.supervision.environment import find_mpiexec
from strategy.base.errors import EnvironmentLacks, InputError

_TOOLS = ("ip", "tc", "unshare", "taskset")
_AGENT = """#!/bin/sh
# Stands in for ssh: [options] HOST COMMAND... becomes COMMAND on the node that has this address.
while [ "${1#-}" != "$1" ]; do shift; done
node=node${1##*.}
shift
[ "$node" = node1 ] || clock="$CLOCK"
exec ip netns exec "$node" taskset --cpu-list "$(cat /run/$node.cores)" unshare --uts $clock sh -c "hostname $node; $*"
"""
_BURST = "256kb"
_LATENCY = "20ms"
"""Of the token buckets: what may pass at once, and how long what does not may wait."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of the launcher."""
    parser = argparse.ArgumentParser(prog="experiments.machine.emulated_nodes", description=__doc__, allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=2, help="how many (default: %(default)s)")
    parser.add_argument("--gbit-per-s", type=float, default=1.0, help="of every cable (default: %(default)s)")
    parser.add_argument("--clock-ahead-s", type=int, default=0, help="of all nodes after the first (default: 0)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-n", dest="ranks", type=int, required=True, help="ranks in all")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what each rank runs")
    return parser.parse_args(argv)


def find_obstacle() -> str | None:
    """Why nodes cannot be emulated here; None where they can."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"{', '.join(lacking)}: not found; iproute2 and util-linux bring them"
    tried = subprocess.run(
        [*_alone(), "sh", "-c", "mount -t tmpfs none /run && ip link add br0 type bridge && ip netns add node1"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return None
    said = tried.stderr.strip().splitlines() or ["no reason was given"]
    return f"network namespaces cannot be made: {said[-1]}"


def write_mpiexec(folder: Path, *, nodes: int = 2, gbit_per_s: float = 1.0, clock_ahead_s: int = 0) -> Path:
    """An executable file in `folder` that takes `-n RANKS COMMAND...`, as mpiexec does, for `launch` and for tests."""
    path = folder / "mpiexec"
    options = f"--nodes {nodes} --gbit-per-s {gbit_per_s} --clock-ahead-s {clock_ahead_s}"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m experiments.machine.emulated_nodes {options} "$@"\n')
    path.chmod(0o755)
    return path


def launch_on_nodes(args: argparse.Namespace) -> NoReturn:
    """Become the mpiexec: first enter namespaces of our own, then make the nodes in them. Does not return.

    Raises:
        InputError: ranks cannot be dealt out evenly.
        EnvironmentLacks: there can be no namespaces here.
    """
    if args.nodes < 1 or args.ranks % args.nodes:
        expected = f"a multiple of {args.nodes}"
        raise InputError("ranks that nodes do not share evenly", where="-n", got=args.ranks, expected=expected)
    if not args.inside:
        obstacle = find_obstacle()
        if obstacle is not None:
            raise EnvironmentLacks(obstacle)
        me = [sys.executable, "-m", "experiments.machine.emulated_nodes", "--inside", *sys.argv[1:]]
        os.execvp("unshare", [*_alone(), *me])
    agent = _make_nodes(args.nodes, args.gbit_per_s)
    ahead = f"--time --monotonic {args.clock_ahead_s} --fork --kill-child"
    # Shared memory would cross from node to node, which real nodes have none of: TCP alone between them.
    network = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "CLOCK": ahead if args.clock_ahead_s else ""}
    hosts = ",".join(f"10.77.0.{node}:{args.ranks // args.nodes}" for node in range(1, args.nodes + 1))
    launcher = ["-launcher", "ssh", "-launcher-exec", str(agent), "-iface", "br0", "-hosts", hosts]
    os.environ.update(network)
    mpiexec = str(find_mpiexec())
    os.execv(mpiexec, [mpiexec, *launcher, "-n", str(args.ranks), *args.command])


def _alone() -> list[str]:
    """A command that runs another in a network and a view of the file system of its own."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--net", "--mount"]


def _make_nodes(nodes: int, gbit_per_s: float) -> Path:
    """Make the bridge and the nodes behind it; gives the stand-in for ssh."""
    _run("mount -t tmpfs none /run")
    _run("ip link set lo up")
    _run("ip link add br0 type bridge")
    _run("ip addr add 10.77.0.254/24 dev br0")
    _run("ip link set br0 up")
    bucket = f"root tbf rate {gbit_per_s * 1e3:.0f}mbit burst {_BURST} latency {_LATENCY}"
    for node, cores in enumerate(share_out(sorted(os.sched_getaffinity(0)), nodes), 1):
        Path(f"/run/node{node}.cores").write_text(",".join(map(str, cores)))
        _run(f"ip netns add node{node}")
        _run(f"ip link add port{node} type veth peer name eth0 netns node{node}")
        _run(f"ip link set port{node} master br0 up")
        _run(f"ip -n node{node} link set lo up")
        _run(f"ip -n node{node} addr add 10.77.0.{node}/24 dev eth0")
        _run(f"ip -n node{node} link set eth0 up")
        _run(f"tc -n node{node} qdisc add dev eth0 {bucket}")
        _run(f"tc qdisc add dev port{node} {bucket}")
    agent = Path("/run/agent")
    agent.write_text(_AGENT)
    agent.chmod(0o755)
    return agent


def share_out(cores: Sequence[int], nodes: int) -> list[Sequence[int]]:
    """The cores of every node; all of them where there are fewer than nodes."""
    if len(cores) < nodes:
        return [cores] * nodes
    return [cores[len(cores) * node // nodes : len(cores) * (node + 1) // nodes] for node in range(nodes)]


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentLacks(f"{command}: {done.stderr.strip()}")


if __name__ == "__main__":
    from experiments.cli import guarded

    sys.exit(guarded(lambda: launch_on_nodes(parse(sys.argv[1:])), sys.argv[1:]))
