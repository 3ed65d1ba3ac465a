"""ONNX: the graph and the tensors of a .onnx file (onnx/onnx.proto, IR version 3 and later; operator sets 13 to 24).

Tensors are read where they are, in the file or in files beside it; a name that leads out of the folder is refused.
Which of them are trained, `onnx_parameters` says.
"""

from __future__ import annotations

import ast
import mmap
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from strategy.base.errors import InputError
from strategy.models.imported import protobuf
from strategy.models.imported.foreign import (
    MOST_NODES,
    Argument,
    Array,
    ForeignGraph,
    ForeignInput,
    ForeignNode,
    ForeignTensor,
    Ref,
    checked_shape,
)
from strategy.models.imported.onnx_parameters import labels_of, trained_tensors

OPSETS = range(13, 25)
DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16"},
    **{11: "float64", 16: "bfloat16"},
}
"""TensorProto.DataType -> NumPy's name."""
FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
_STORED = {4: "<f4", 5: "<i4", 7: "<i8", 10: "<f8"}
"""Fields of a TensorProto with figures -> how they are packed; whole numbers are varints."""
MOST_ALIKE = 2
"""Matrices that one is compared with, in case it is one of them transposed."""
_SCOPES = "pkg.torch.onnx.name_scopes"


def read_onnx(path: Path) -> ForeignGraph:
    """The program of a .onnx file.

    Raises:
        InputError: it is no such file, damaged, of an operator set that is not known, or its tensors lie elsewhere.
    """
    content = _mapped(path)
    graphs, opset = [], None
    for number, value in protobuf.fields(content, str(path)):
        if number == 7:
            graphs.append(protobuf.part(value, str(path)))
        elif number == 8:
            domain, version = _opset(protobuf.part(value, str(path)), str(path))
            opset = version if domain in ("", "ai.onnx") else opset
    if len(graphs) != 1 or opset is None:
        got = f"{len(graphs)} graphs, operator set {opset}"
        raise InputError("not an ONNX model", where=str(path), got=got, expected="a graph and its operator set")
    if opset not in OPSETS:
        known = f"{OPSETS.start} to {OPSETS.stop - 1}"
        raise InputError("an operator set that is not known", where=str(path), got=opset, expected=known)
    return _Reader(path).graph(graphs[0])


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            if not file.tell():
                raise InputError("the file is empty", where=str(path), expected="an ONNX model")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def _opset(message: memoryview, where: str) -> tuple[str, int]:
    domain, version = "", 0
    for number, value in protobuf.fields(message, where):
        if number == 1:
            domain = protobuf.text(value, where)
        elif number == 2:
            version = protobuf.signed(value, where)
    return domain, version


@dataclass(slots=True)
class _TensorParts:
    """A TensorProto, its figures not read yet."""

    name: str = ""
    dims: list[int] = field(default_factory=list)
    code: int = 0
    stored: tuple[int, memoryview] | None = None
    singles: list[int] = field(default_factory=list)
    external: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dims)


@dataclass(slots=True)
class _Reader:
    path: Path
    count: int = 0

    def graph(self, message: memoryview) -> ForeignGraph:
        where = str(self.path)
        nodes: list[ForeignNode] = []
        tensors: dict[str, _TensorParts] = {}
        inputs: list[ForeignInput] = []
        outputs: list[str] = []
        for number, value in protobuf.fields(message, where):
            self.count += 1
            if self.count > MOST_NODES:
                raise InputError("too many nodes and tensors", where=where, expected=f"at most {MOST_NODES}")
            if number == 1:
                nodes.append(self._node(protobuf.part(value, where), len(nodes)))
            elif number == 5:
                found = self._tensor(protobuf.part(value, where))
                if found.name in tensors:
                    raise InputError("a tensor is there twice", where=where, got=found.name)
                tensors[found.name] = found
            elif number == 11:
                inputs.append(self._input(protobuf.part(value, where)))
            elif number == 12:
                outputs.append(_name_of(protobuf.part(value, where), where))
            elif number == 15:
                raise InputError("a sparse tensor", where=where, hint="store it densely")
        given = tuple(one for one in inputs if one.name not in tensors)
        floats = {name: one.shape for name, one in tensors.items() if DTYPES[one.code] in FLOAT_DTYPES}
        trained = trained_tensors(nodes, floats, {one.name for one in given})
        copies = self._transposed_copies({name: one for name, one in tensors.items() if name in trained})
        for name, source in copies.items():
            del tensors[name]
            nodes.insert(0, ForeignNode("onnx.Transpose", {"inputs": (Ref(source),)}, (name,), (), f"tensor {name}"))
        labels = labels_of(nodes, tensors)
        found_tensors = tuple(
            ForeignTensor(name, labels[name], one.shape, DTYPES[one.code], name in trained, partial(self._read, one))
            for name, one in tensors.items()
        )
        return ForeignGraph(where, given, found_tensors, tuple(nodes), tuple(outputs))

    def _node(self, message: memoryview, place: int) -> ForeignNode:
        where = f"{self.path}: node {place}"
        inputs: list[str] = []
        outputs: list[str] = []
        texts = {3: "", 4: "", 7: ""}
        attributes: dict[str, Argument] = {}
        properties: dict[str, str] = {}
        for number, value in protobuf.fields(message, where):
            if number == 1:
                inputs.append(protobuf.text(value, where))
            elif number == 2:
                outputs.append(protobuf.text(value, where))
            elif number in texts:
                texts[number] = protobuf.text(value, where)
            elif number == 5:
                name, found = self._attribute(protobuf.part(value, where), where)
                attributes[name] = found
            elif number == 9:
                key, content = _entry(protobuf.part(value, where), where)
                properties[key] = content
        domain = "" if texts[7] in ("", "ai.onnx") else f"{texts[7]}."
        operands = tuple(Ref(name) if name else None for name in inputs)
        arguments: dict[str, Argument] = {**attributes, "inputs": operands}
        told = f"node {texts[3] or place}"
        return ForeignNode(f"onnx.{domain}{texts[4]}", arguments, tuple(outputs), _scope(properties, texts[3]), told)

    def _attribute(self, message: memoryview, where: str) -> tuple[str, Argument]:
        name, several = "", defaultdict[int, list[Argument]](list)
        found: Argument = None
        for number, value in protobuf.fields(message, where):
            if number == 1:
                name = protobuf.text(value, where)
            elif number == 2:
                found = protobuf.figure(value, where)
            elif number == 3:
                found = protobuf.signed(value, where)
            elif number == 4:
                found = protobuf.text(value, where)
            elif number == 5:
                tensor = self._tensor(protobuf.part(value, where))
                found = _literal(self._read(tensor), where)
            elif number == 7:
                held = protobuf.part(value, where)
                several[7] += [float(one) for one in np.frombuffer(held[: len(held) // 4 * 4], "<f4")]
            elif number == 8:
                several[8] += protobuf.whole_numbers(value, where)
            elif number == 9:
                several[9].append(protobuf.text(value, where))
            if sum(map(len, several.values())) > MOST_NODES:
                raise InputError("an attribute that is too long", where=where, got=name)
        for part in several.values():
            found = tuple(part)
        return name, found

    def _tensor(self, message: memoryview) -> _TensorParts:
        found, where = _TensorParts(), str(self.path)
        for number, value in protobuf.fields(message, where):
            if number == 1:
                found.dims += protobuf.whole_numbers(value, where)
                checked_shape(found.shape, where)
            elif number == 2:
                found.code = protobuf.signed(value, where)
            elif number == 8:
                found.name = protobuf.text(value, where)
            elif number == 9 or (number in _STORED and not isinstance(value, int)):
                found.stored = number, protobuf.part(value, where)
            elif number in _STORED:
                found.singles.append(protobuf.signed(value, where))
            elif number == 13:
                key, content = _entry(protobuf.part(value, where), where)
                found.external[key] = content
        if found.code not in DTYPES:
            known = ", ".join(f"{code} {name}" for code, name in DTYPES.items())
            raise InputError("an unknown dtype", where=f"{where}: {found.name}", got=found.code, expected=known)
        return found

    def _input(self, message: memoryview) -> ForeignInput:
        where, name, code, dims = str(self.path), "", 0, list[int | str]()
        for number, value in protobuf.fields(message, where):
            if number == 1:
                name = protobuf.text(value, where)
            elif number == 2:
                for kind, content in protobuf.fields(protobuf.part(value, where), where):
                    if kind != 1:
                        raise InputError("an input that is no tensor", where=f"{where}: {name}")
                    code, dims = _tensor_type(protobuf.part(content, where), where)
        if code not in DTYPES:
            raise InputError("an unknown dtype", where=f"{where}: input {name}", got=code)
        checked_shape(tuple(dim for dim in dims if isinstance(dim, int)), f"{where}: input {name}")
        return ForeignInput(name, tuple(dims), DTYPES[code])

    def _read(self, one: _TensorParts) -> Array:
        """The figures of a tensor."""
        where, name = f"{self.path}: {one.name or 'a constant'}", DTYPES[one.code]
        dtype = _numpy(name)
        held = self._external(one, where) if one.external else one.stored
        if held is None:
            flat = np.array(one.singles, dtype)
        elif held[0] == 9:
            if len(held[1]) % dtype.itemsize:
                raise InputError("a tensor of another length", where=where, got=len(held[1]), expected=str(one.shape))
            flat = np.frombuffer(held[1], dtype)
        elif held[0] in (4, 10):
            width = 4 if held[0] == 4 else 8
            flat = np.frombuffer(held[1][: len(held[1]) // width * width], _STORED[held[0]]).astype(dtype)
        else:
            figures = list(protobuf.whole_numbers(held[1], where))
            words = name in ("float16", "bfloat16")
            flat = (
                np.array(figures, np.int64).astype(np.uint16).view(dtype) if words else np.array(figures).astype(dtype)
            )
        elements = int(np.prod(one.shape, dtype=object))
        if flat.size != elements:
            raise InputError("a tensor of another length", where=where, got=flat.size, expected=str(one.shape))
        return flat.reshape(one.shape)

    def _transposed_copies(self, tensors: Mapping[str, _TensorParts]) -> dict[str, str]:
        """Matrices that are others transposed -> which: exporters write a head that is tied to an embedding so."""
        by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
        copies: dict[str, str] = {}
        for name, one in tensors.items():
            if len(one.shape) == 2 and one.external.keys() | {one.stored} != {None} and one.shape[0] != one.shape[1]:
                for other in by_shape.get(one.shape[::-1], [])[:MOST_ALIKE]:
                    first, second = sorted((name, other), key=lambda text: ("." not in text, text))
                    if np.array_equal(self._read(tensors[first]), self._read(tensors[second]).T):
                        copies[second] = first
                        break
                by_shape[one.shape].append(name)
        return copies

    def _external(self, one: _TensorParts, where: str) -> tuple[int, memoryview]:
        """Bytes in a file beside the model."""
        location = one.external.get("location", "")
        folder = self.path.resolve().parent
        target = (folder / location).resolve() if location and "\0" not in location else folder
        if Path(location).is_absolute() or not target.is_relative_to(folder) or target == folder:
            raise InputError("a tensor outside of the model's folder", where=where, got=location)
        content = _mapped(target)
        try:
            offset, length = int(one.external.get("offset", 0)), int(one.external.get("length", len(content)))
        except ValueError:
            raise InputError("no such place in a file", where=where, got=one.external) from None
        if offset < 0 or length < 0 or offset + length > len(content):
            raise InputError(
                "no such place in a file", where=where, got=(offset, length), expected=f"{len(content)} bytes"
            )
        return 9, content[offset : offset + length]


def _numpy(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)


def _literal(found: Array, where: str) -> Argument:
    """A constant inside a node, as nested tuples with its dtype before them."""
    if found.size > MOST_NODES:
        raise InputError("a constant that is too long", where=where, got=found.shape, hint="make it an initializer")
    name = "float32" if found.dtype.kind not in "biuf" or found.dtype.itemsize == 2 else str(found.dtype)
    flat = found.astype(np.float32 if name == "float32" else found.dtype).reshape(-1).tolist()
    return (name, tuple(found.shape), tuple(flat))


def _tensor_type(message: memoryview, where: str) -> tuple[int, list[int | str]]:
    code, dims = 0, list[int | str]()
    for number, value in protobuf.fields(message, where):
        if number == 1:
            code = protobuf.signed(value, where)
        elif number == 2:
            for _, dim in protobuf.fields(protobuf.part(value, where), where):
                found: int | str = "?"
                for kind, size in protobuf.fields(protobuf.part(dim, where), where):
                    if kind == 1:
                        found = protobuf.signed(size, where)
                    elif kind == 2:
                        found = protobuf.text(size, where) or "?"
                dims.append(found)
    return code, dims


def _name_of(message: memoryview, where: str) -> str:
    return next((protobuf.text(value, where) for number, value in protobuf.fields(message, where) if number == 1), "")


def _entry(message: memoryview, where: str) -> tuple[str, str]:
    found = {number: protobuf.text(value, where) for number, value in protobuf.fields(message, where) if number < 3}
    return found.get(1, ""), found.get(2, "")


def _scope(properties: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Modules that a node was called in: as the exporter notes them, or as its older sister names nodes.

    ['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d_1']
    /layer1/layer1.0/conv1/Conv
    """
    noted = properties.get(_SCOPES, "")
    if noted and len(noted) < 2**12:
        try:
            parts = ast.literal_eval(noted)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            parts = []
        paths = [part for part in parts[:-1] if isinstance(part, str)] if isinstance(parts, list) else []
        return tuple(one for one in (paths[-1] if paths else "").split(".") if one)
    found: list[str] = []
    for part in name.strip("/").split("/")[:-1] if name.startswith("/") else ():
        steps = part.split(".")
        found += steps[1:] if found and steps[0] == found[-1] and len(steps) > 1 else steps
    return tuple(one for one in found if one)
