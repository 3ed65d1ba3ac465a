"""A PyTorch optimiser whose gradients are averaged over all ranks before each step, while the backward pass goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from executor.exchange.foreign_tensors import as_array
from executor.exchange.gradient_exchange import GradientExchange
from strategy.base.errors import InputError


class DistributedGradients:
    """Announces each gradient as it is accumulated; `synchronize` waits for all.

    Args:
        exchange: of this rank.
        optimizer: a `torch.optim.Optimizer`.
        named_parameters: its parameters by name; without them they are counted.
        backward_passes_per_step: gradients are summed over so many backward passes first.
    """

    def __init__(
        self,
        exchange: GradientExchange,
        optimizer: Any,
        named_parameters: Iterable[tuple[str, Any]] | None,
        backward_passes_per_step: int,
    ) -> None:
        self._exchange = exchange
        self._passes = backward_passes_per_step
        self._parameters = _named(optimizer, named_parameters)
        self._seen = dict.fromkeys(self._parameters, 0)
        self._is_synchronized = False
        exchange.register({name: as_array(p.detach().contiguous(), name) for name, p in self._parameters.items()})
        for name, parameter in self._parameters.items():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: self._accumulated(name, p))
        optimizer.register_step_pre_hook(lambda *_: self._before_step())

    def synchronize(self) -> None:
        """Wait until the gradients of this step are averaged; a parameter that had none gets zeros, as on other ranks.

        Raises:
            NonFiniteTensor: on all ranks alike, where a gradient is not finite and the exchange looks for that.
        """
        import torch

        for name, parameter in self._parameters.items():
            if self._seen[name] < self._passes:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._announce(name, parameter)
        self._seen = dict.fromkeys(self._parameters, 0)
        self._is_synchronized = True
        self._exchange.finish_step()

    def _before_step(self) -> None:
        if not self._is_synchronized:
            self.synchronize()
        self._is_synchronized = False

    def _accumulated(self, name: str, parameter: Any) -> None:
        self._is_synchronized = False
        self._seen[name] += 1
        if self._seen[name] > self._passes:
            raise InputError(
                "more backward passes than were told",
                where=f"gradient of {name!r}",
                got=self._seen[name],
                expected=f"{self._passes} before each step",
                hint="pass backward_passes_per_step",
            )
        if self._seen[name] == self._passes:
            self._announce(name, parameter)

    def _announce(self, name: str, parameter: Any) -> None:
        gradient = parameter.grad
        if gradient.is_contiguous():
            self._exchange.announce(name, as_array(gradient, name))
            return
        dense = gradient.contiguous()
        self._exchange.announce(name, as_array(dense, name), lambda _: gradient.copy_(dense))


def broadcast_state(exchange: GradientExchange, optimizer: Any, root: int) -> None:
    """Give a PyTorch optimiser the root's state: what it holds of each parameter, and its settings.

    Raises:
        InputError: it holds something that is neither a tensor nor a plain value.
    """
    import numpy as np
    import torch

    state = optimizer.state_dict()
    document = json.dumps(_described(state)).encode() if exchange.rank == root else b""
    length = np.array([len(document)], np.int64)
    exchange.broadcast("optimizer state: length", length, root).wait()
    raw = np.frombuffer(document, np.uint8).copy() if document else np.zeros(int(length[0]), np.uint8)
    exchange.broadcast("optimizer state: layout", raw, root).wait()
    told = json.loads(raw.tobytes())
    held: dict[int, dict[str, Any]] = {}
    under_way = []
    for number, entries in told["state"].items():
        own = held[int(number)] = {}
        for name, (kind, *what) in entries.items():
            if kind == "value":
                own[name] = what[0]
                continue
            dtype, shape = what
            if exchange.rank == root:
                tensor = state["state"][int(number)][name].contiguous()
            else:
                tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
            own[name] = tensor
            label = f"optimizer state: {number}.{name}"
            under_way.append(exchange.broadcast(label, as_array(tensor, label), root))
    for pending in under_way:
        pending.wait()
    groups = [{key: _tuples(value) for key, value in group.items()} for group in told["param_groups"]]
    optimizer.load_state_dict({"state": held, "param_groups": groups})


def _described(state: Mapping[str, Any]) -> Mapping[str, Any]:
    import torch

    def entry(where: str, value: Any) -> list[Any]:
        if isinstance(value, torch.Tensor):
            return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape)]
        return ["value", _plain(where, value)]

    return {
        "state": {
            number: {name: entry(f"state {number}.{name}", value) for name, value in entries.items()}
            for number, entries in state["state"].items()
        },
        "param_groups": [
            {key: _plain(f"group {index}.{key}", value) for key, value in group.items()}
            for index, group in enumerate(state["param_groups"])
        ],
    }


def _plain(where: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(where, one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        "cannot be broadcast", where=where, got=type(value).__name__, expected="tensors, numbers, texts, lists of these"
    )


def _tuples(value: Any) -> Any:
    """JSON knows no tuples, and optimisers' settings no lists but those of parameters, which are numbers."""
    return tuple(value) if isinstance(value, list) and any(isinstance(one, float) for one in value) else value


def _named(optimizer: Any, named_parameters: Iterable[tuple[str, Any]] | None) -> dict[str, Any]:
    """The optimiser's parameters by name.

    Raises:
        InputError: two have one name, or one has none.
    """
    mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return {f"parameter.{index:05d}": p for index, p in enumerate(mine) if p.requires_grad}
    names: dict[Any, str] = {}
    for name, parameter in named_parameters:
        if name in names.values():
            raise InputError("two parameters have one name", where="named_parameters", got=name)
        names[parameter] = name
    lost = [index for index, parameter in enumerate(mine) if parameter not in names]
    if lost:
        raise InputError("a parameter of the optimiser has no name", where="named_parameters", got=lost)
    return {names[parameter]: parameter for parameter in mine if parameter.requires_grad}
