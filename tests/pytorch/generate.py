"""Ask PyTorch for the figures that the tests compare with; needs torch, torchvision and transformers on a CPU.

    python -m tests.pytorch.generate            writes gpt2.safetensors, gpt2.npz and resnet50.npz beside this file

gpt2      a small GPT-2 of transformers with random weights, saved in Hugging Face's layout: its logits on one batch,
          and its losses over 20 steps of AdamW (decay on matrices alone, gradients clipped to norm 1, no dropout)
resnet50  torchvision's ResNet-50 in training mode, float64: its logits, its loss (a mean) and its gradients. Weights
          and images follow from their names by `drawn`, so that only samples of the gradients need to be kept
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
STEPS = 20
BATCH, SEQUENCE, VOCABULARY, LAYERS, HEADS, WIDTH = 4, 16, 61, 2, 4, 32
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}
WEIGHT_DECAY = 0.1
IMAGES, SIDE, CLASSES = 4, 64, 1000
SAMPLES = 16


def drawn(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Values that belong to a name: gains about 1, biases small, filters with the variance of He et al. 2015."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape)
    if name == "images":
        return values
    if len(shape) == 1:
        return 0.1 * values + (1.0 if name.endswith("weight") else 0.0)
    return values * np.sqrt(2.0 / np.prod(shape[1:]))


def labels() -> npt.NDArray[np.int32]:
    """The classes of the images."""
    return np.random.default_rng(7).integers(0, CLASSES, IMAGES, dtype=np.int32)


def sample_of(name: str, gradient: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A few elements of a parameter's gradient, and its norm."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    cells = rng.integers(0, gradient.size, SAMPLES)
    return np.append(gradient.reshape(-1)[cells], np.linalg.norm(gradient))


def token_batches() -> npt.NDArray[np.int32]:
    """[steps, 2, batch, sequence]: ids and labels of every step; each token follows from the one before."""
    tokens = np.empty((STEPS, BATCH, SEQUENCE + 1), np.int32)
    tokens[..., 0] = np.random.default_rng(11).integers(0, VOCABULARY, (STEPS, BATCH))
    for position in range(SEQUENCE):
        tokens[..., position + 1] = (5 * tokens[..., position] + 7) % VOCABULARY
    return np.stack([tokens[..., :-1], tokens[..., 1:]], axis=1)


def gpt2(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Logits of the first batch, and the loss of every step; saves the weights as gpt2.safetensors in a folder."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # gains of one and biases of zero would hide an error in their use
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "model.safetensors").replace(folder / "gpt2.safetensors")
    for name in ("config.json", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
    batches = torch.from_numpy(token_batches().astype(np.int64))
    logits = model(batches[0, 0]).logits.detach().numpy()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, **ADAMW)
    losses = []
    for ids, targets in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids).logits.reshape(-1, VOCABULARY), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return {"logits": logits, "losses": np.array(losses)}


def resnet50() -> dict[str, npt.NDArray[Any]]:
    """Logits, loss and samples of every gradient."""
    import torch
    import torchvision

    model = torchvision.models.resnet50().double().train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(drawn(name, tuple(parameter.shape))))
    images = torch.from_numpy(drawn("images", (IMAGES, 3, SIDE, SIDE)))
    logits = model(images)
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels().astype(np.int64)))
    loss.backward()
    found = {"logits": logits.detach().numpy(), "loss": np.array(loss.item())}
    for name, parameter in model.named_parameters():
        found[f"gradient {name}"] = sample_of(name, parameter.grad.numpy())
    return found


def main() -> None:
    """Write both files."""
    np.savez_compressed(HERE / "gpt2.npz", allow_pickle=False, **gpt2(HERE))
    np.savez_compressed(HERE / "resnet50.npz", allow_pickle=False, **resnet50())


if __name__ == "__main__":
    main()
