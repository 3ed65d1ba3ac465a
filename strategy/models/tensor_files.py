"""Files of tensors: one safetensors file, or a folder or index of several, and recipes that make parameters of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from strategy.base.errors import InputError, report
from strategy.base.files import read_json
from strategy.sbp.tensor import Shape

Array = NDArray[Any]
ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What a folder of weights holds: one of them."""
_DTYPES = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        path: the file.
        shape: of the tensor.
        dtype: in safetensors' letters.
    """

    path: Path
    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a parameter of ours is made of tensors in files.

    Attributes:
        sources: the tensors, each with the shape that it must have.
        make: what makes the parameter of them.
        longer: the first dim may be longer.
    """

    sources: Sequence[tuple[str, Shape]]
    make: Callable[[Sequence[Array]], Array]
    longer: bool = False

    def fits(self, found: Shape, wanted: Shape) -> bool:
        """Whether a tensor in a file has the shape that it must have."""
        if self.longer:
            return len(found) == len(wanted) and found[0] >= wanted[0] and found[1:] == wanted[1:]
        return found == wanted


def files_of(path: Path) -> list[Path]:
    """The safetensors files that a path means: itself, those of an index, or those of a folder.

    Raises:
        InputError: a folder holds no weights, or an index no list of files.
    """
    if path.is_dir():
        inside = [path / name for name in (INDEX, ONE_FILE) if (path / name).is_file()]
        if not inside:
            raise InputError("the folder holds no weights", where=str(path), expected=f"{ONE_FILE} or {INDEX}")
        path = inside[0]
    if path.suffix != ".json":
        return [path]
    content = read_json(path)
    weights = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(_plain(name) for name in weights.values()):
        raise InputError("not an index of files", where=str(path), expected="weight_map: tensor -> file beside it")
    return [path.parent / name for name in sorted(set(weights.values()))]


def _plain(name: object) -> bool:
    """Whether a name is of a file beside the index, not elsewhere."""
    return isinstance(name, str) and Path(name).name == name


def held_in(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the files that a path means.

    Raises:
        InputError: a file cannot be read, or two have a tensor of one name.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[str, StoredTensor] = {}
    for one in files_of(path):
        try:
            with safe_open(one, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    if name in found:
                        raise InputError("a tensor is there twice", where=f"{one}: {name}", got=str(found[name].path))
                    part = file.get_slice(name)
                    found[name] = StoredTensor(one, tuple(part.get_shape()), part.get_dtype())
        except (OSError, SafetensorError) as error:
            raise InputError("the file cannot be read", where=str(one), got=str(error)) from error
    return found


def tensor(held: StoredTensor, name: str) -> Array:
    """The values of a tensor."""
    from safetensors import safe_open

    with safe_open(held.path, framework="numpy") as file:
        found: Array = file.get_tensor(name)
    return found


@dataclass(frozen=True, slots=True)
class Pretrained(Mapping[str, Array]):
    """The parameters of a model by our names; each is read from the files when it is asked for.

    Attributes:
        held: the tensors in the files.
        recipes: our name -> how the parameter is made of them.
    """

    held: Mapping[str, StoredTensor]
    recipes: Mapping[str, Recipe]

    def __getitem__(self, name: str) -> Array:
        recipe = self.recipes[name]
        return recipe.make([tensor(self.held[source], source) for source, _ in recipe.sources])

    def __iter__(self) -> Iterator[str]:
        return iter(self.recipes)

    def __len__(self) -> int:
        return len(self.recipes)


def opened(
    path: Path, held: Mapping[str, StoredTensor], recipes: Mapping[str, Recipe], left_out: Callable[[str], bool]
) -> Pretrained:
    """The parameters that recipes make of the tensors in files.

    Args:
        path: of the files, for messages.
        held: the tensors.
        recipes: by our names.
        left_out: whether a tensor that no recipe asks for belongs there nevertheless.

    Raises:
        InputError: tensors are missing, of another shape or dtype, or too many; all problems in one report.
    """
    problems: list[InputError] = []
    for ours, recipe in recipes.items():
        for name, shape in recipe.sources:
            one, where = held.get(name), f"{path}: {name}"
            if one is None:
                problems.append(InputError("the tensor is missing", where=where, hint=f"it becomes {ours}"))
            elif not recipe.fits(one.shape, shape):
                problems.append(InputError("another shape", where=where, got=one.shape, expected=str(shape)))
            elif one.dtype not in _DTYPES:
                problems.append(InputError("another dtype", where=where, got=one.dtype, expected=", ".join(_DTYPES)))
    asked = {name for recipe in recipes.values() for name, _ in recipe.sources}
    problems += [
        InputError("the model has no such tensor", where=f"{path}: {name}")
        for name in sorted(held.keys() - asked)
        if not left_out(name)
    ]
    report(list({str(problem): problem for problem in problems}.values()), where=str(path))
    return Pretrained(held, recipes)
