"""Losses as sums, with what they are to be divided by: the mean is formed once per step, over all micro-batches.

Cross-entropy is a composition that serves whole and class-split (vocabulary-parallel) logits alike: the maximum of
every row is P(max) where the classes are split, the sum of exponentials P(sum), and the logits themselves are never
gathered (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping

from strategy.nn.tracer import Tensor

IGNORE_INDEX = -100


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    label: str = "loss",
) -> tuple[Tensor, Tensor]:
    """Softmax cross-entropy over the last dim.

    Args:
        logits: [..., classes].
        labels: [...], class numbers.
        ignore_index: rows of this label count neither in the loss nor in the count.
        label_smoothing: the share of the target that is spread over all classes evenly.
        label: the loss is called so, what leads to it `label.max`, `label.sum` and so on.

    Returns:
        The sum of the losses of all valid rows, and the number of valid rows.
    """
    classes = (len(logits.shape) - 1,)
    top = logits.apply(f"{label}.max", "reduce_max", attrs={"axes": classes, "keepdims": 0})
    total = logits.apply(f"{label}.sum", "sum_exp", top)
    lse = total.apply(f"{label}.log", "log").apply(f"{label}.lse", "add", top)
    attrs = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "classes": logits.shape[-1]}
    loss, count = logits.tracer.apply(label, "cross_entropy", (logits, labels, lse), attrs, ("count",))
    return loss, count


def joint_loss(main: Tensor, others: Mapping[str, tuple[Tensor, float]], *, label: str = "loss") -> Tensor:
    """A summed loss and shares of further ones: of auxiliary heads, of a balance.

    All are sums over the rows that the main loss counts, so its count is what the whole is divided by.

    Args:
        main: [].
        others: label -> ([], its share); a share is called `label.share`.
        label: the loss is called so.
    """
    terms = [main]
    for name, (loss, share) in others.items():
        terms.append(loss.apply(f"{name}.share", "scale", attrs={"factor": share}))
    return main.tracer.apply(label, "add_n", terms)[0]


def mse_loss(prediction: Tensor, target: Tensor, *, label: str = "loss") -> tuple[Tensor, Tensor]:
    """The sum of squared differences of two tensors of one shape, and the number of elements."""
    loss = prediction.apply(f"{label}.difference", "sub", target).apply(label, "square_sum")
    elements = 1
    for size in prediction.shape:
        elements *= size
    return loss, loss.apply(f"{label}.count", "full_like", attrs={"value": float(elements)})


def normalize(x: Tensor, dim: int, *, label: str) -> Tensor:
    """x over its Euclidean norm along one dim."""
    square = x.apply(f"{label}.square", "square")
    norm = square.apply(f"{label}.sum", "reduce_sum", attrs={"axes": (dim,), "keepdims": 1})
    return x.apply(label, "mul", norm.apply(f"{label}.rsqrt", "rsqrt"))


def margin_softmax(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    margin: float = 0.5,
    scale: float = 64.0,
    label: str = "loss",
) -> tuple[Tensor, Tensor]:
    """ArcFace's loss (Deng et al. 2019, arXiv:1801.07698, eq. 3): cross-entropy of angles, the label's with a margin.

    Args:
        features: [n, d].
        weight: [d, classes], one direction per class; may be split over the classes, as everything behind it then is.
        labels: [n].
        margin: added to the angle between a row and its class, radians.
        scale: of the cosines.
        label: the loss is called so, what leads to it `label.features` and so on.

    Returns:
        The sum of the rows' losses, and their number.
    """
    directions = normalize(weight, 0, label=f"{label}.weight")
    cosine = normalize(features, 1, label=f"{label}.features").apply(f"{label}.cosine", "matmul", directions)
    attrs = {"margin": margin, "scale": scale}
    logits = cosine.apply(f"{label}.margin", "arc_margin", labels, attrs=attrs)
    return cross_entropy(logits, labels, label=label)
