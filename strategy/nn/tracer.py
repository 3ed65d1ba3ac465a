"""Tracer: turns a module's forward code into a graph, op by op.

    x = Tensor(tracer, tracer.input("x", TensorSpec((8, 4))))
    y = (x @ w + b).relu()

Ops are named by the module that applies them and by their label, or by their kind and a number where no label is
given: `layers.3.fc.matmul`, `layers.3.add`, `layers.3.add_2`. The names depend on the code alone.

After a mistake, tracing goes on: what the wrong op would have written is *poisoned*, ops that read it are left out, and
all other ops are still looked at. So one report holds every independent problem of a graph.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import final

from strategy.base.errors import GraphError, InputError, did_you_mean
from strategy.base.identity import Identity
from strategy.graph.builder import OF_A_STEP, GraphBuilder
from strategy.graph.graph import Attrs, Lineage, Path, Phase, Role, Value, layer_of, template_of
from strategy.nn.module import Module, Parameter, paths
from strategy.nn.operators import Operators
from strategy.sbp.placement import Placement, Space
from strategy.sbp.sbp import Sbp
from strategy.sbp.tensor import DType, Rate, Shape, TensorSpec


@dataclass(frozen=True, slots=True)
class Scope:
    """Where in the module tree ops are applied: the attributes that lead there, and the repeated or the lone layer."""

    path: Path = ()
    layer: int | None = None
    lone_layer: str = ""

    def named(self, label: str) -> Lineage:
        """The lineage of an op that is called `label` there."""
        path = (*self.path, label)
        template = template_of(path) if self.layer is not None else ""
        return Lineage(".".join(map(str, path)), template, lone_layer=self.lone_layer)


@dataclass(slots=True)
class Tracer:
    """State of one tracing: the graph so far, where in the module tree we are, and what is wrong."""

    graph: GraphBuilder = field(default_factory=GraphBuilder)
    scopes: list[Scope] = field(default_factory=list)
    named_parameters: dict[Parameter, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    pins: dict[str, Sbp | Sequence[Sbp]] = field(default_factory=dict)
    """Value -> the layout that the code asks for: one SBP per mesh axis, or one for all."""
    places: dict[str, Placement] = field(default_factory=dict)
    """Value -> the stage that the code brings it to."""
    dtype: DType = DType.FLOAT32
    """Of the parameters of the adopted module."""
    _paths: dict[Identity, Scope] = field(default_factory=dict)
    _poisoned: dict[str, TensorSpec] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _calls: dict[Identity, int] = field(default_factory=dict)

    def adopt(self, module: Module, dtype: DType) -> None:
        """Declare all parameters of a module tree and remember every module's path."""
        self.dtype, lone = dtype, dict[Path, str]()
        for member, path in paths(module):
            layer, around = layer_of(path), lone.get(path[:-1], "")
            lone[path] = around or (".".join(map(str, path)) if member.is_layer and layer is None else "")
            self._paths.setdefault(Identity(member), Scope(path, layer, lone[path]))
            for attribute, parameter in member.own_parameters():
                if parameter not in self.named_parameters:
                    own, spec = (*path, attribute), TensorSpec(parameter.shape, dtype)
                    name = ".".join(map(str, own))
                    self.graph.declare(Value(name, spec, Rate.STEP, Role.VARIABLE, parameter.init, path=own))
                    self.named_parameters[parameter] = name

    def input(self, name: str, spec: TensorSpec) -> Tensor:
        """Declare an input of the graph, of which every micro-batch has its own piece.

        Raises:
            GraphError: it is ragged: which rows there are is computed, not loaded.
        """
        if spec.ragged is not None:
            raise GraphError([f"input {name}: is ragged; load its tokens and their experts, and dispatch them"])
        if name in OF_A_STEP:
            raise GraphError([f"input {name}: a value of every training step is called so; call it otherwise"])
        return Tensor(self, self.graph.declare(Value(name, spec, Rate.MICRO_BATCH, Role.INPUT)))

    @contextmanager
    def enter(self, module: Module) -> Iterator[None]:
        """Apply ops under a module's name meanwhile, from its second call on with a number.

        Leaving the outermost module reports what is wrong.

        Raises:
            GraphError: with every problem so far.
        """
        known = Identity(module)
        scope = self._paths[known]
        self._calls[known] = number = self._calls.get(known, 0) + 1
        self.scopes.append(scope if number == 1 else replace(scope, path=(*scope.path, f"call_{number}")))
        try:
            yield
        except Exception as error:
            if not self.problems:
                raise
            told = (str(error),) if isinstance(error, InputError) else ()
            more = error.problems if isinstance(error, GraphError) else told
            raise GraphError(tuple(dict.fromkeys((*self.problems, *more)))) from error
        finally:
            self.scopes.pop()
        if not self.scopes:
            self.check()

    def check(self) -> None:
        """Raise GraphError with every problem found so far, if there is any."""
        if self.problems:
            raise GraphError(self.problems)

    def holds(self, module: Module) -> bool:
        """Whether a module belongs to the traced tree."""
        return Identity(module) in self._paths

    def foreign(self, module: Module, like: Tensor) -> Tensor:
        """Note that a module is called that does not belong here; stands for what it would have given."""
        self.problems.append(f"a {type(module).__name__} is called that is no attribute of the traced module")
        return self._poison(self._scope.named(type(module).__name__).name, like.spec)

    def parameter(self, module: Module, name: str, like: Tensor) -> Tensor:
        """The traced tensor of the parameter in attribute `name` of a module."""
        held = dict(module.own_parameters())
        kind = type(module).__name__
        if name not in held:
            self.problems.append(f"{kind} has no parameter {name}; {did_you_mean(name, held)}")
            return self._poison(self._scope.named(name).name, like.spec)
        found = self.named_parameters.get(held[name])
        if found is None:
            self.problems.append(f"{kind}.{name} does not belong to the module that is traced")
            return self._poison(self._scope.named(name).name, TensorSpec(held[name].shape, like.spec.dtype))
        return Tensor(self, found)

    def own(self, parameter: Parameter, like: Tensor) -> Tensor:
        """The traced tensor of a parameter, wherever in the traced module it is."""
        found = self.named_parameters.get(parameter)
        if found is not None:
            return Tensor(self, found)
        told = f"a parameter of {list(parameter.shape)}"
        self.problems.append(f"{told} does not belong to the module that is traced; hold it in an attribute of it")
        return self._poison(self._scope.named("parameter").name, TensorSpec(parameter.shape, like.spec.dtype))

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of a tensor; of a poisoned one, a guess."""
        return self._poisoned[name] if name in self._poisoned else self.graph.spec(name)

    def space(self, name: str) -> Space:
        """The memory that a tensor is in; of a poisoned one, a guess."""
        return Space.DEVICE if name in self._poisoned else self.graph.values[name].space

    @property
    def _scope(self) -> Scope:
        return self.scopes[-1] if self.scopes else Scope()

    def apply(
        self, label: str, kind: str, inputs: Sequence[Tensor], attrs: Attrs | None = None, labels: Sequence[str] = ()
    ) -> tuple[Tensor, ...]:
        """Append an op called `label` under the current scope; without a label it is called like its kind."""
        scope = self._scope
        line = scope.named(label) if label else self._free(scope, kind)
        if line.name in OF_A_STEP:
            line = self._free(scope, line.name)
        name = line.name
        strangers = [t for t in inputs if t.tracer is not self]
        if strangers:
            self.problems += [f"op {name}: reads {t.name}, a tensor of another graph" for t in strangers]
        elif not any(t.name in self._poisoned for t in inputs):
            try:
                operands = [t.name for t in inputs]
                outputs = self.graph.add(line, kind, operands, labels=labels, attrs=attrs, layer=scope.layer)
                return tuple(Tensor(self, output) for output in outputs)
            except GraphError as error:
                self.problems += error.problems
        guess = self._guess(inputs, attrs or {})
        return tuple(self._poison(output, guess) for output in (name, *(f"{name}.{label}" for label in labels)))

    def stream(self, like: Tensor) -> int:
        """What tells the random masks of ops on different tensors apart."""
        return zlib.crc32(like.name.encode())

    def follow(
        self,
        like: Tensor,
        label: str,
        kind: str,
        terms: Mapping[str, Tensor],
        updates: Sequence[Tensor],
        attrs: Attrs,
    ) -> None:
        """Update state once per step by an op on the step's sums of terms.

        The ops belong to that of `like`, on whose stage they run; they are called by the labels.
        """
        graph, layer = self.graph, self._scope.layer
        if any(t.name in self._poisoned for t in (like, *terms.values(), *updates)):
            return
        sums = [
            graph.add(graph.derived(like.name, term, layer), "accumulate", (tensor.name,), layer=layer)[0]
            for term, tensor in terms.items()
        ]
        line, names = graph.derived(like.name, label, layer), [tensor.name for tensor in updates]
        graph.add(line, kind, sums, updates=names, attrs=attrs, phase=Phase.UPDATE, layer=layer)

    def _free(self, scope: Scope, kind: str) -> Lineage:
        """An op called like its kind, with a number from the second one on."""
        first = line = scope.named(kind)
        number = self._numbers.get(first.name, 1)
        while line.name in self.graph.values or line.name in self._poisoned or line.name in OF_A_STEP:
            number += 1
            line = scope.named(f"{kind}_{number}")
        self._numbers[first.name] = number
        return line

    def _poison(self, name: str, guess: TensorSpec) -> Tensor:
        while name in self.graph.values or name in self._poisoned:
            name += "?"
        self._poisoned[name] = guess
        return Tensor(self, name)

    @staticmethod
    def _guess(inputs: Sequence[Tensor], attrs: Attrs) -> TensorSpec:
        """So that code which looks at a poisoned shape goes on; nothing is judged by it."""
        widest = max((t.spec for t in inputs), key=lambda spec: len(spec.shape), default=TensorSpec(()))
        wanted = attrs.get("shape")
        dims = tuple(dim for dim in wanted if isinstance(dim, int) and dim >= 1) if isinstance(wanted, tuple) else ()
        return TensorSpec(dims, widest.dtype) if dims == wanted else widest


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tensor(Operators):
    """A traced tensor: a name in the graph under construction."""

    tracer: Tracer
    name: str

    @property
    def spec(self) -> TensorSpec:
        """Logical shape and dtype."""
        return self.tracer.spec(self.name)

    @property
    def shape(self) -> Shape:
        """Logical shape."""
        return self.spec.shape

    def apply(self, label: str, kind: str, *others: Tensor, attrs: Attrs | None = None) -> Tensor:
        """The first output of an op on this tensor and `others`, called `label`."""
        return self.tracer.apply(label, kind, (self, *others), attrs)[0]

    def pin(self, sbp: Sbp | Sequence[Sbp]) -> Tensor:
        """This tensor, which is to be laid out like that, wherever it is written or read."""
        self.tracer.pins[self.name] = sbp
        return self

    def to_global(self, placement: Placement | None = None, sbp: Sbp | Sequence[Sbp] | None = None) -> Tensor:
        """A copy of this tensor elsewhere, or laid out otherwise; what reads the copy runs where that is.

        What is brought to hosts is computed on by them, until it is brought back to devices.
        """
        space = self.tracer.space(self.name)
        moves = placement is not None and placement.space is not space
        copy = self.operate(f"to_{placement.space}" if placement is not None and moves else "copy")
        if placement is not None:
            self.tracer.places[copy.name] = replace(placement, space=Space.DEVICE)
        return copy if sbp is None else copy.pin(sbp)

    def lifted(self, other: object) -> Tensor | None:
        """A tensor, or the tensor of a parameter of the traced module."""
        if isinstance(other, Parameter):
            return self.tracer.own(other, self)
        return other if isinstance(other, Tensor) else None

    def item(self) -> float:
        """There are no numbers yet.

        Raises:
            InputError: always; says what to do.
        """
        raise InputError(
            "a traced tensor has no number yet",
            where=self.name,
            hint="return it from build, and read result().numpy(); line by line, a global tensor has item()",
        )

    __float__ = __int__ = item
