"""Mistakes that one makes in kernels, put into copies of the sources: each must be caught by the trials of one op."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from executor.runtime.kernels.gpu.program import SOURCES
from executor.runtime.kernels.gpu.table import launches_of
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.device import KernelFault, build, run
from tests.support.cuda_on_host.row_trials import figures, row_trials, untouched
from tests.support.cuda_on_host.trials import TOLERANCES, error_per_row, trials, wanted


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `file`, `right` is replaced by `wrong`; the trials of `kind`, whose kernels are in `program`, must see it.

    Those are of ragged rows where it says so, in this element type.
    """

    file: str
    right: str
    wrong: str
    kind: str
    program: tuple[str, ...]
    of_rows: bool = False
    element: DType = DType.FLOAT32


_ROUTED = ("dispatch.cu",)
_ROWS = ("norm.cu", "norm_grad.cu", "reduce.cu")
MUTANTS: Mapping[str, Mutant] = {
    "a row's bound is off by one": Mutant(
        "element.cuh", "at < width; at +=", "at <= width; at +=", "softmax", ("softmax.cu",)
    ),
    "a row's bound is off by one where it is kept": Mutant(
        "element.cuh", "if (column(k) >= width) break;", "if (column(k) > width) break;", "softmax", ("softmax.cu",)
    ),
    "what a thread keeps is looked at twice": Mutant(
        "element.cuh", "int at = column(HELD)", "int at = column(0)", "softmax", ("softmax.cu",)
    ),
    "no barrier before a sum is read": Mutant(
        "element.cuh", "= value;\n  __syncthreads();\n  Sum", "= value;\n  Sum", "square_sum", ("reduce.cu",)
    ),
    "no barrier between two sums": Mutant(
        "element.cuh",
        "  __syncthreads();  // what an earlier sum left in `room` has been read\n",
        "",
        "layer_norm",
        _ROWS,
    ),
    "lanes of half a warp are left out": Mutant(
        "element.cuh",
        "int step = WARP / 2; step > 0; step /= 2) value +=",
        "int step = WARP / 4; step > 0; step /= 2) value +=",
        "square_sum",
        ("reduce.cu",),
    ),
    "a vector load without looking at alignment": Mutant(
        "softmax.cu",
        "  if (wide)\n    softmax_row<PACK, false>",
        "  if (true)\n    softmax_row<PACK, false>",
        "softmax",
        ("softmax.cu",),
    ),
    "the tail behind the vectors is left out": Mutant(
        "reduce.cu",
        "packs * PACK + thread; i < n;",
        "packs * PACK + thread; i < packs * PACK;",
        "square_sum",
        ("reduce.cu",),
    ),
    "the last chunk goes on behind the rows": Mutant(
        "reduce.cu",
        "end = begin + chunk < rows ? begin + chunk : rows",
        "end = begin + chunk",
        "reduce_sum",
        ("reduce.cu",),
    ),
    "sums of a column miss its last chunk": Mutant(
        "reduce.cu", "each_column<1, 1, 8>(0, count,", "each_column<1, 1, 8>(0, count - 1,", "rms_norm_grad", _ROWS
    ),
    "sums of warps are added up before they are there": Mutant(
        "columns.cuh", "= sums[k][j];\n    __syncthreads();", "= sums[k][j];", "reduce_sum", ("reduce.cu",)
    ),
    "a second sum is written over the first": Mutant(
        "columns.cuh",
        "    __syncthreads();  // the sums before have been added up\n",
        "",
        "layer_norm_grad",
        _ROWS,
    ),
    "a team adds up what others have": Mutant(
        "norm_grad.cu", "int warp = mine * team / WARP;", "int warp = 0;", "layer_norm_grad", _ROWS
    ),
    "sums of a row are overwritten before they are read": Mutant(
        "norm_grad.cu", "side ^= 2 * WARPS", "side ^= 0", "rms_norm_grad", _ROWS
    ),
    "a team writes a row that there is not": Mutant(
        "norm_grad.cu", "      if (row < end) store", "      store", "layer_norm_grad", _ROWS
    ),
    "a stretch goes on behind the columns": Mutant(
        "columns.cuh", " || stretch + threadIdx.x >= width", "", "reduce_sum", ("reduce.cu",)
    ),
    "vectors begin where the row does": Mutant(
        "element.cuh",
        "const Index first = wide && before < width ? before : width,",
        "const Index first = wide ? 0 : width,",
        "reduce_max",
        ("reduce.cu",),
    ),
    "elements behind the vectors are left out": Mutant(
        "element.cuh", "single = first + width - last", "single = first", "reduce_sum", ("reduce.cu",)
    ),
    "the largest figure is nought if none is above it": Mutant(
        "reduce.cu", "top = widen(row[0]), strange", "top = 0.0f, strange", "reduce_max", ("reduce.cu",)
    ),
    "the largest magnitude is that of what is above zero": Mutant(
        "codes.cu", "top = larger(top, fabsf(value))", "top = larger(top, value)", "amax", ("codes.cu",)
    ),
    "no barrier before the largest of warps is read": Mutant(
        "codes.cu", "= value;\n  __syncthreads();\n  float most", "= value;\n  float most", "amax", ("codes.cu",)
    ),
    "the tail of a largest magnitude is left out": Mutant(
        "codes.cu", "i < n; i += threads", "i < packs; i += threads", "amax", ("codes.cu",)
    ),
    "a block goes on behind the tensor": Mutant(
        "block_codes.cu",
        "row + block_rows < rows ? row + block_rows : rows",
        "row + block_rows",
        "quantize_blocks",
        ("block_codes.cu",),
    ),
    "half of the lanes do not tell their largest": Mutant(
        "block_codes.cu", "int step = LANES / 2", "int step = LANES / 4", "quantize_blocks", ("block_codes.cu",)
    ),
    "the largest code is one too large": Mutant(
        "block_codes.cu",
        "fraction > most_fraction",
        "fraction >= most_fraction",
        "quantize_blocks",
        ("block_codes.cu",),
    ),
    "two codes have the scale of the first": Mutant(
        "block_codes.cu",
        "(at * EACH + j) / block_columns",
        "at * EACH / block_columns",
        "quantize_blocks",
        ("block_codes.cu",),
    ),
    "the second of two codes comes first": Mutant(
        "block_codes.cu", "MOST_E2M1)) << 4 * j;", "MOST_E2M1)) << 4 * (1 - j);", "quantize_blocks", ("block_codes.cu",)
    ),
    "the tail of a copy is left out": Mutant("copy.cu", "i < n; i", "i < packs; i", "reshape", ("copy.cu",)),
    "the largest of a row is its last": Mutant(
        "softmax.cu", "top = fmaxf(top, v[0][j])", "top = v[0][j]", "softmax", ("softmax.cu",)
    ),
    "the label's neighbour is its class": Mutant(
        "loss.cu",
        "column + j == label ?",
        "column + j == label + 1 ?",
        "cross_entropy_grad",
        ("loss.cu", "reduce.cu"),
    ),
    "a class more than there are": Mutant(
        "loss.cu", "label < begin + width", "label <= begin + width", "cross_entropy", ("loss.cu", "reduce.cu")
    ),
    "labels that do not count do": Mutant(
        "loss.cu", "if (label == ignored) continue;", "", "cross_entropy", ("loss.cu", "reduce.cu")
    ),
    "an operand is spread over the dim that it has": Mutant(
        "arithmetic.cu", "middle * steps.middle", "outer * steps.middle", "add", ("arithmetic.cu",)
    ),
    "runs of a result are counted in elements": Mutant(
        "arithmetic.cu", "in_run = inner / W", "in_run = inner", "mul", ("arithmetic.cu",)
    ),
    "the last term is left out": Mutant(
        "arithmetic.cu", "if (k >= count)", "if (k + 1 >= count)", "add_n", ("arithmetic.cu",)
    ),
    "an index too many is looked at": Mutant(
        "gather.cu", "place < count &&", "place <= count &&", "gather_grad", ("gather.cu",)
    ),
    "foreign indices are not left out": Mutant(
        "gather.cu", "local >= 0 && local < held ?", "local >= 0 ?", "gather", ("gather.cu",)
    ),
    "words without the index are not cleared": Mutant(
        "gather.cu", "words[word + threadIdx.x % WARP] = 0;", "", "gather_grad", ("gather.cu",)
    ),
    "indices behind the vectors are not looked at": Mutant(
        "gather.cu", "bool alike = place < count;", "bool alike = false;", "gather_grad", ("gather.cu",)
    ),
    "places are listed before they are marked": Mutant(
        "gather.cu", "    __syncthreads();\n    const int count", "    const int count", "gather_grad", ("gather.cu",)
    ),
    "places of a word are listed over those of another": Mutant(
        "gather.cu", "word < threadIdx.x ? marked : 0", "0", "gather_grad", ("gather.cu",)
    ),
    "places of a later tile are taken for those of the first": Mutant(
        "gather.cu",
        "(tile + matches.places[begin + k]) * after",
        "matches.places[begin + k] * after",
        "gather_grad",
        ("gather.cu",),
    ),
    "places are added up before they are listed": Mutant(
        "gather.cu", "  __syncthreads();\n  return count;", "  return count;", "gather_grad", ("gather.cu",)
    ),
    "a slice more is added than there are": Mutant(
        "gather.cu", "if (begin + k < count) slices", "if (begin + k <= count) slices", "gather_grad", ("gather.cu",)
    ),
    "a coordinate is left out of the mask": Mutant(
        "dropout.cu", "if (dim >= piece.dims)", "if (dim + 1 >= piece.dims)", "dropout", ("dropout.cu",)
    ),
    "the mask of the neighbouring column": Mutant(
        "dropout.cu", "first + j * GOLDEN", "first", "dropout", ("dropout.cu",)
    ),
    "a dim is paired with its neighbour": Mutant(
        "rotary.cu", "load<W>(x + at + pairs + pair, b)", "load<W>(x + at + pair + 1, b)", "rotary", ("rotary.cu",)
    ),
    "what is not turned is taken from the turned half": Mutant(
        "rotary.cu", "at + (turned + of_this) * W", "at + of_this * W", "rotary", ("rotary.cu",)
    ),
    "heads are taken for positions": Mutant(
        "rotary.cu", "head / heads % length", "head % length", "rotary", ("rotary.cu",)
    ),
    "corrections are read before they are written": Mutant(
        "adamw.cu", "  __syncthreads();\n  int t", "  int t", "adamw", ("adamw.cu",)
    ),
    "a skipped step is done": Mutant("adamw.cu", "if (update == 0) return;", "", "adamw", ("adamw.cu",)),
    "a row's cell is left out": Mutant(
        "ragged.cuh", "i <= count; i +=", "i < count; i +=", "silu", ("activation.cu",), of_rows=True
    ),
    "a cell is found one too far": Mutant(
        "ragged.cuh", "cells[middle] < cell", "cells[middle] <= cell", "dropless_combine", _ROUTED, of_rows=True
    ),
    "a row is computed that is not there": Mutant(
        "ragged.cuh", "n = index[0] * width, ", "n = (index[0] + 1) * width, ", "mul", ("arithmetic.cu",), of_rows=True
    ),
    "elements before the first vector are left out": Mutant(
        "ragged.cuh", "  each<N>(reads, out, ahead, 0, function);\n", "", "mul", ("arithmetic.cu",), of_rows=True
    ),
    "vectors begin where rows do": Mutant(
        "ragged.cuh", "ahead = lead < n ? lead : n", "ahead = 0", "silu_grad", ("activation.cu",), of_rows=True
    ),
    "one of two gradients has no cells": Mutant(
        "activation.cu", "  hold_cells(index, held_up);\n", "", "swiglu_grad", ("activation.cu",), of_rows=True
    ),
    "a sum of rows begins behind the first vector": Mutant(
        "arithmetic.cu",
        "  add_stretch(terms, count, out, 0, ahead, 0);\n",
        "",
        "add_n",
        ("arithmetic.cu",),
        of_rows=True,
    ),
    "a chunk counts the first token of the next": Mutant(
        "dispatch.cu",
        "token < begin + CHOSEN_CHUNK; token += BLOCK)\n    count",
        "token <= begin + CHOSEN_CHUNK; token += BLOCK)\n    count",
        "dropless_dispatch",
        _ROUTED,
        of_rows=True,
    ),
    "a running sum is read before it is written": Mutant(
        "dispatch.cu", "  __syncthreads();\n  total = 0;", "  total = 0;", "dropless_dispatch", _ROUTED, of_rows=True
    ),
    "a running sum counts its own warp twice": Mutant(
        "dispatch.cu",
        "if (warp < threadIdx.x / WARP) value",
        "if (warp <= threadIdx.x / WARP) value",
        "dropless_dispatch",
        _ROUTED,
        of_rows=True,
    ),
    "rows are placed over those of the tokens before": Mutant(
        "dispatch.cu", "    place += total;\n", "", "dropless_dispatch", _ROUTED, of_rows=True
    ),
    "counts of the blocks before are left out": Mutant(
        "dispatch.cu", "    before += total;\n", "    before = total;\n", "dropless_dispatch", _ROUTED, of_rows=True
    ),
    "a piece is taken for the whole": Mutant(
        "dispatch.cu",
        "in_group = token_here / tokens;",
        "in_group = token_here / all_tokens;",
        "dropless_dispatch",
        _ROUTED,
        of_rows=True,
    ),
    "the tokens of a group are counted from the first of all": Mutant(
        "dispatch.cu", "+ cell % all_tokens - token", "+ cell % all_tokens", "dropless_dispatch", _ROUTED, of_rows=True
    ),
    "a row has the weights of all choices": Mutant(
        "dispatch.cu",
        "if (read_index(chosen, index_nbytes, at) == expert) factor",
        "factor",
        "dropless_dispatch",
        _ROUTED,
        of_rows=True,
    ),
    "a token is its last row": Mutant(
        "dispatch.cu", "sums[j] += v[j] * weight", "sums[j] = v[j] * weight", "dropless_combine", _ROUTED, of_rows=True
    ),
    "every other stretch of a product is left out": Mutant(
        "dispatch.cu", "column += BLOCK * W)", "column += 2 * BLOCK * W)", "dropless_inner", _ROUTED, of_rows=True
    ),
    "the last tile of an expert is left out": Mutant(
        "grouped.cu", "+ SIDE - 1) / SIDE", ") / SIDE", "grouped_matmul", ("grouped.cu",), of_rows=True
    ),
    "tiles are counted from the first expert's": Mutant(
        "grouped.cu",
        "(tile - first_tiles[expert]) * SIDE",
        "tile * SIDE",
        "grouped_matmul",
        ("grouped.cu",),
        of_rows=True,
    ),
    "a tile is the expert's before": Mutant(
        "grouped.cu",
        "first_tiles[middle] <= tile",
        "first_tiles[middle] < tile",
        "grouped_matmul",
        ("grouped.cu",),
        of_rows=True,
    ),
    "all experts have the matrix of the first": Mutant(
        "grouped.cu", "w + expert * inner * outer", "w", "grouped_matmul", ("grouped.cu",), of_rows=True
    ),
    "a step is multiplied before it is loaded": Mutant(
        "grouped.cu",
        "    __syncthreads();\n    sums.add",
        "    sums.add",
        "grouped_matmul_tn",
        ("grouped.cu",),
        of_rows=True,
    ),
    "the next step is loaded before this is multiplied": Mutant(
        "grouped.cu",
        "sums.add(tiles.a, tiles.b);\n    __syncthreads();",
        "sums.add(tiles.a, tiles.b);",
        "grouped_matmul",
        ("grouped.cu",),
        of_rows=True,
    ),
    "a tile writes over the rows behind its own": Mutant(
        "grouped.cu",
        "row < height && column < width",
        "column < width",
        "grouped_matmul",
        ("grouped.cu",),
        of_rows=True,
    ),
    "the last step is taken for a whole one": Mutant(
        "grouped.cu", "at < size && k < depth", "at < size", "grouped_matmul_tn", ("grouped.cu",), of_rows=True
    ),
    "a row has the bias of the first expert of all": Mutant(
        "grouped.cu", "/ tokens - first", "/ tokens", "add_by_expert", ("grouped.cu",), of_rows=True
    ),
    "a sum by expert goes on with the next one's rows": Mutant(
        "grouped.cu",
        "bounds[blockIdx.y + 1], width",
        "bounds[blockIdx.y + 1] + 1, width",
        "sum_by_expert",
        ("grouped.cu",),
        of_rows=True,
    ),
    "columns of a tensor core's rows change places": Mutant(
        "grouped.cu",
        "word(below), word(at + DEEP / 2)",
        "word(at + DEEP / 2), word(below)",
        "grouped_matmul",
        ("grouped.cu",),
        of_rows=True,
        element=DType.BFLOAT16,
    ),
    "the second half of a tensor core's depth is the first": Mutant(
        "grouped.cu",
        "right[j][1] = word(at + DEEP / 2)",
        "right[j][1] = word(at)",
        "grouped_matmul_tn",
        ("grouped.cu",),
        of_rows=True,
        element=DType.FLOAT16,
    ),
    "two columns of a tensor core are one": Mutant(
        "grouped.cu",
        "pair + k % 2, of[i][j][k]",
        "pair, of[i][j][k]",
        "grouped_matmul",
        ("grouped.cu",),
        of_rows=True,
        element=DType.BFLOAT16,
    ),
    "warps multiply the same rows": Mutant(
        "grouped.cu",
        "threadIdx.x / WARP % 2 * DOWN",
        "threadIdx.x / WARP % 1 * DOWN",
        "grouped_matmul",
        ("grouped.cu",),
        of_rows=True,
        element=DType.BFLOAT16,
    ),
}
"""What is wrong -> how."""


def caught(mutant: Mutant, folder: Path) -> str:
    """How the trials see a mutant: a fault, another figure, another figure in another order; "" if not."""
    sources = folder / "sources"
    shutil.copytree(SOURCES, sources)
    path = sources / mutant.file
    text = path.read_text()
    if text.count(mutant.right) < 1:
        raise ValueError(f"{mutant.file} has no {mutant.right!r}")
    path.write_text(text.replace(mutant.right, mutant.wrong))
    program, bits = build(mutant.element, sources, mutant.program), []
    for reverse in (False, True):
        calls = [trial.call(mutant.element) for trial in (row_trials if mutant.of_rows else trials)(mutant.kind)]
        right = [part for call in calls for piece in wanted(call, mutant.kind) for part in figures(piece)]
        try:
            run(program, [one for call in calls for one in launches_of(mutant.kind, call) or ()], reverse=reverse)
        except KernelFault as fault:
            return f"reported: {fault}"
        pieces = [piece for call in calls for piece in (*call.outputs, *call.updates)]
        found = [part for piece in pieces for part in figures(piece)]
        if not all(map(untouched, pieces)) or [one.shape for one in found] != [one.shape for one in right]:
            return "other rows"
        error = max(error_per_row(*pair) for pair in zip(found, right, strict=True) if pair[1].size)
        if not error <= TOLERANCES[mutant.element]:
            return f"an error of {error:.1e}"
        bits.append([array.tobytes() for array in found])
    return "another figure in another order" if bits[0] != bits[1] else ""
