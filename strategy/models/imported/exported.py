"""torch.export: the graph and the raw tensors of a .pt2 file, as data. Nothing is unpickled.

Two layouts (PyTorch 2.13: torch/export/pt2_archive, torch/_export/serde/schema.py, schema versions 7 and 8):

    models/NAME.json                              since 2.8: the program
    data/weights/NAME_weights_config.json         parameter or buffer -> entry beside it, dtype, shape, strides
    data/constants/NAME_constants_config.json     the same of constants
    serialized_exported_program.json              until 2.7: the program; its tensors are in pickles, which are not read

Graphs inside the graph are spliced in where they are called under `no_grad` or autocast; others are left to the table,
which has no such operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from strategy.base.errors import InputError
from strategy.base.files import MAX_JSON_BYTES, parse_json
from strategy.models.imported.archive import Archive, open_archive
from strategy.models.imported.foreign import (
    MOST_DEPTH,
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

SCHEMAS = (7, 8)
"""Major versions of the schema."""
DTYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64"},
    **{12: "bool", 13: "bfloat16"},
}
"""ScalarType of the schema -> NumPy's name."""
MOST_SHARED, MOST_SHARED_BYTES = 64, 2**20
"""An entry may hold what several tensors share: so many times what one of them needs, and so many bytes."""
_LEGACY = "serialized_exported_program.json"
_SPLICED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
_PLAIN = ("as_int", "as_float", "as_bool", "as_string", "as_scalar_type", "as_memory_format", "as_layout")
_LISTS = ("as_ints", "as_floats", "as_bools", "as_strings")


def read_exported(path: Path) -> ForeignGraph:
    """The program of a .pt2 file.

    Raises:
        InputError: it is no such file, damaged, of another schema, or holds what only unpickling could read.
    """
    archive = open_archive(path)
    entry = _program_entry(archive)
    content = _document(archive, entry)
    where = f"{path}: {entry}"
    schema = _get(content, "schema_version", dict, where)
    major = schema.get("major")
    if major not in SCHEMAS:
        known = ", ".join(map(str, SCHEMAS))
        raise InputError(
            "an unknown schema", where=where, got=major, expected=known, hint="export it with PyTorch 2.13"
        )
    module = _get(content, "graph_module", dict, where)
    graph = _get(module, "graph", dict, where)
    tensors = _stored(archive, entry)
    return _Reader(archive, where, tensors).program(graph, _get(module, "signature", dict, where))


def _program_entry(archive: Archive) -> str:
    if _LEGACY in archive.sizes:
        return _LEGACY
    models = sorted(name for name in archive.sizes if name.startswith("models/") and name.endswith(".json"))
    if len(models) != 1:
        expected = "one program, models/NAME.json, as torch.export.save writes it"
        raise InputError("not a torch.export file", where=str(archive.path), got=models or None, expected=expected)
    return models[0]


def _document(archive: Archive, entry: str) -> dict[str, Any]:
    where = f"{archive.path}: {entry}"
    try:
        text = archive.read(entry, MAX_JSON_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", where=f"{where}: byte {error.start}") from None
    found = parse_json(text, where)
    if not isinstance(found, dict):
        raise InputError("not a JSON object", where=where, got=type(found).__name__)
    return found


def _get(record: Any, key: str, kind: type[Any] | tuple[type[Any], ...], where: str) -> Any:
    """A member of a JSON object, which must be of a kind."""
    found = record.get(key) if isinstance(record, dict) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
        raise InputError("not what the schema says", where=f"{where}: {key}", got=found, expected=f"a {names}")
    return found


def _one(union: Any, where: str) -> tuple[str, Any]:
    """Which member of a union is given, and its value."""
    if not isinstance(union, dict) or len(union) != 1:
        raise InputError("not one of several", where=where, got=union, expected="an object with one key")
    return next(iter(union.items()))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in an entry of the archive."""

    archive: Archive
    entry: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    pickled: bool

    def read(self) -> Array:
        where = f"{self.archive.path}: {self.entry}"
        if self.pickled:
            raise InputError("a pickle, which is not read", where=where, hint="export plain tensors")
        width = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize
        last = self.offset + sum(max(n - 1, 0) * s for n, s in zip(self.shape, self.strides, strict=True))
        content = self.archive.read(self.entry, MOST_SHARED_BYTES + MOST_SHARED * (last + 1) * width)
        if min(self.shape, default=1) and (last + 1) * width > len(content):
            raise InputError(
                "the tensor is longer than its entry", where=where, got=self.shape, expected=f"{len(content)} bytes"
            )
        dtype = np.dtype(self.dtype) if self.dtype != "bfloat16" else _bfloat16()
        flat = np.frombuffer(content, dtype, len(content) // width)[self.offset :]
        steps = tuple(stride * width for stride in self.strides)
        view = np.lib.stride_tricks.as_strided(flat, self.shape, steps, writeable=False)
        return np.ascontiguousarray(view).reshape(self.shape)


def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def _stored(archive: Archive, entry: str) -> dict[str, _Stored]:
    """Label -> tensor, of both configs of a program; none of the older layout."""
    if entry == _LEGACY:
        return {}
    name = entry.removeprefix("models/").removesuffix(".json")
    found: dict[str, _Stored] = {}
    for kind, folder in (("weights", "data/weights/"), ("constants", "data/constants/")):
        config = f"{folder}{name}_{kind}_config.json"
        if config not in archive.sizes:
            continue
        where = f"{archive.path}: {config}"
        for label, meta in _get(_document(archive, config), "config", dict, where).items():
            path = _get(meta, "path_name", str, f"{where}: {label}")
            if meta.get("use_pickle"):
                found[label] = _Stored(archive, folder + path, "float32", (), (), 0, pickled=True)
                continue
            tensor = _get(meta, "tensor_meta", dict, f"{where}: {label}")
            dtype, shape, strides, offset = _meta(tensor, f"{where}: {label}")
            whole = tuple(int(size) for size in shape if isinstance(size, int))
            if len(whole) < len(shape):
                raise InputError("a stored tensor has an open size", where=f"{where}: {label}", got=shape)
            found[label] = _Stored(archive, folder + path, dtype, whole, strides, offset, pickled=False)
    return found


def _meta(meta: Any, where: str) -> tuple[str, tuple[int | str, ...], tuple[int, ...], int]:
    """(dtype, shape, strides, offset) of a TensorMeta; an open size is its expression, open strides are zero."""
    code = _get(meta, "dtype", int, where)
    if code not in DTYPES:
        known = ", ".join(f"{key} {name}" for key, name in DTYPES.items())
        raise InputError("an unknown dtype", where=where, got=code, expected=known)
    shape = tuple(_size(size, where) for size in _get(meta, "sizes", list, where))
    checked_shape(tuple(size for size in shape if isinstance(size, int)), where)
    strides = tuple(
        size if isinstance(size, int) else 0 for size in (_size(s, where) for s in _get(meta, "strides", list, where))
    )
    offset = _size(meta.get("storage_offset", {"as_int": 0}), where)
    if len(strides) != len(shape) or min((0, *strides)) < 0 or not isinstance(offset, int) or offset < 0:
        raise InputError("no such strides", where=where, got=(shape, strides, offset))
    return DTYPES[code], shape, strides, offset


def _size(size: Any, where: str) -> int | str:
    kind, value = _one(size, where)
    if kind == "as_int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind == "as_expr":
        return str(_get(value, "expr_str", str, where))
    raise InputError("not a size", where=where, got=size, expected="as_int or as_expr")


@dataclass(slots=True)
class _Reader:
    """Reads one program; counts its nodes."""

    archive: Archive
    where: str
    stored: Mapping[str, _Stored]
    count: int = 0
    renamed: dict[str, str] = field(default_factory=dict)

    def program(self, graph: dict[str, Any], signature: dict[str, Any]) -> ForeignGraph:
        values = _get(graph, "tensor_values", dict, self.where)
        inputs, tensors = [], []
        for spec in _get(signature, "input_specs", list, self.where):
            kind, content = _one(spec, f"{self.where}: input_specs")
            where = f"{self.where}: {kind}"
            if kind == "user_input":
                kind, argument = _one(_get(content, "arg", dict, where), where)
                if kind == "as_none":
                    continue
                if kind != "as_tensor":
                    raise InputError(
                        "an input that is no tensor", where=where, got=kind, hint="export it with tensors alone"
                    )
                inputs.append(self._input(_get(argument, "name", str, where), values))
            elif kind in ("parameter", "buffer", "tensor_constant"):
                label = _get(content, f"{kind}_name", str, where)
                name = _get(_get(content, "arg", dict, where), "name", str, where)
                tensors.append(self._tensor(name, label, values, trained=kind == "parameter"))
            elif kind != "constant_input":
                raise InputError("an input of an unknown kind", where=self.where, got=kind)
        nodes = tuple(self.nodes(graph, (), "", 0))
        outputs = []
        for spec in _get(signature, "output_specs", list, self.where):
            kind, content = _one(spec, f"{self.where}: output_specs")
            if kind == "user_output":
                which, argument = _one(_get(content, "arg", dict, self.where), self.where)
                if which == "as_tensor":
                    outputs.append(_get(argument, "name", str, self.where))
        return ForeignGraph(str(self.archive.path), tuple(inputs), tuple(tensors), nodes, tuple(outputs))

    def _input(self, name: str, values: dict[str, Any]) -> ForeignInput:
        where = f"{self.where}: input {name}"
        meta = _get(values, name, dict, where)
        dtype, shape, _, _ = _meta(meta, where)
        hints = tuple(_hint(size) for size in meta["sizes"])
        return ForeignInput(name, shape, dtype, hints)

    def _tensor(self, name: str, label: str, values: dict[str, Any], *, trained: bool) -> ForeignTensor:
        where = f"{self.where}: {label}"
        dtype, shape, _, _ = _meta(_get(values, name, dict, where), where)
        whole = tuple(size for size in shape if isinstance(size, int))
        if len(whole) < len(shape):
            raise InputError("a parameter has an open size", where=where, got=shape)
        return ForeignTensor(name, label, whole, dtype, trained, partial(self._read, label, whole))

    def _read(self, label: str, shape: tuple[int, ...]) -> Array:
        where = f"{self.archive.path}: {label}"
        if label not in self.stored:
            hint = "its tensors are in pickles, which are not read; export it again with PyTorch 2.8 or later"
            raise InputError("the tensor is not in the file", where=where, hint=hint)
        found = self.stored[label].read()
        if found.shape != shape:
            raise InputError("another shape than in the graph", where=where, got=found.shape, expected=str(shape))
        return found

    def nodes(self, graph: dict[str, Any], scope: tuple[str, ...], prefix: str, depth: int) -> Iterator[ForeignNode]:
        """The nodes of a graph, those of spliced graphs in their place."""
        if depth > MOST_DEPTH:
            raise InputError("graphs inside graphs", where=self.where, got=depth, expected=f"at most {MOST_DEPTH} deep")
        for place, node in enumerate(_get(graph, "nodes", list, self.where)):
            self.count += 1
            if self.count > MOST_NODES:
                raise InputError("too many nodes", where=self.where, expected=f"at most {MOST_NODES}")
            target = _get(node, "target", str, f"{self.where}: node {place}")
            where = f"node {prefix}{node.get('name') or place}"
            inside = _scope(node.get("metadata"), scope)
            if target.rsplit(".", 1)[-1] in _SPLICED:
                yield from self._spliced(node, inside, f"{prefix}{place}:", depth, where)
                continue
            yield ForeignNode(
                _short(target),
                dict(self._arguments(_get(node, "inputs", list, f"{self.where}: {where}"), where, prefix)),
                tuple(self._outputs(node, where, prefix)),
                inside,
                where,
            )

    def _outputs(self, node: dict[str, Any], where: str, prefix: str) -> Iterator[str]:
        for output in _get(node, "outputs", list, f"{self.where}: {where}"):
            kind, value = _one(output, f"{self.where}: {where}")
            if kind in ("as_tensor", "as_sym_int", "as_sym_bool", "as_sym_float"):
                key = "name" if kind == "as_tensor" else "as_name"
                yield prefix + _get(value, key, str, f"{self.where}: {where}")
            elif kind == "as_tensors" and isinstance(value, list):
                yield from (prefix + _get(one, "name", str, f"{self.where}: {where}") for one in value)
            elif kind != "as_none":
                raise InputError("an output of an unknown kind", where=f"{self.where}: {where}", got=kind)

    def _arguments(self, inputs: list[Any], where: str, prefix: str) -> Iterator[tuple[str, Argument]]:
        for argument in inputs:
            name = _get(argument, "name", str, f"{self.where}: {where}")
            yield name, self._argument(_get(argument, "arg", dict, f"{self.where}: {where}"), where, prefix)

    def _argument(self, union: Any, where: str, prefix: str) -> Argument:
        at = f"{self.where}: {where}"
        kind, value = _one(union, at)
        if kind == "as_none" or kind in ("as_device", "as_graph", "as_operator"):
            return None
        if kind in ("as_tensor", "as_optional_tensor", "as_sym_int", "as_sym_bool", "as_sym_float"):
            return self._named(value, at, prefix)
        if kind in ("as_tensors", "as_optional_tensors", "as_sym_ints", "as_sym_bools", "as_sym_floats"):
            return tuple(self._named(one, at, prefix) for one in _list(value, at))
        if kind in _PLAIN and isinstance(value, (bool, int, float, str)):
            return value
        if kind in _LISTS and all(isinstance(one, (bool, int, float, str)) for one in _list(value, at)):
            return tuple(value)
        raise InputError("an argument of an unknown kind", where=at, got=kind)

    def _named(self, value: Any, where: str, prefix: str) -> Argument:
        """A reference, written as a name or as one of several, or the figure in its place."""
        if isinstance(value, dict) and "name" in value:
            name = _get(value, "name", str, where)
            return Ref(self._known(name, prefix))
        kind, inner = _one(value, where)
        if kind == "as_tensor":
            return self._named(inner, where, prefix)
        if kind == "as_name" and isinstance(inner, str):
            return Ref(self._known(inner, prefix))
        if kind in ("as_int", "as_float", "as_bool") and isinstance(inner, (int, float)):
            return inner
        if kind == "as_none":
            return None
        raise InputError("an argument of an unknown kind", where=where, got=kind)

    def _known(self, name: str, prefix: str) -> str:
        return self.renamed.get(prefix + name, prefix + name)

    def _spliced(
        self, node: dict[str, Any], scope: tuple[str, ...], prefix: str, depth: int, where: str
    ) -> Iterator[ForeignNode]:
        """The nodes of a graph that is called where it stands; names inside of it are its own."""
        at, outer = f"{self.where}: {where}", prefix.rsplit(":", 2)[0] + ":" if prefix.count(":") > 1 else ""
        unions = [_get(one, "arg", dict, at) for one in _get(node, "inputs", list, at)]
        graphs = [one["as_graph"] for one in unions if "as_graph" in one]
        if len(graphs) != 1:
            raise InputError("a call of a graph without one", where=at)
        graph = _get(graphs[0], "graph", dict, at)
        behind = unions[next(place for place, one in enumerate(unions) if "as_graph" in one) + 1 :]
        given = [self._argument(one, where, outer) for one in behind]
        formal = [_get(_one(one, at)[1], "name", str, at) for one in _get(graph, "inputs", list, at)]
        if len(formal) != len(given) or not all(isinstance(one, Ref) for one in given):
            raise InputError(
                "a graph is called with other arguments", where=at, got=len(given), expected=str(len(formal))
            )
        for name, argument in zip(formal, given, strict=True):
            if isinstance(argument, Ref):
                self.renamed[prefix + name] = argument.name
        yield from self.nodes(graph, scope, prefix, depth + 1)
        results = [self._argument(one, where, prefix) for one in _get(graph, "outputs", list, at)]
        names = list(self._outputs(node, where, outer))
        if len(names) != len(results):
            raise InputError("a graph gives other results", where=at, got=len(results), expected=str(len(names)))
        for name, result in zip(names, results, strict=True):
            if isinstance(result, Ref):
                self.renamed[name] = result.name


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError("not a list", where=where, got=value)
    return value


def _hint(size: Any) -> int:
    """What an open size was where the program was exported."""
    content = size.get("as_expr") if isinstance(size, dict) else None
    hint = content.get("hint") if isinstance(content, dict) else None
    found = hint.get("as_int") if isinstance(hint, dict) else None
    return found if isinstance(found, int) else 0


def _short(target: str) -> str:
    """`torch.ops.aten.relu.default` -> `aten.relu.default`; `_operator.mul` as it is."""
    return target.removeprefix("torch.ops.")


def _scope(metadata: Any, outer: tuple[str, ...]) -> tuple[str, ...]:
    """Modules that a node was called in: the last entry of `id,path,class;id,path,class`."""
    stack = metadata.get("nn_module_stack") if isinstance(metadata, dict) else None
    if not isinstance(stack, str) or not stack or stack.startswith("_empty"):
        return outer
    parts = stack.split(";")[-1].split(",")
    path = parts[1] if len(parts) > 1 else ""
    return tuple(part for part in path.split("@")[0].split(".") if part)
