"""Signatures of what products and attention are called by: `python -m tests.support.cuda_on_host.signatures`.

Written from the installed packages into `signatures.json`, which stands in for them where they are not installed; none
of this needs a driver.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "signatures.json"
PACKAGES = ("nvmath-python", "nvidia-cudnn-frontend")
_FUNCTIONS = (
    "create",
    "matmul",
    "matmul_algo_get_heuristic",
    "matmul_desc_create",
    "matmul_desc_set_attribute",
    "matmul_preference_create",
    "matmul_preference_destroy",
    "matmul_preference_set_attribute",
    "matrix_layout_create",
    "matrix_layout_set_attribute",
    "get_matmul_desc_attribute_dtype",
    "get_matmul_preference_attribute_dtype",
    "get_matrix_layout_attribute_dtype",
)
_ATTRIBUTES = {
    "MatmulDescAttribute": "get_matmul_desc_attribute_dtype",
    "MatmulPreferenceAttribute": "get_matmul_preference_attribute_dtype",
    "MatrixLayoutAttribute": "get_matrix_layout_attribute_dtype",
}


def installed() -> dict[str, Any]:
    """The signatures of what is installed; raises ImportError where something is not."""
    import cudnn
    from cudnn.graph_types import Tensor
    from nvmath import CudaDataType
    from nvmath.bindings import cublas, cublasLt

    graph = cudnn.pygraph
    return {
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "functions": {name: _arguments(getattr(cublasLt, name).__doc__) for name in _FUNCTIONS},
        "enums": {name: _members(getattr(cublasLt, name)) for name in (*_ATTRIBUTES, "Epilogue")},
        "sizes": {name: _sizes(getattr(cublasLt, name), getattr(cublasLt, of)) for name, of in _ATTRIBUTES.items()},
        "result": [[name, str(kind)] for name, (kind, _) in cublasLt.matmul_heuristic_result_dtype.fields.items()],
        "types": {"CudaDataType": _members(CudaDataType), "ComputeType": _members(cublas.ComputeType)},
        # The frontend takes any keyword, and fails once a graph meets the library: what counts are the library's own.
        "attention": {name: _arguments(getattr(cudnn._pybind_module.backend_graph, name).__doc__) for name in _SDPA},
        "graph": {name: list(inspect.signature(getattr(graph, name)).parameters) for name in _GRAPH},
        "tensor": {name: list(inspect.signature(getattr(Tensor, name)).parameters) for name in _TENSOR},
        "set_stream": list(inspect.signature(cudnn.set_stream).parameters),
        "diagonal_alignment": list(cudnn.diagonal_alignment.__members__),
        "data_type": list(cudnn.data_type.__members__),
        "heur_mode": list(cudnn.heur_mode.__members__),
    }


_SDPA = ("sdpa", "sdpa_backward")
_GRAPH = ("__init__", "tensor", "build", "execute", "get_workspace_size")
_TENSOR = ("set_output", "set_uid", "set_dim", "set_stride", "set_data_type")


def checked_in() -> dict[str, Any]:
    """The signatures of the file."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def _arguments(documentation: str) -> list[str]:
    """Names of arguments, by the first line of a function's documentation."""
    between = documentation.split("\n", 1)[0].partition("(")[2].rpartition(")")[0].partition(") ->")[0]
    plain = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", between)))
    parts = [part.partition(":")[0].partition("=")[0].split() for part in plain.split(",")]
    return [part[-1] for part in parts if part and part[-1] != "self"]


def _members(enum: Any) -> dict[str, int]:
    return {member.name: int(member) for member in enum}


def _sizes(enum: Any, dtype_of: Any) -> dict[str, str]:
    found = {}
    for member in enum:
        try:
            found[member.name] = dtype_of(member).__name__
        except ValueError:  # a name that the library has taken back
            continue
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(installed(), indent=1) + "\n")
    sys.stdout.write(f"{FILE}\n")
