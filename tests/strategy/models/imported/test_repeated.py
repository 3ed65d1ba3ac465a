"""Which modules are layers: the docstring's lists, and what is none."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.models.imported.foreign import ForeignNode, Ref
from strategy.models.imported.repeated import layer_paths


def chain(*paths: str) -> Sequence[ForeignNode]:
    """Nodes in these modules, each of which reads what the one before it wrote."""
    return [
        ForeignNode("aten.relu.default", {"self": Ref(f"v{place}")}, (f"v{place + 1}",), tuple(path.split(".")), path)
        for place, path in enumerate(paths)
    ]


def paths_of(*paths: str) -> list[str]:
    path_of = layer_paths(chain(*paths))
    return [".".join(map(str, path_of(tuple(path.split("."))))) for path in paths]


def test_lists_by_numbers_and_by_names() -> None:
    assert paths_of("word", "encoder.layer.0.attn", "encoder.layer.1.attn") == [
        "word",
        "layers.0.attn",
        "layers.1.attn",
    ]
    found = paths_of("encoder.layers.encoder_layer_0.mlp.0", "encoder.layers.encoder_layer_1.mlp.0", "head")
    assert found == ["layers.0.mlp.0", "layers.1.mlp.0", "head"]


def test_lists_one_behind_the_other() -> None:
    found = paths_of("conv1", "layer1.0.conv1", "layer1.0.downsample.0", "layer1.1.conv1", "layer2.0.conv1", "fc")
    assert found == ["conv1", "layers.0.conv1", "layers.0.downsample.0", "layers.1.conv1", "layers.2.conv1", "fc"]


def test_few_of_many_are_no_layers() -> None:
    assert paths_of("a", "b", "c", "d", "mlp.0", "mlp.1") == ["a", "b", "c", "d", "mlp.0", "mlp.1"]


def test_layers_that_values_go_back_to_are_none() -> None:
    assert paths_of("h.0", "h.1", "h.0") == ["h.0", "h.1", "h.0"]
