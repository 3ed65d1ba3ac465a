"""Ahead-of-time code: functions of one module in one object file, which LLVM loads.

numba compiles them once (`object_compiler`), into a private folder. A process that finds the file there imports no
compiler, which takes half a second, and as long again for what it makes of its own cache: of a job's thousands of ranks
each would wait for that. What a file was made from and for is hashed with the code, and the hash lies in front: the
source, the versions of all that had a hand in it, and the processor. A file that was made otherwise, or was damaged,
is never run; it is made again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, cached_property, update_wrapper
from importlib.util import find_spec
from inspect import get_annotations
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from strategy.base.entries import LIBRARY, OPERANDS, RAISED, WRONG_COUNT, Operand
from strategy.base.errors import EnvironmentLacks, InternalError, SbplanError
from strategy.base.files import held, write_atomic
from strategy.base.private_folder import cache_folder

Given = ParamSpec("Given")
Result = TypeVar("Result")

MOST_WAIT_S = 60.0
"""For another process that compiles the same; then it is done here, too."""

_SETTINGS = ("CPU_NAME", "CPU_FEATURES", "ENABLE_AVX", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK")
"""Of numba, by which it makes other code."""
_COMPILER = ("entries.py", "object_compiler.py", "machine_code.py")
"""Of ours, what makes the code."""
_DIGEST_BYTES = hashlib.sha256().digest_size

_METH_FASTCALL = 0x80


class _Method(ctypes.Structure):
    """PyMethodDef; a function of Python's refers to it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
_loading = threading.RLock()


class ObjectFunction(Generic[Given, Result]):
    """A function of an object file. One that gives something back has no entry: other functions call it."""

    def __init__(self, function: Callable[Given, Result], home: ObjectFile, options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.name = function.__name__
        self._function = function
        self._home = home
        self.options = options
        self._entry: Callable[..., int] | None = None

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """Run the machine code.

        Raises:
            TypeError: an operand is not what its annotation says.
            EnvironmentLacks: the code is not there yet, and the compiler is switched off.
        """
        entry = self._entry
        if entry is None:
            self._home.load()
            entry = self._entry
            assert entry is not None
        if refused := entry(*args, **kwargs):
            raise self._error(refused)
        return None  # type: ignore[return-value]  # as does every function with an entry

    @cached_property
    def operands(self) -> dict[str, Operand]:
        """By the parameter's name."""
        annotations = get_annotations(self._function)
        return {name: OPERANDS[text] for name, text in annotations.items() if name != "return"}

    @property
    def has_entry(self) -> bool:
        """Whether Python calls it."""
        return bool(get_annotations(self._function)["return"] == "None")

    @cached_property
    def dispatcher(self) -> Any:
        """numba's, which compiles it; for compiling alone.

        Raises:
            EnvironmentLacks: the compiler is switched off.
        """
        from strategy.base.machine_code import dispatcher

        bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
        return dispatcher(self._function, **bare, **self.options)

    @property
    def _numba_type_(self) -> Any:
        """What numba takes this for, in a function that calls it."""
        return self.dispatcher._numba_type_

    def enter_at(self, address: int) -> None:
        """Call the machine code at an address from now on."""
        self._method = _Method(self.name.encode(), address, _METH_FASTCALL, None)
        self._entry = _new_function(ctypes.byref(self._method), np.ndarray, None)

    def _error(self, refused: int) -> Exception:
        if refused == RAISED:
            return InternalError(f"machine code of {self.name} raised an error")
        if refused == WRONG_COUNT:
            return TypeError(f"{self.name} takes {len(self.operands)} arguments")
        parameter, operand = list(self.operands.items())[refused - 1]
        wanted = f"{operand.dims} dims of {operand.dtype}, contiguous, aligned and writeable"
        return TypeError(f"{self.name}: {parameter} is no array of {wanted}")


class ObjectFile:
    """The functions of one module, which are loaded together when the first of them is called."""

    def __init__(self, source: str, what: str) -> None:
        self._source = Path(source)
        self._what = what
        self._engine: Any = None
        self.functions: list[ObjectFunction[..., Any]] = []

    def function(self, function: Callable[Given, Result], **options: Any) -> ObjectFunction[Given, Result]:
        """`function`, as one of this file; options are those of numba's compiler."""
        made = ObjectFunction(function, self, options)
        self.functions.append(made)
        return made

    @property
    def entries(self) -> dict[str, ObjectFunction[..., Any]]:
        """Those that Python calls, by the symbol of their entries, which must not be that of a function of C."""
        return {f"{self._source.stem}.{f.name}": f for f in self.functions if f.has_entry}

    @property
    def folder(self) -> Path | None:
        """Where the file is kept, if it can be."""
        return cache_folder(self._source.parent)

    def is_usable(self) -> bool:
        """Whether the compiler is on, what it makes can be kept (else every process would compile anew), and read."""
        return sys.platform == "linux" and not is_compiler_off() and self.folder is not None

    def load(self) -> None:
        """Make all functions callable: by the code that is kept, else by what is compiled now, and kept if it can be.

        Raises:
            EnvironmentLacks: there is no code, and the compiler is switched off.
        """
        with _loading:
            if self._engine is None:
                engine = _linked(self._kept() or self._made())
                for symbol, function in self.entries.items():
                    function.enter_at(engine.get_function_address(symbol))
                self._engine = engine

    def _path(self, folder: Path) -> Path:
        """A file per processor: nodes of several kinds may share a folder."""
        return folder / f"{self._source.stem}.{hashlib.sha256(_host().encode()).hexdigest()[:16]}.object"

    def _kept(self) -> bytes | None:
        """The code that is kept, if it is what would be made now, and is whole."""
        if self.folder is None:
            return None
        try:
            content = self._path(self.folder).read_bytes()
        except OSError:
            return None
        code = content[_DIGEST_BYTES:]
        return code if content[:_DIGEST_BYTES] == self._digest(code) else None

    def _made(self) -> bytes:
        """The code, compiled by this process, or by another one that was already at it."""
        if self.folder is None:
            return self._compiled()
        with _alone_in(self.folder):
            code = self._kept()
            if code is None:
                code = self._compiled()
                with suppress(SbplanError):  # a full disk
                    write_atomic(self._path(self.folder), self._digest(code) + code)
        return code

    def _compiled(self) -> bytes:
        if is_compiler_off():
            raise EnvironmentLacks("numba's compiler is switched off and is needed; unset NUMBA_DISABLE_JIT")
        sys.stderr.write(f"sbplan: {self._what} are compiled, once for this machine\n")
        sys.stderr.flush()
        from strategy.base.object_compiler import object_code

        return object_code({symbol: (f.dispatcher, list(f.operands.values())) for symbol, f in self.entries.items()})

    def _digest(self, code: bytes) -> bytes:
        """Of the code and of all that it follows from."""
        found = hashlib.sha256("\n".join((_host(), *_versions(), *_settings())).encode())
        for path in (self._source, *map(Path(__file__).with_name, _COMPILER)):
            found.update(hashlib.sha256(path.read_bytes()).digest())
        found.update(code)
        return found.digest()


def is_compiler_off() -> bool:
    """Whether the user has switched numba's compiler off."""
    with suppress(ValueError):
        return int(os.environ.get("NUMBA_DISABLE_JIT", "0")) != 0
    return False


@cache
def _host() -> str:
    """The processor, and which of its instructions may be used."""
    from llvmlite import binding as llvm

    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _versions() -> Iterator[str]:
    """Of what makes the code, and of those whose objects it reads; numba's is read, since importing it takes long."""
    import llvmlite

    yield f"{sys.implementation.cache_tag} {object.__basicsize__}"
    yield f"numpy {np.__version__} llvmlite {llvmlite.__version__}"
    compiler = find_spec("numba")
    if compiler is not None and compiler.origin is not None:
        with suppress(OSError):
            yield Path(compiler.origin).with_name("_version.py").read_text()


def _settings() -> Iterator[str]:
    return (f"{name} {os.environ.get(f'NUMBA_{name}')}" for name in _SETTINGS)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """As the only process that writes there, if the file system knows locks, and others end in time."""
    with ExitStack() as stack:
        with suppress(SbplanError):
            stack.enter_context(held(folder, wait_s=MOST_WAIT_S))
        yield


def _linked(code: bytes) -> Any:
    """The engine that holds an object file as part of this process."""
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    lacking = [name for name in sorted(LIBRARY) if llvm.address_of_symbol(name) is None]
    if lacking:
        raise EnvironmentLacks(f"the C library of this process lacks {', '.join(lacking)}; set NUMBA_DISABLE_JIT=1")
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
