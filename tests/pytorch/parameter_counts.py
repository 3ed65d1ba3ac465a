"""Ask transformers how many parameters the models of published configs have; it allocates none of them.

python -m tests.pytorch.parameter_counts     writes experiments/reference/huggingface/parameters.csv
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parents[2] / "experiments" / "reference" / "huggingface"
COUNTS = REFERENCE / "parameters.csv"


TRAINED = {"bert": "BertForPreTraining", "vit": "ViTForImageClassification"}
"""Of families whose configs are published for what comes after training."""


def configs() -> dict[str, Path]:
    """Every published config, by name."""
    return {path.stem: path for path in sorted((REFERENCE / "configs").glob("*.json"))}


def count(content: dict[str, Any]) -> tuple[str, int]:
    """Class and parameters of the model that is trained of a config: of texts and images, the texts' alone."""
    import torch
    import transformers

    given = {key: value for key, value in content.items() if key != "quantization_config"}
    config = transformers.AutoConfig.for_model(**given)
    trained = TRAINED.get(content["model_type"], content["architectures"][0])
    kind = getattr(transformers, trained)
    if "text_config" in content:
        config, kind = config.text_config, transformers.Gemma3ForCausalLM
    with torch.device("meta"):
        model = kind(config)
    model.tie_weights()
    return kind.__name__, sum({id(parameter): parameter.numel() for parameter in model.parameters()}.values())


def write() -> None:
    """The file of all counts."""
    with COUNTS.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("name", "class", "parameters"))
        for name, path in configs().items():
            table.writerow((name, *count(json.loads(path.read_text()))))


if __name__ == "__main__":
    write()
