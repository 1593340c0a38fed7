"""The values in config.json, checked as they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpuless.base.files import shown
from rung.errors import RungError

LONGEST = 1 << 31  # a size in config.json is below
LONGEST_CONTEXT = 1 << 15  # tokens; models that were trained on longer texts are run up to here


class Fields:
    """The values by name; a RungError names the field."""

    def __init__(self, fields: Mapping[str, Any], origin: str) -> None:
        self.fields, self.origin = fields, origin

    def refuse(self, name: str, must: str) -> RungError:
        return RungError(f"{self.origin} gives {name} as {shown(self.fields[name])}; it must be {must}.")

    def whole(self, *names: str, default: int | None = None) -> int:
        """The first of these names that is given."""
        name = next((name for name in names if self.fields.get(name) is not None), None)
        if name is None and default is None:
            raise RungError(f"{self.origin} gives no {names[0]}; fetch the model again.")
        value = default if name is None else self.fields[name]
        if name is not None and (type(value) is not int or not 0 < value < LONGEST):
            raise self.refuse(name, "a whole number from 1 to 2^31")
        assert value is not None
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.get(name, default)
        if not (value is None or isinstance(value, bool)):
            raise self.refuse(name, "true or false")
        return bool(value)

    def number(self, name: str, default: float, most: float = math.inf) -> float:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise self.refuse(name, f"a number such as {default:g}")
        return float(value)

    def tokens(self, name: str, default: int | None) -> tuple[int, ...]:
        """A token, several, or none."""
        value = self.fields.get(name, default)
        several = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(one) is int and abs(one) < LONGEST for one in several):
            raise self.refuse(name, "a token's number, or several")
        return tuple(several)

    def only(self, plain: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse fields with which another computation is meant: each may have these values, which mean none."""
        for name, values in plain.items():
            if self.fields.get(name) not in values:
                given = f"{self.origin} gives {name} as {shown(self.fields[name])}"
                raise RungError(f"{given}, which rung does not support for {self.fields['model_type']}.")

    def decoder(self, *, tied: bool) -> dict[str, Any]:
        """What a config of rotary positions and grouped heads has from transformers' names."""
        C, NH = self.whole("hidden_size"), self.whole("num_attention_heads")
        NKV = self.whole("num_key_value_heads", default=NH)
        if NH % NKV:
            text = f"{self.origin} divides {NH} heads among {NKV} of keys; num_attention_heads must be a multiple."
            raise RungError(text)
        if self.fields.get("head_dim") is None and C % NH:
            raise RungError(f"{self.origin} divides {C} channels among {NH} heads; give head_dim.")
        HS = self.whole("head_dim", default=max(1, C // NH))
        if HS % 2:
            raise RungError(f"{self.origin} gives head_dim as {HS}; rotary positions need pairs of channels.")
        bos = self.tokens("bos_token_id", None)
        return {
            "vocabulary": self.whole("vocab_size"),
            "context": min(self.whole("max_position_embeddings"), LONGEST_CONTEXT),
            "C": C, "NH": NH, "kv_heads": NKV, "head_size": HS,
            "layers": self.whole("num_hidden_layers"),
            "F": self.whole("intermediate_size"),
            "eps": self.number("rms_norm_eps", 1e-6, 1),
            "scale_attention": True, "scale_by_layer": False,
            "tied": self.flag("tie_word_embeddings", tied),
            "eos": self.tokens("eos_token_id", None),
            "bos": bos[0] if bos else None,
        }  # fmt: skip
