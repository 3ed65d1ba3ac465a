"""GlobalTensor: a logical tensor whose pieces lie on several ranks, and what runs modules on it line by line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

from numpy.typing import NDArray

from executor.frontend.global_tensor.boxing import converted
from executor.frontend.global_tensor.distributed_tensor import DistributedTensor, Layouts, legal_layout, placement
from executor.frontend.global_tensor.running import run_op, run_update
from executor.frontend.world import Noted, World
from strategy.base.errors import GraphError, InputError, did_you_mean, present
from strategy.graph.graph import Attrs
from strategy.nn.module import Module, Parameter
from strategy.nn.operators import Operators
from strategy.sbp.placement import Placement
from strategy.sbp.ragged import Rows
from strategy.sbp.sbp import B
from strategy.sbp.tensor import DType, Shape


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GlobalTensor(DistributedTensor, Operators):
    """A logical tensor; `piece` is what this rank holds of it, None where the placement leaves this rank out."""

    @property
    def shape(self) -> Shape:
        """Logical shape."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self.spec.dtype

    @property
    def tracer(self) -> Eager:
        """What runs modules on it."""
        return Eager(self.world)

    def __repr__(self) -> str:
        return f"GlobalTensor({self})"

    def apply(self, label: str, kind: str, *others: GlobalTensor, attrs: Attrs | None = None) -> GlobalTensor:
        """The first output of an op on this tensor and `others`; labels matter to graphs alone."""
        return run_op(kind, (self, *others), attrs or {})[0]

    def lifted(self, other: object) -> GlobalTensor | None:
        """A global tensor, or the value of a parameter in this world."""
        if isinstance(other, Parameter):
            return self.tracer.own(other)
        return other if isinstance(other, GlobalTensor) else None

    def item(self) -> float | int:
        """The number that is its only element, on every rank.

        Raises:
            InputError: it has several, or none.
        """
        if math.prod(self.shape) != 1:
            got, hint = list(self.shape), "reduce it first (sum, mean, max), or read numpy()"
            raise InputError("a tensor of several elements is no number", got=got, expected="one element", hint=hint)
        number: float | int = self.numpy().item()
        return number

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def to_global(self, placement: Placement | None = None, sbp: Layouts | None = None) -> GlobalTensor:
        """The same tensor elsewhere, or laid out otherwise.

        Raises:
            InputError: the layout does not fit the tensor or the placement.
            RunError: the ranks do not ask for the same.
        """
        there = self.placement if placement is None else placement
        self.world.check(there)
        at_home = (there.devices, there.mesh) == (self.placement.devices, self.placement.mesh)
        wanted = self.sbp if sbp is None and at_home else sbp
        layout = legal_layout(self.spec, there, wanted)
        self.world.agree(f"to_global({self} to {', '.join(map(str, layout))} on {there})")
        self.settle()
        found = converted(self, there, layout)
        self.world.note(Noted("copy", (self,), (found,), {}, 0))
        return found

    def pin(self, sbp: Layouts) -> GlobalTensor:
        """The same tensor in this layout: what traced code asks for, done at once."""
        return self.to_global(sbp=sbp)

    def detach(self) -> GlobalTensor:
        """The same tensor as a constant: no gradient passes through it."""
        return replace(self)

    def to_local(self) -> Any:
        """This rank's piece, which it shares; None on ranks that hold none."""
        self.settle()
        return self.piece

    def numpy(self) -> NDArray[Any]:
        """A copy of the whole, a ragged one written out, on every rank of the world."""
        whole = self.to_global(placement=placement(range(self.world.size), self.placement.space), sbp=B)
        piece = present(whole.piece, f"the copy of rank {self.world.rank}")
        array: NDArray[Any] = piece.dense() if isinstance(piece, Rows) else piece.copy()
        return array


@dataclass(frozen=True, slots=True)
class Eager:
    """What a tracer is to traced tensors, for global ones: ops run instead of being noted down."""

    world: World

    def holds(self, module: Module) -> bool:
        """Every module can be run."""
        return True

    def foreign(self, module: Module, like: GlobalTensor) -> GlobalTensor:
        """No module is foreign here."""
        raise NotImplementedError(type(module).__name__)

    @contextmanager
    def enter(self, module: Module) -> Iterator[None]:
        """Ops of a module are run like any others."""
        yield

    def parameter(self, module: Module, name: str, like: GlobalTensor) -> GlobalTensor:
        """The parameter in attribute `name` of a module.

        Raises:
            GraphError: there is none, or it has no value yet.
        """
        held = dict(module.own_parameters())
        if name not in held:
            raise GraphError([f"{type(module).__name__} has no parameter {name}; {did_you_mean(name, held)}"])
        return self.own(held[name], f"{type(module).__name__}.{name}")

    def own(self, parameter: Parameter, name: str = "") -> GlobalTensor:
        """The value of a parameter.

        Raises:
            GraphError: it has none yet.
        """
        if parameter not in self.world.state:
            told = name or f"a parameter of {list(parameter.shape)}"
            raise GraphError([f"{told} has no value yet; materialize(module, ...) gives all values"])
        found: GlobalTensor = self.world.state[parameter]
        return found

    def stream(self, like: GlobalTensor) -> int:
        """What tells random masks apart: uses do by their number."""
        return self.world.seed

    def follow(
        self,
        like: GlobalTensor,
        label: str,
        kind: str,
        terms: Mapping[str, GlobalTensor],
        updates: Sequence[GlobalTensor],
        attrs: Attrs,
    ) -> None:
        """Update state by an op on terms of this step, at once."""
        run_update(kind, tuple(terms.values()), updates, attrs)

    def apply(
        self,
        label: str,
        kind: str,
        inputs: Sequence[GlobalTensor],
        attrs: Attrs | None = None,
        labels: Sequence[str] = (),
    ) -> tuple[GlobalTensor, ...]:
        """All outputs of an op; its labels matter to graphs alone."""
        return run_op(kind, inputs, attrs or {})
