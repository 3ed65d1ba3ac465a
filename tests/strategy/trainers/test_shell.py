"""Shell scripts: the command that trains, with variables, arrays and sums put in; what is not followed is named."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strategy.base.errors import InputError
from strategy.trainers.formats import arguments_of, read_text
from strategy.trainers.read import read_configuration
from strategy.trainers.shell import Script, read_script

SCRIPT = r"""#!/bin/bash
# Trains 7 billion parameters; run on every node.
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"4"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
CHECKPOINTS=$1
TP=2; PP=2
mkdir -p "$CHECKPOINTS" && echo --tensorboard $WORLD_SIZE
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES --master_port 6000
)
MODEL_ARGS=(
    --num-layers 32      # as Llama 2 has them
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --seq-length 4096 --max-position-embeddings 4096
    --swiglu --normalization RMSNorm --position-embedding-type rope
    --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING_ARGS="
    --micro-batch-size 1 \
    --global-batch-size $((16 * WORLD_SIZE)) \
    --bf16
"
PARALLEL_ARGS=(
	--tensor-model-parallel-size ${TP}
	--pipeline-model-parallel-size "$PP"
)
PARALLEL_ARGS+=(--sequence-parallel --use-distributed-optimizer)
if [ -n "${MOCK:-}" ]; then
    DATA_ARGS=(--mock-data)
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    "${MODEL_ARGS[@]}" ${TRAINING_ARGS} \
    ${PARALLEL_ARGS[@]} ${DATA_ARGS[@]} --vocab-size 32000 $EXTRA_ARGS 2>&1 | tee train.log
"""


def test_a_script_is_the_arguments_of_its_command() -> None:
    found = arguments_of(SCRIPT, "train.sh")
    assert found == {
        "nproc-per-node": 8, "nnodes": 4, "master-port": 6000, "num-layers": 32, "hidden-size": 4096,
        "ffn-hidden-size": 11008, "num-attention-heads": 32, "seq-length": 4096, "max-position-embeddings": 4096,
        "swiglu": True, "normalization": "RMSNorm", "position-embedding-type": "rope",
        "untie-embeddings-and-output-weights": True, "disable-bias-linear": True, "micro-batch-size": 1,
        "global-batch-size": 512, "bf16": True, "tensor-model-parallel-size": 2, "pipeline-model-parallel-size": 2,
        "sequence-parallel": True, "use-distributed-optimizer": True, "vocab-size": 32000,
        "shell.DATA_ARGS": "not followed", "shell.EXTRA_ARGS": "not followed",
    }  # fmt: skip


def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    plain, other = tmp_path / "plain.sh", tmp_path / "other.sh"
    plain.write_text(SCRIPT)
    other.write_bytes(b"\xef\xbb\xbf" + SCRIPT.replace("\n", "\r\n").encode())
    assert arguments_of(read_text(other), "x.sh") == arguments_of(SCRIPT, "x.sh")
    read = read_configuration(plain)
    assert (read.trained.tp, read.trained.pp, read.trained.gpus) == (2, 2, 32)
    assert set(read.not_understood) >= {"shell.DATA_ARGS", "shell.EXTRA_ARGS"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A='x  y'; run --a $A --b \"$A\"", ["run", "--a", "x", "y", "--b", "x  y"]),
        ("A=(1 '2 3'); run --a ${A[@]} --b \"${A[@]}\"", ["run", "--a", "1", "2", "3", "--b", "1", "2 3"]),
        ("A=1\nA+=2\nrun --a ${A} --b ${B:-7} --c ${A:-8}", ["run", "--a", "12", "--b", "7", "--c", "12"]),
        ("A=1\nrun --a '$A' --b \\$A --c $A$A \"x${A}y\"", ["run", "--a", "$A", "--b", "$A", "--c", "11", "x1y"]),
        ("N=3; run --a $((N * (2 + 2) / 5)) $((-N+${N}))", ["run", "--a", "2", "0"]),
        ("N=3; run $((N ** 9)) $((1/0)) $(nproc)", ["run", "$((N ** 9))", "$((1/0))", "$(nproc)"]),
        ("run --a 1 > out.txt 2>&1 < in.txt && other", ["run", "--a", "1"]),
        ("cmd=\"torchrun t.py --a 1 $X\"\necho $cmd\neval $cmd", ["torchrun", "t.py", "--a", "1", "$X"]),
        ("srun --n 2 bash -c 'run t.py --a 1'", ["srun", "--n", "2", "bash", "-c", "run", "t.py", "--a", "1"]),
        ("f() { A=1; }\nA=2\nfor i in 1 2; do A=3; done\nrun --a $A", ["run", "--a", "2"]),
        ("torchrun t.py\n--a 1\n--b", ["torchrun", "t.py", "--a", "1", "--b"]),
        ("--freq ([0]*1+[1]*3)\n--a", ["--freq", "([0]*1+[1]*3)", "--a"]),
        ("python p.py --x 1\ntorchrun t.py --a 1 --b 2 #--c 3\n", ["torchrun", "t.py", "--a", "1", "--b", "2"]),
    ],
)  # fmt: skip
def test_words_are_a_shells(text: str, words: list[str]) -> None:
    assert list(read_script(text).words) == words


def test_what_a_branch_sets_is_named_where_it_is_used() -> None:
    script = read_script("A=1\nB=1\nif true; then A=2; B=2; fi\nC=$A\nrun --c $C")
    assert script == Script(("run", "--c", "1"), {}, ("C",))


@pytest.mark.parametrize("text", ["run --a 'b", 'run --a "b', "A=(1 2\nrun --a", "run --a `b"])
def test_what_is_not_closed_is_told(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read as arguments"):
        arguments_of(text, "x.sh")


def test_variables_that_double_are_stopped() -> None:
    text = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 64 + "run --a $A"
    with pytest.raises(InputError, match="characters once its variables"):
        arguments_of(text, "x.sh")


@pytest.mark.parametrize("seed", range(10))
def test_broken_scripts_end_in_arguments_or_a_message(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        text = list(SCRIPT)
        for _ in range(rng.randint(1, 20)):
            text[rng.randrange(len(text))] = rng.choice("'\"(){}$`\\\n;&|<>#= a1")
        try:
            assert arguments_of("".join(text), "x.sh")
        except InputError:
            continue


def test_torchtitans_configuration_may_be_named_by_the_environment() -> None:
    line = "NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --parallelism.tensor_parallel_degree 2"
    assert arguments_of(line, "x.sh") == {
        "module": "llama3",
        "config": "llama3_8b",
        "parallelism.tensor-parallel-degree": 2,
    }


def test_the_launcher_says_how_many_gpus_torchtitan_has(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("torchrun --nproc_per_node=8 --nnodes 4 -m torchtitan.train --module llama3 --config llama3_8b")
    read = read_configuration(path)
    assert read.trained.gpus == 32
    assert not read.not_understood
