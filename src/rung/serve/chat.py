"""A model's chat template: messages as the text that its model was trained on, as transformers writes it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuless.base import files
from rung.errors import RungError
from rung.models.family import Config
from rung.models.tokenizer import Tokenizer

LARGEST = 1 << 22  # bytes of a file
TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class ChatTemplate:
    """Jinja2, and the special tokens that it may name."""

    source: str
    tokens: Mapping[str, str]

    @cached_property
    def _compiled(self) -> Any:
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(jinja2.ext.Extension):
            """A block around what the assistant writes; it changes no text."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def fail(message: str) -> None:
            raise jinja2.TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _as_json
        environment.globals |= {"raise_exception": fail, "strftime_now": lambda form: time.strftime(form)}
        return environment.from_string(self.source)

    def text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The messages, and the beginning of the answer; a RungError where the template refuses them."""
        from jinja2 import TemplateError

        try:
            written: str = self._compiled.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self.tokens
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise RungError(f"the model's chat template cannot write these messages ({str(error)[:120]}).") from None
        return written


def _as_json(x: Any, ensure_ascii: bool = False, indent: int | None = None, **how: Any) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, **how)


def template_of(folder: Path, config: Config, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template in a model's folder: chat_template.jinja, or the default one of tokenizer_config.json, which also
    names special tokens; those of the config where it names none."""
    whole, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    try:
        given = json.loads(files.read_bytes(settings, LARGEST)) if settings.is_file() else {}
        found = files.read_bytes(whole, LARGEST).decode() if whole.is_file() else given.get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise RungError(f"{settings} cannot be read ({error}); fetch it again.") from None
    if isinstance(found, list):
        found = next((one.get("template") for one in found if one.get("name") == "default"), None)
    if not isinstance(found, str):
        return None
    written = {name: one.get("content") if isinstance(one := given.get(name), dict) else one for name in TOKENS}
    named = {name: token for name, token in written.items() if isinstance(token, str)}
    end = config.eos[:1]
    tokens = {"eos_token": end, "bos_token": end if config.bos is None else (config.bos,)}
    return ChatTemplate(found, named or {name: tokenizer.decode(ids) for name, ids in tokens.items()})
