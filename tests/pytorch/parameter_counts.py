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


def configs() -> dict[str, Path]:
    """Every published config, by name."""
    return {path.stem: path for path in sorted((REFERENCE / "configs").glob("*.json"))}


def count(content: dict[str, Any]) -> tuple[str, int]:
    """Class and parameters of the model of a config; of a model of texts and images, those of the text's."""
    import torch
    import transformers

    given = {key: value for key, value in content.items() if key != "quantization_config"}
    config = transformers.AutoConfig.for_model(**given)
    kind = getattr(transformers, content["architectures"][0])
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
