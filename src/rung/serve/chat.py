"""A model's chat template: messages as the text that its model was trained on, as transformers writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuless.base import files
from rung.errors import RungError
from rung.models.family import Config
from rung.models.tokenizer import Tokenizer
from rung.serve.template_process import TemplateProcess

LARGEST = 1 << 22  # bytes of a file
TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
OWN = ("messages", "tools", "documents", "add_generation_prompt", *TOKENS)  # names that a client cannot set
Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """Jinja2, and the special tokens that it may name."""

    source: str
    tokens: Mapping[str, str]
    with_tools: str = ""  # another template, for messages with tools

    @cached_property
    def _processes(self) -> dict[str, TemplateProcess]:
        return {source: TemplateProcess(source) for source in (self.source, self.with_tools)}

    def close(self) -> None:
        """End the processes that render; whoever waits for one gets an error."""
        for process in self._processes.values():
            process.close()

    def names(self, name: str) -> bool:
        """Whether the template uses this name."""
        return re.search(rf"\b{name}\b", self.source + self.with_tools) is not None

    def text(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, **more: Any
    ) -> str:
        """The messages, and the beginning of the answer; where the last message is the assistant's, the answer begins
        with its text. A RungError where the template refuses them. `more` are further names of the template."""
        begun = _begun(messages)
        given = {name: value for name, value in more.items() if name not in OWN}
        source = self.with_tools if tools and self.with_tools else self.source
        written = self._processes[source].render({
            **given, **self.tokens, "messages": list(messages), "tools": tools and list(tools), "documents": None,
            "add_generation_prompt": begun is None,
        })  # fmt: skip
        if begun is None:
            return written
        at = written.rfind(begun)
        if at < 0:
            raise RungError("the model's chat template changes the last message, so that it cannot be continued.")
        return written[: at + len(begun)]


def _begun(messages: Sequence[Message]) -> str | None:
    """The text of an answer that is to be continued."""
    last = messages[-1]
    if last.get("role") != "assistant" or last.get("tool_calls") or not str(last.get("content") or "").strip():
        return None
    return str(last["content"]).strip()


def template_of(folder: Path, config: Config, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template in a model's folder: chat_template.jinja, or the default one of tokenizer_config.json, which also
    names special tokens; those of the config where it names none."""
    whole, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    try:
        given = json.loads(files.read_bytes(settings, LARGEST)) if settings.is_file() else {}
        found = files.read_bytes(whole, LARGEST).decode() if whole.is_file() else given.get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise RungError(f"{settings} cannot be read ({error}); fetch it again.") from None
    other = ""
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found, other = named.get("default"), str(named.get("tool_use") or "")
    if not isinstance(found, str):
        return None
    written = {name: one.get("content") if isinstance(one := given.get(name), dict) else one for name in TOKENS}
    tokens = {name: token for name, token in written.items() if isinstance(token, str)}
    end = config.eos[:1]
    usual = {"eos_token": end, "bos_token": end if config.bos is None else (config.bos,)}
    return ChatTemplate(found, tokens or {name: tokenizer.decode(ids) for name, ids in usual.items()}, other)
