"""Compiled loops: numba's machine code of a function, and numba itself, are loaded when the first one is called.

That takes about a second, which most commands and most ranks of a job never need: what they run in loops is short.
Such a loop is interpreted until, in sum, that has cost what the compiler would (`CompiledLoop.pays`); it is the same
function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property, update_wrapper
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

WORTH = 20_000
"""Turns of a loop that take the interpreter about as long as it takes to load the compiler, less a good margin."""

_loading = threading.RLock()


class CompiledLoop(Generic[P, R]):
    """A function that runs as machine code. Loops may call each other; to numba this is the code that it stands for."""

    def __init__(self, function: Callable[P, R], **options: Any) -> None:
        update_wrapper(self, function)
        self._function = function
        self._options = options
        self._machine_code: Any = None
        self._interpreted_turns = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the machine code."""
        found: R = (self._machine_code or self.load())(*args, **kwargs)
        return found

    def pays(self, turns: int) -> bool:
        """Whether about so many turns, with all that were asked about before, are worth a compiler; then it is used."""
        if self._machine_code is None:
            self._interpreted_turns += turns
            return self._interpreted_turns > WORTH
        return True

    def worth(self, turns: int) -> Callable[P, R]:
        """What to call for about so many turns, with the same arguments: this, or the function as it is interpreted."""
        return self if self.pays(turns) else self.interpreted

    def load(self) -> Any:
        """numba's dispatcher, made when it is first asked for.

        Raises:
            EnvironmentLacks: the compiler is switched off.
        """
        with _loading:  # two dispatchers would be two types to numba
            if self._machine_code is None:
                from strategy.base.machine_code import machine_code

                self._machine_code = machine_code(self._function, **self._options)
        return self._machine_code

    @property
    def _numba_type_(self) -> Any:
        """What numba takes this for, in a loop that calls it."""
        return self.load()._numba_type_

    @cached_property
    def interpreted(self) -> Callable[P, R]:
        """The function, in whose body loops are interpreted, too."""
        assert isinstance(self._function, FunctionType)
        code, names = self._function.__code__, self._function.__globals__
        inner = {name: names[name].interpreted for name in code.co_names if isinstance(names.get(name), CompiledLoop)}
        found: Callable[P, R] = FunctionType(code, names | inner)
        return found


def compiled(function: Callable[P, R]) -> CompiledLoop[P, R]:
    """`function`, compiled for the types of its arguments when it is first called."""
    return CompiledLoop(function)


def in_place(function: Callable[P, R]) -> CompiledLoop[P, R]:
    """The same, for what makes no arrays but works on those given: then no references to arrays are counted."""
    return CompiledLoop(function, _nrt=False)
