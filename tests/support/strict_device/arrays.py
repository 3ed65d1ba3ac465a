"""Arrays of the strict device: no array of NumPy, and nothing that the host could read by mistake."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.support.strict_device.order import Memory

if TYPE_CHECKING:
    from tests.support.strict_device.device import StrictDevice


class DeviceArray:
    """Memory of a device as an array. What is done with it is done on the device's current stream, some time."""

    __array_ufunc__ = None

    def __init__(self, device: StrictDevice, inside: NDArray[Any]) -> None:
        self.device, self.inside = device, inside
        self.shape, self.dtype, self.size = inside.shape, inside.dtype, inside.size
        self.nbytes, self.ndim, self.flags, self.strides = inside.nbytes, inside.ndim, inside.flags, inside.strides

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("the host reads an array of the device")

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, index: Any) -> DeviceArray:
        found = self.inside[index]
        assert isinstance(found, np.ndarray)
        return DeviceArray(self.device, found)

    @cached_property
    def place(self) -> tuple[Memory, int, int] | None:
        """The memory of the device that it lies in, and which bytes of it are the array's."""
        return self.device.memories.place(self.inside)

    def view(self, dtype: Any) -> DeviceArray:
        """The same memory as another dtype."""
        return DeviceArray(self.device, self.inside.view(dtype))

    def reshape(self, *shape: Any) -> DeviceArray:
        """The same memory in another shape."""
        found = self.inside.reshape(*shape)
        assert np.shares_memory(found, self.inside) or not found.size, "a reshape that copies"
        return DeviceArray(self.device, found)

    def fill(self, value: Any) -> None:
        """Write one figure everywhere."""
        self.device.compute(lambda: self.inside.fill(value), [], [self], "fill")


class DeviceModule:
    """What the runtime asks of an array module."""

    def __init__(self, device: StrictDevice) -> None:
        self._device = device

    def empty(self, shape: Any, dtype: Any) -> DeviceArray:
        """Memory of the device, full of what no computation survives."""
        return self._device.allocate(shape, dtype)

    def zeros(self, shape: Any, dtype: Any) -> DeviceArray:
        """Memory of the device, zeroed on the current stream."""
        found = self.empty(shape, dtype)
        found.fill(0)
        return found

    def copyto(self, into: DeviceArray, source: DeviceArray) -> None:
        """Copy on the device."""
        self._device.compute(lambda: np.copyto(into.inside, source.inside), [source], [into], "copyto")

    def add(self, one: DeviceArray, other: DeviceArray, *, out: DeviceArray) -> None:
        """A sum."""
        self._reduce(np.add, one, other, out)

    def minimum(self, one: DeviceArray, other: DeviceArray, *, out: DeviceArray) -> None:
        """The lesser of two."""
        self._reduce(np.minimum, one, other, out)

    def maximum(self, one: DeviceArray, other: DeviceArray, *, out: DeviceArray) -> None:
        """The greater of two."""
        self._reduce(np.maximum, one, other, out)

    def _reduce(self, by: Callable[..., Any], one: DeviceArray, other: DeviceArray, out: DeviceArray) -> None:
        self._device.compute(lambda: by(one.inside, other.inside, out=out.inside), [one, other], [out], by.__name__)
