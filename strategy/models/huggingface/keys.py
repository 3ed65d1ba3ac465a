"""Keys of a config, read with their types and ranges; what is wrong is collected, and told at once.

A key that no table reads is a problem, unless it is known to say nothing of the graph of training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strategy.base.errors import InputError, did_you_mean, report

NOT_OF_THE_GRAPH = frozenset(
    {
        *("_name_or_path", "architectures", "auto_map", "model_type", "transformers_version", "task_specific_params"),
        *("torch_dtype", "dtype", "quantization_config", "initializer_range", "init_std", "is_decoder"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id"),
        *("use_cache", "cache_implementation", "_attn_implementation", "gradient_checkpointing", "use_return_dict"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *(
            "chunk_size_feed_forward",
            "id2label",
            "label2id",
            "problem_type",
            "finetuning_task",
            "classifier_dropout",
            "summary_activation",
        ),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "n_special"),
        *("predict_special_tokens", "pretraining_tp", "ep_size", "initial_context_length"),
        *("original_max_position_embeddings", "interpolate_factor", "full_attn_mod", "n_ctx", "seq_aux"),
        *("is_encoder_decoder", "encoder_stride", "pooler_act"),
        *("pooler_output_size", "scale_attn_weights", "reorder_and_upcast_attn"),
    }
)
"""Names, ids of tokens, dtypes of files, how spreads begin, what inference keeps or prints; and what other keys say."""

DROPOUT = frozenset(
    {
        *("attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop", "hidden_dropout_prob"),
        *("attention_probs_dropout_prob", "embedding_dropout", "router_jitter_noise"),
    }
)
"""Rates of dropping out, and of noise: models are trained without either."""

IGNORED = NOT_OF_THE_GRAPH | DROPOUT
LARGEST = 2**31 - 1
"""No size is larger: ids and positions are of 32 bits."""
_MISSING = object()


@dataclass(slots=True)
class Keys:
    """The keys of one JSON object.

    Attributes:
        content: the object.
        where: what messages call it.
        problems: what is wrong so far.
        read: keys that were asked for.
    """

    content: Mapping[str, Any]
    where: str
    problems: list[InputError] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def given(self, key: str) -> bool:
        """Whether a key is there, and not null."""
        return self.content.get(key) is not None

    def _value(self, key: str, default: Any) -> Any:
        """The value, or the default where it is missing or null; no default makes that a problem."""
        self.read.add(key)
        found = self.content.get(key)
        if found is None:
            if default is _MISSING:
                self.wrong(key, "the key is missing", None, "a value")
            return default
        return found

    def wrong(self, key: str, problem: str, got: object, expected: str) -> None:
        """Take note of a problem with a key."""
        self.problems.append(InputError(problem, where=f"{self.where}: {key}", got=got, expected=expected))

    def size(self, key: str, default: Any = _MISSING, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number in a range; within the range whatever was wrong."""
        found = self._value(key, default)
        if found is _MISSING:
            return least
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            self.wrong(key, "not a size", found, f"a whole number from {least} to {most}")
            return least
        return found

    def figure(self, key: str, default: Any = _MISSING, *, least: float = 0.0, most: float = 1e12) -> float:
        """A number in a range; 1 or the nearest to it whatever was wrong."""
        found = self._value(key, default)
        if found is _MISSING:
            return min(max(1.0, least), most)
        number = not isinstance(found, bool) and isinstance(found, int | float)
        if not number or not abs(found) < 1e300 or not math.isfinite(found) or not least <= found <= most:
            self.wrong(key, "not a figure", found, f"a number from {least:g} to {most:g}")
            return min(max(1.0, least), most)
        return float(found)

    def cap(self, key: str, default: float) -> float:
        """A number above 0, the default where the key is missing; 0 where it is null."""
        return self.figure(key, 0.0 if key in self.content else default)

    def figures(self, key: str, count: int) -> tuple[float, ...]:
        """A list of so many positive numbers."""
        found = self._value(key, _MISSING)
        if found is _MISSING:
            return (1.0,) * count
        legal = isinstance(found, list) and len(found) == count
        legal = legal and all(not isinstance(one, bool) and isinstance(one, int | float) for one in found)
        if not legal or not all(1e-12 < one < 1e12 for one in found):
            self.wrong(key, "not a list of figures", found, f"{count} numbers above 0")
            return (1.0,) * count
        return tuple(map(float, found))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        found = self._value(key, default)
        if not isinstance(found, bool):
            self.wrong(key, "not a flag", found, "true or false")
            return default
        return found

    def word(self, key: str, default: str, known: Mapping[str, str]) -> str:
        """What a word stands for, by a table."""
        found = self._value(key, default)
        if not isinstance(found, str) or found not in known:
            self.wrong(key, "unknown word", found, f"one of {', '.join(sorted(known))}")
            return known[default]
        return known[found]

    def words(self, key: str, count: int, known: Sequence[str]) -> list[str]:
        """A list of so many known words."""
        found = self._value(key, _MISSING)
        if not isinstance(found, list) or len(found) != count or any(word not in known for word in found):
            self.wrong(key, "not a word per layer", found, f"{count} of {', '.join(known)}")
            return [known[0]] * count
        return list(found)

    def sizes(self, key: str, *, below: int) -> tuple[int, ...]:
        """A list, empty unless given, of whole numbers in [0, below)."""
        found = self._value(key, [])
        legal = isinstance(found, list) and len(found) <= below
        if not legal or any(isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < below for one in found):
            self.wrong(key, "not a list of layers", found, f"whole numbers from 0 to {below - 1}")
            return ()
        return tuple(found)

    def must_be(self, key: str, *values: object, unless_given: object = None) -> None:
        """Refuse another value than these; where it is missing, it is `unless_given`, or the first of them."""
        default = values[0] if unless_given is None else unless_given
        found = self._value(key, default)
        if not any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in values):
            self.wrong(key, "this is not built", found, " or ".join(map(repr, values)))

    def inner(self, key: str) -> Keys | None:
        """The keys of an object within the object, whose problems are the same list; None where there is none."""
        found = self._value(key, None)
        if found is None:
            return None
        if not isinstance(found, dict):
            self.wrong(key, "not an object", found, "keys and values")
            return None
        return Keys(found, f"{self.where}: {key}", self.problems)

    def close(self, *, ignored: frozenset[str] = frozenset()) -> None:
        """Take note of every key that nothing asked for."""
        unknown = sorted(self.content.keys() - self.read - ignored)
        for key in unknown:
            hint = did_you_mean(key, self.read)
            hint = hint if hint.startswith("did you mean") else ""
            self.problems.append(InputError("unknown key", where=self.where, got=key, hint=hint))

    def report(self) -> None:
        """Raise what is wrong, all of it."""
        report(self.problems, where=self.where)
