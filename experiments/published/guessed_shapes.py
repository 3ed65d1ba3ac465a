"""Guessed shapes: dimensions of a model of which a row says a size at most.

Transformers of all sizes are about as many layers deep as they are times 128 wide: 12 x layers x width^2 parameters are
then 196,608 x layers^3. That gives 33 layers of 4,224 for 7 billion, 96 of 12,288 for 175. Of a size that is not said,
the devices of one replica tell something: their memory is about 40 bytes for each parameter. All devices would tell no
more, and a model must not grow with the replicas.
"""

from __future__ import annotations

from collections.abc import Mapping

PER_LAYER = 128
"""Width over depth."""
_MEMORY_PER_PARAMETER = 40.0
_MLP_OVER_ATTENTION = 2
_PATTERN = "M-M-M-M*-M-"
"""Of a hybrid: the order of layers of Nemotron-H's family."""


def guessed_dimensions(
    parameters: float, *, experts: float, tp: int, pp: int, memory_bytes: float, gated: bool
) -> Mapping[str, str]:
    """Layers, width and heads, as a row would say them, of so many parameters (0: as many as the memory says)."""
    size = parameters or memory_bytes / _MEMORY_PER_PARAMETER
    mlps = _MLP_OVER_ATTENTION * max(experts, 1.0)
    per_cube = PER_LAYER**2 * 4 * (1 + mlps)
    layers = max(round((size / per_cube) ** (1 / 3) / pp), 1) * pp
    width = max(round((size / (4 * (1 + mlps) * layers)) ** 0.5 / (PER_LAYER * tp)), 1) * PER_LAYER * tp
    ffn = max(round(8 * width / 3 / (PER_LAYER * tp)), 1) * PER_LAYER * tp if gated else 4 * width
    return {"layers": str(layers), "hidden": str(width), "heads": str(width // PER_LAYER), "ffn": str(ffn)}


def guessed_pattern(layers: int) -> str:
    """The layers of a hybrid, letter by letter, where nothing says them."""
    return (_PATTERN * (layers // len(_PATTERN) + 1))[:layers]
