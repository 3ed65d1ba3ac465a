"""Export PyTorch models to .pt2 and .onnx files, with what they compute, for the tests of programs.

    python -m tests.pytorch.programs     writes experiments/reference/programs; needs torch, torchvision, transformers,
                                         onnx and onnxscript

The models are torchvision's and transformers' own classes at tiny widths, their weights drawn at random. Traces of the
Python stack are taken out of the .pt2 files, and their entries compressed; notes but for module paths out of the .onnx
files. That is all in which they differ from what PyTorch writes.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[2] / "experiments" / "reference" / "programs"
REFERENCE = "logits.npz"
SAMPLES, SEQUENCE, VOCABULARY = 2, 12, 256


def torchvision() -> Any:
    """The package, also where its compiled part does not load, whose operators these models do not use."""
    import torch

    try:
        import torchvision.models as models
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torchvision.library = library  # type: ignore[attr-defined]
        import torchvision.models as models
    return models


def tiny_resnet() -> Any:
    """Bottlenecks at an eighth of their widths, some stages of several."""
    from torch import nn

    models = torchvision()

    class TinyResNet(models.resnet.ResNet):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self._norm_layer, self.inplanes, self.dilation, self.groups, self.base_width = nn.BatchNorm2d, 8, 1, 1, 64
            block = models.resnet.Bottleneck
            self.conv1 = nn.Conv2d(3, 8, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1, self.relu = nn.BatchNorm2d(8), nn.ReLU(inplace=True)
            self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
            self.layer1 = self._make_layer(block, 4, 2)
            self.layer2 = self._make_layer(block, 8, 2, stride=2)
            self.layer3 = self._make_layer(block, 12, 1, stride=2)
            self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(48, 5)

        def _forward_impl(self, x: Any) -> Any:
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.avgpool(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(x.flatten(1))

    return TinyResNet()


def tiny_vit() -> Any:
    """Torchvision's ViT."""
    return torchvision().VisionTransformer(16, 4, 3, 2, 16, 24, num_classes=5)


def logits_of(model: Any) -> Any:
    """A model of transformers as a function of its ids that gives logits alone."""
    from torch import nn

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids).logits

    return Logits()


def tiny_bert() -> Any:
    """BERT with the head of masked words, tied to the embedding."""
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
    return logits_of(BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=16, **sizes)))


def tiny_qwen() -> Any:
    """Qwen 3: RMS norms, also of heads; grouped keys; rotary positions; gated MLPs; a causal mask."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"head_dim": 8, "intermediate_size": 24, "max_position_embeddings": 32, "use_cache": False}
    config = Qwen3Config(vocab_size=VOCABULARY, rope_theta=100.0, tie_word_embeddings=False, **sizes, **more)
    return logits_of(Qwen3ForCausalLM(config))


TINY: Mapping[str, Callable[[], Any]] = {
    "resnet": tiny_resnet,
    "vit": tiny_vit,
    "bert": tiny_bert,
    "qwen": tiny_qwen,
}


def full_bert() -> Any:
    """BERT base."""
    from transformers import BertConfig, BertForMaskedLM

    return logits_of(BertForMaskedLM(BertConfig()))


FULL: Mapping[str, Callable[[], Any]] = {
    "resnet50": lambda: torchvision().resnet50(),
    "vit-b16": lambda: torchvision().vit_b_16(),
    "bert-base": full_bert,
}


def randomised(model: Any) -> Any:
    """The model with weights drawn by their names, so that nothing is zero and no two are equal."""
    import torch

    with torch.no_grad():
        for key, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point() and "inv_freq" not in key:
                rng = np.random.default_rng(zlib.crc32(key.encode()))
                drawn = rng.standard_normal(tuple(value.shape)) / max(
                    1.0, np.sqrt(value.numel() / max(value.shape[0], 1))
                )
                if "var" in key:
                    drawn = 1.0 + rng.random(tuple(value.shape))
                elif value.ndim == 1 and key.endswith("weight"):
                    drawn = 1.0 + 0.3 * drawn
                value.copy_(torch.tensor(drawn, dtype=value.dtype))
    return model.eval()


def example(name: str) -> Any:
    """An input: images, or ids."""
    import torch

    rng = np.random.default_rng(5)
    if name in ("resnet", "vit"):
        side = 32 if name == "resnet" else 16
        return torch.tensor(rng.standard_normal((SAMPLES, 3, side, side)), dtype=torch.float32)
    if name in ("resnet50", "vit-b16"):
        return torch.tensor(rng.standard_normal((SAMPLES, 3, 224, 224)), dtype=torch.float32)
    below, length = (VOCABULARY, SEQUENCE) if name in TINY else (30522, 128)
    return torch.tensor(rng.integers(0, below, (SAMPLES, length)))


def export(name: str, model: Any, folder: Path, *, dynamic: bool = True) -> Any:
    """Write NAME.pt2 and NAME.onnx; what the model computes of its example."""
    import torch

    inputs = example(name)
    key = "x" if inputs.is_floating_point() else "input_ids"
    shapes = {key: {0: torch.export.Dim("batch")}} if dynamic else None
    program = torch.export.export(model, (inputs,), dynamic_shapes=shapes)
    torch.export.save(program, folder / f"{name}.pt2")
    torch.onnx.export(
        model, (inputs,), folder / f"{name}.onnx", dynamic_shapes=shapes, dynamo=True, external_data=False
    )
    with torch.no_grad():
        return model(inputs).numpy()


def slimmed(path: Path) -> None:
    """Take stack traces out of a .pt2 file and compress it; out of a .onnx file, its metadata but for module paths."""
    if path.suffix == ".onnx":
        import onnx

        model = onnx.load(path)
        for node in model.graph.node:
            kept = [one for one in node.metadata_props if one.key == "pkg.torch.onnx.name_scopes"]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
            node.doc_string = ""
        del model.graph.value_info[:]
        path.write_bytes(model.SerializeToString(deterministic=True))
        return
    with zipfile.ZipFile(path) as archive:
        entries = {
            name: archive.read(name) for name in archive.namelist() if not name.endswith("sample_inputs/model.pt")
        }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            if "/models/" in name:
                content = json.dumps(_without_traces(json.loads(content)), separators=(",", ":")).encode()
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def _without_traces(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_traces(one) for key, one in content.items() if key != "stack_trace"}
    return [_without_traces(one) for one in content] if isinstance(content, list) else content


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, make in TINY.items():
        found[name] = export(name, randomised(make()), FOLDER)
        found[f"{name}.input"] = example(name).numpy()
        for suffix in (".pt2", ".onnx"):
            slimmed(FOLDER / f"{name}{suffix}")
    np.savez_compressed(FOLDER / REFERENCE, **found)


if __name__ == "__main__":
    main()
