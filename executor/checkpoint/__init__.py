"""Checkpoints: logical tensors, so that any plan can load what any other plan saved.

    step-00000020/rank-0.safetensors   the pieces that rank 0 owned
                  rank-1.safetensors
                  manifest.json        every logical tensor: shape, dtype, and where each piece of it lies

A checkpoint is written under another name and renamed when all of it is on the disk, so one that has its name is
whole. The manifest covers every byte: pieces by SHA-256, headers by SHA-256, files by their sizes, and itself.
Reading trusts nothing: what is changed, cut off, missing, or points elsewhere is refused and never half used.
"""

from __future__ import annotations

from executor.checkpoint.manifest import Checkpoint, TensorPart
from executor.checkpoint.reading import Reader, latest, load, open_checkpoint
from executor.checkpoint.writing import AllOk, Save, UnsavedError, make_durable_folder, save

__all__ = [
    "AllOk",
    "Checkpoint",
    "Reader",
    "Save",
    "TensorPart",
    "UnsavedError",
    "latest",
    "load",
    "make_durable_folder",
    "open_checkpoint",
    "save",
]
