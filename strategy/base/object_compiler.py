"""Object code of functions: compiled by numba, with an entry for each that takes NumPy's arrays as they are.

An entry is what Python's C interface calls a function of a module. It checks every array, reads every scalar, spells
out what numba's convention of calls asks for, and calls the function without the lock of the interpreter. It returns 0,
or the position, from 1, of the first array that is not what the function was compiled for, or `RAISED` or
`WRONG_COUNT`. What it reads of arrays and their dtypes lies where NumPy's C interface has it, in all its versions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba.core import types
from numba.np.arrayobj import make_array, populate_array

from strategy.base.entries import LIBRARY, RAISED, WRONG_COUNT, Operand
from strategy.base.errors import InternalError

_BYTE, _INT, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _BYTE.as_pointer()
_OBJECT = ir.ArrayType(_BYTE, object.__basicsize__ - 8)
"""What an object begins with, up to its type."""
_DTYPE = ir.LiteralStructType([_OBJECT, _POINTER, _POINTER, _BYTE, _BYTE, _BYTE, _BYTE, _INT])
"""type, scalar type, kind, character, byte order, flags, number (PyArray_Descr)."""
_ARRAY = ir.LiteralStructType(
    [_OBJECT, _POINTER, _POINTER, _INT, _WORD.as_pointer(), _WORD.as_pointer(), _POINTER, _DTYPE.as_pointer(), _INT]
)
"""type, data, dims, shape, strides, base, dtype, flags (PyArrayObject_fields)."""
_TYPE, _DATA, _DIMS, _SHAPE, _STRIDES, _ARRAY_DTYPE, _FLAGS = 1, 2, 3, 4, 5, 7, 8
_BYTE_ORDER, _NUMBER = 5, 7
_LIES_FLAT = 0x1 | 0x100 | 0x400
"""NPY_ARRAY_C_CONTIGUOUS, _ALIGNED, _WRITEABLE."""

_ELF64_SYMBOL = struct.Struct("=IBBHQQ")
"""name, type and binding, visibility, section (0: defined elsewhere), value, size."""


def object_code(functions: Mapping[str, tuple[Any, Sequence[Operand]]]) -> bytes:
    """One object file of all functions: by symbols of their entries, numba's dispatchers and what each is called with.

    Functions are optimised by numba, one by one, and only put together here: they have the bits that numba's own calls
    give.

    Raises:
        EnvironmentLacks: the compiler is switched off.
        InternalError: a function calls what not every process has.
    """
    compiled = {symbol: _compiled(*function) for symbol, function in functions.items()}
    codegen = next(iter(compiled.values())).library.codegen
    entries = codegen.create_library("entries").create_ir_module("entries")
    for symbol, result in compiled.items():
        _add_entry(entries, symbol, result, functions[symbol][1])
    linked = llvm.parse_assembly(str(entries))
    for result in compiled.values():
        linked.link_in(llvm.parse_bitcode(result.library.serialize_using_bitcode()[-1]))
    linked.verify()
    code: bytes = codegen._tm.emit_object(linked)
    strangers = sorted(set(undefined_symbols(code)) - LIBRARY)
    if strangers:
        raise InternalError(f"functions of an object file call what not every process has: {', '.join(strangers)}")
    return code


def undefined_symbols(code: bytes) -> Iterator[str]:
    """What an object file calls without having it.

    Raises:
        InternalError: it is no ELF file of 64 bits, as Linux has them.
    """
    if code[:5] != b"\x7fELF\x02":
        raise InternalError("object files of this system cannot be read")
    sections = {section.name(): section.data() for section in llvm.ObjectFileRef.from_data(code).sections()}
    names = sections[b".strtab"]
    for name, _, _, section, _, _ in _ELF64_SYMBOL.iter_unpack(sections[b".symtab"]):
        if name and not section:
            yield names[name : names.index(b"\0", name)].decode()


def _compiled(dispatcher: Any, operands: Sequence[Operand]) -> Any:
    """numba's result for the operands that the function always has."""
    signature = tuple(map(_numba_type, operands))
    dispatcher.compile(signature)
    return dispatcher.overloads[signature]


def _numba_type(operand: Operand) -> Any:
    scalar = getattr(types, operand.dtype)
    return types.Array(scalar, operand.dims, "C") if operand.dims else scalar


def _add_entry(module: ir.Module, symbol: str, result: Any, operands: Sequence[Operand]) -> None:
    """What Python calls: a function of the type array, the arguments and their number (METH_FASTCALL)."""
    entry = ir.Function(module, ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _WORD]), symbol)
    array_type, arguments, count = entry.args
    builder = ir.IRBuilder(entry.append_basic_block())
    _return_unless(builder, builder.icmp_signed("==", count, _WORD(len(operands))), WRONG_COUNT)
    values = []
    kinds = result.signature.args
    for position, (operand, kind) in enumerate(zip(operands, kinds, strict=True), 1):
        argument = builder.load(builder.gep(arguments, [_INT(position - 1)]))
        if operand.dims:
            array = builder.bitcast(argument, _ARRAY.as_pointer())
            _return_unless(builder, builder.icmp_unsigned("==", _field(builder, array, _TYPE), array_type), position)
            _return_unless(builder, _fits(builder, array, operand), position)
            values.append(_array(result.target_context, builder, array, kind))
        else:
            values.append(_scalar(builder, argument, operand))
    function = result.target_context.declare_function(module, result.fndesc)
    state = _call(builder, _POINTER, "PyEval_SaveThread")
    status, _ = result.target_context.call_conv.call_function(builder, function, types.none, kinds, values)
    _call(builder, ir.VoidType(), "PyEval_RestoreThread", state)
    _return_unless(builder, builder.not_(status.is_error), RAISED)
    builder.ret(_number(builder, 0))


def _scalar(builder: ir.IRBuilder, argument: Any, operand: Operand) -> Any:
    """A scalar as code computes with it; what Python says of an argument that is none is passed on."""
    if operand.dtype == "float32":
        found = _call(builder, ir.DoubleType(), "PyFloat_AsDouble", argument)
        value, fails = builder.fptrunc(found, ir.FloatType()), builder.fcmp_ordered("==", found, found.type(-1.0))
    elif operand.dtype == "int64":
        value = _call(builder, _WORD, "PyLong_AsLongLong", argument)
        fails = builder.icmp_signed("==", value, _WORD(-1))
    else:
        found = _call(builder, _INT, "PyObject_IsTrue", argument)
        value, fails = builder.icmp_signed("!=", found, _INT(0)), builder.icmp_signed("==", found, _INT(-1))
    with builder.if_then(fails, likely=False):
        raised = builder.icmp_unsigned("!=", _call(builder, _POINTER, "PyErr_Occurred"), _POINTER(None))
        with builder.if_then(raised):
            builder.ret(_POINTER(None))
    return value


def _fits(builder: ir.IRBuilder, array: Any, operand: Operand) -> Any:
    dtype = np.dtype(operand.dtype)
    descriptor = _field(builder, array, _ARRAY_DTYPE)
    flags = builder.and_(_field(builder, array, _FLAGS), _INT(_LIES_FLAT))
    return builder.and_(
        builder.and_(
            builder.icmp_unsigned("==", _field(builder, array, _DIMS), _INT(operand.dims)),
            builder.icmp_unsigned("==", flags, _INT(_LIES_FLAT)),
        ),
        builder.and_(
            builder.icmp_unsigned("==", _field(builder, descriptor, _NUMBER), _INT(dtype.num)),
            builder.icmp_unsigned("==", _field(builder, descriptor, _BYTE_ORDER), _BYTE(ord("="))),
        ),
    )


def _array(context: Any, builder: ir.IRBuilder, array: Any, kind: Any) -> Any:
    """numba's view of an array that keeps nothing alive: whoever calls does."""
    view = make_array(kind)(context, builder)  # type: ignore[no-untyped-call]
    populate_array(  # type: ignore[no-untyped-call]
        view,
        data=builder.bitcast(_field(builder, array, _DATA), view.data.type),
        shape=_numbers(builder, _field(builder, array, _SHAPE), kind.ndim),
        strides=_numbers(builder, _field(builder, array, _STRIDES), kind.ndim),
        itemsize=_WORD(np.dtype(str(kind.dtype)).itemsize),
        meminfo=None,
    )
    return view._getvalue()


def _field(builder: ir.IRBuilder, record: Any, position: int) -> Any:
    return builder.load(builder.gep(record, [_INT(0), _INT(position)]))


def _numbers(builder: ir.IRBuilder, begin: Any, count: int) -> list[Any]:
    return [builder.load(builder.gep(begin, [_INT(at)])) for at in range(count)]


def _return_unless(builder: ir.IRBuilder, holds: Any, number: int) -> None:
    with builder.if_then(builder.not_(holds), likely=False):
        builder.ret(_number(builder, number))


def _number(builder: ir.IRBuilder, value: int) -> Any:
    return _call(builder, _POINTER, "PyLong_FromLong", _WORD(value))


def _call(builder: ir.IRBuilder, result: Any, name: str, *arguments: Any) -> Any:
    """A call of Python's C interface."""
    module = builder.module
    declared = ir.FunctionType(result, [argument.type for argument in arguments])
    function = module.globals.get(name) or ir.Function(module, declared, name)
    return builder.call(function, arguments)
