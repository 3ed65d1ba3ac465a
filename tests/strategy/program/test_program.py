"""Programs: what registers hold, what kinds of acts do, whose ops are idle, whose blocks lie next to each other."""

from __future__ import annotations

from strategy.program.program import ActKind, Actor, BoxingTask, OpTask, Port, Register, neighbours
from strategy.sbp.tensor import Box, DType, Ragged, TensorSpec

HERE: Box = ((0, 2), (0, 3))
ELSEWHERE: Box = ((0, 0), (0, 0))
SCALAR: Box = ()


def test_a_register_has_bytes_for_all_of_its_blocks() -> None:
    found = Register("r", 0, (2, 3), DType.BFLOAT16, blocks=4)
    assert (found.block_nbytes, found.nbytes) == (12, 48)
    assert found.spec == TensorSpec((2, 3), DType.BFLOAT16)
    assert Register("scalar", 0, (), DType.FLOAT64).nbytes == 8
    placed = found.at((0, 64, 128, 192))
    assert placed.offsets == (0, 64, 128, 192)
    assert placed.at(()) == found


def test_a_ragged_register_has_all_of_its_room() -> None:
    """More where there is room for an uneven demand, and most for the worst case."""
    sizes = {}
    for room in (0.0, 1.0, 2.0):
        ragged = Ragged(1, (8, 4096), room=room)
        found = Register("r", 0, (2, 4096, 16), DType.FLOAT32, blocks=3, ragged=ragged)
        assert found.block_nbytes == TensorSpec((2, 4096, 16), DType.FLOAT32, ragged).nbytes
        assert found.nbytes == 3 * found.block_nbytes
        sizes[room] = found.nbytes
    assert sizes[1.0] < sizes[2.0] < sizes[0.0]


def test_an_op_is_idle_where_all_that_has_dims_is_elsewhere() -> None:
    def idle(*boxes: Box) -> bool:
        return OpTask("op", (0,), (1,), boxes[:-1], boxes[-1:]).idle

    assert idle(ELSEWHERE, ELSEWHERE)
    assert idle(SCALAR, ELSEWHERE, SCALAR)
    assert not idle(ELSEWHERE, HERE)
    assert not idle(HERE, ELSEWHERE)
    assert not idle(SCALAR, SCALAR)


def test_gradients_are_exchanged_by_what_reduces() -> None:
    assert {kind for kind in ActKind if kind.reduces} == {ActKind.ALL_REDUCE, ActKind.REDUCE_SCATTER}
    assert all(kind.is_communication for kind in ActKind if kind.reduces)


def test_what_a_collective_takes_as_one_lies_next_to_each_other() -> None:
    """On both sides; where it packs what it reads, only what it writes; nothing of one register, or of an op."""
    one = BoxingTask((0, 1), (HERE, HERE), (HERE, HERE))
    packed = BoxingTask((0, 1), (HERE, HERE), (HERE, HERE), members=(one, one))

    def rows(task: BoxingTask | None, *reads: int) -> tuple[tuple[int, ...], ...]:
        ports = tuple(map(Port, reads))
        return neighbours(Actor("a", 0, ActKind.ALL_REDUCE, ports, (Port(7), Port(8)), task=task))

    assert rows(one, 3, 4) == ((3, 4), (7, 8))
    assert rows(packed, 3, 4) == ((7, 8),)
    assert rows(one, 3) == rows(None, 3, 4) == ()
