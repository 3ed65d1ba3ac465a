"""Global tensors: logical tensors whose pieces lie on several ranks, for interactive use under mpiexec.

    P0, P1 = placement([0, 1]), placement([2, 3])
    a = randn(4, 5, placement=P0, sbp=split(0))
    b = randn(5, 8, placement=P0, sbp=broadcast)
    y = (a @ b).to_global(placement=P1, sbp=broadcast)
    z = y @ randn(8, 6, placement=P1, sbp=split(1))
    z.numpy()                                            the whole, on every rank

Every rank runs the same lines (see `executor.frontend.world`). An operation runs at once, under the signature that the
greedy deduction takes (`strategy.space.deduce`): operands that are laid out otherwise are converted first, by
the same boxing and the same collectives as in a plan. A module that is called with global tensors runs like this too,
so the same code is traced into a graph or executed line by line.
"""

from __future__ import annotations

from executor.frontend.global_tensor.creation import from_local, from_numpy, manual_seed, ones, rand, randn, zeros
from executor.frontend.global_tensor.distributed_tensor import Layouts, full_layout, placement, whole_alone
from executor.frontend.global_tensor.modules import assign, load_state_dict, materialize, state_dict, value_of
from executor.frontend.global_tensor.tape import Tape
from executor.frontend.global_tensor.tensor import GlobalTensor
from strategy.sbp.sbp import B as broadcast
from strategy.sbp.sbp import P as partial_sum
from strategy.sbp.sbp import Split as split

__all__ = [
    "GlobalTensor",
    "Layouts",
    "Tape",
    "assign",
    "broadcast",
    "from_local",
    "from_numpy",
    "full_layout",
    "load_state_dict",
    "manual_seed",
    "materialize",
    "ones",
    "partial_sum",
    "placement",
    "rand",
    "randn",
    "split",
    "state_dict",
    "value_of",
    "whole_alone",
    "zeros",
]
