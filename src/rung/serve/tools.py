"""Tools: how the models of a chat template write calls, a grammar for them, and calls in what a model has written.

The form follows the template: <tool_call> around each call (Qwen, Hermes, SmolLM3), [TOOL_CALLS] before a list of them
(Mistral), or an answer that is a call and nothing else (Llama 3).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.models.batching.constraint import GRAMMAR
from rung.models.tokenizer import Tokenizer
from rung.serve.chat import ChatTemplate

MOST_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
COMPACT = {"x-guidance": {"whitespace_pattern": " ?"}}
FREE = {"type": "object"}  # arguments of a tool that names no parameters


@dataclass(frozen=True)
class Form:
    """How calls are written: after `begin`, with the arguments under this name, before `end`."""

    begin: str
    end: str
    arguments: str = "arguments"
    listed: bool = False  # several calls are a list after one beginning; otherwise each has its own
    opening: tuple[str, ...] = ()  # with which an answer that is a call may begin

    def grammar(self, tools: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, *, begun: bool, several: bool) -> str:
        """Calls of these tools alone; with `begun` what follows the beginning of one."""
        each = [
            {
                "type": "object", "additionalProperties": False, "required": ["name", self.arguments],
                "properties": {"name": {"const": tool["name"]}, self.arguments: tool.get("parameters") or FREE},
            }
            for tool in tools
        ]  # fmt: skip
        call = json.dumps({"anyOf": each, **COMPACT})
        begin, end = (_written(text, tokenizer) for text in (self.begin, self.end))
        one = f'{begin} "\\n" call "\\n" {end}'
        if self.listed:
            start = f"{'' if begun else begin} " + ('"[" call (", " call)* "]"' if several else '"[" call "]"')
        elif not self.begin:
            start = "call"
        elif begun:
            start = f'"\\n"? call "\\n"? {end}'
        else:
            start = f'{one} ("\\n" {one})*' if several else one
        return f"{GRAMMAR}\nstart: {start}\ncall: %json {call}\n"

    def calls(self, text: str, names: Sequence[str]) -> tuple[str, list[Call]]:
        """What a model has written beside its calls, and these."""
        if not self.begin:
            bare = text.strip()
            for opening in self.opening:
                bare = bare.removeprefix(opening).strip()
            found = [self._call(one, names) for one in _documents(bare)]
            whole = [one for one in found if one is not None]
            return ("", whole) if found and len(whole) == len(found) else (text, [])
        before, *rest = text.split(self.begin)
        calls: list[Call] = []
        for part in rest:
            inside = part.partition(self.end)[0] if self.end else part
            documents = _documents(inside.strip())
            some = documents[0] if self.listed and documents and isinstance(documents[0], list) else documents
            found = [self._call(one, names) for one in some]
            if not found or None in found:
                break  # cut off, or not a call
            calls += [one for one in found if one is not None]
        return (before.strip() if calls else text), calls

    def _call(self, written: Any, names: Sequence[str]) -> Call | None:
        if not isinstance(written, dict) or written.get("name") not in names:
            return None
        given = written.get(self.arguments, written.get("arguments", {}))
        return Call(written["name"], given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))

    def holds_back(self, text: str) -> int:
        """How many characters of a text so far can be shown, whatever follows."""
        if not self.begin:
            bare = text.lstrip()
            openings = ("{", *self.opening)
            maybe = any(bare.startswith(one) or one.startswith(bare) for one in openings)
            return 0 if maybe else len(text)
        if (at := text.find(self.begin)) >= 0:
            return at
        most = min(len(text), len(self.begin) - 1)
        return len(text) - next((n for n in range(most, 0, -1) if self.begin.startswith(text[-n:])), 0)


@dataclass(frozen=True)
class Call:
    """A call of a tool, its arguments as JSON."""

    name: str
    arguments: str

    def as_json(self, index: int | None = None) -> dict[str, Any]:
        where = {} if index is None else {"index": index}
        function = {"name": self.name, "arguments": self.arguments}
        return {**where, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


TAGS = Form("<tool_call>", "</tool_call>")
MARK = Form("[TOOL_CALLS]", "", listed=True)
BARE = Form("", "", arguments="parameters", opening=("<|python_tag|>",))


def form_of(template: ChatTemplate) -> Form | None:
    """The form of the calls that a template writes and asks for; None if it has none for tools."""
    if not template.names("tools"):
        return None
    source = template.source + template.with_tools
    for form in (TAGS, MARK):
        if form.begin in source:
            return form
    return BARE if template.names("parameters") else None


def _written(text: str, tokenizer: Tokenizer) -> str:
    """A text in a grammar: as a token where there is one for it."""
    id = tokenizer.token(text) if text else None
    return f"<[{id}]>" if id is not None and id in tokenizer.added else json.dumps(text)


def _documents(text: str) -> list[Any]:
    """The JSON documents that a text consists of, one after another; none if it has anything else."""
    found: list[Any] = []
    decoder, at = json.JSONDecoder(), 0
    try:
        while at < len(text):
            document, end = decoder.raw_decode(text, at)
            found.append(document)
            at = end + len(text[end:]) - len(text[end:].lstrip(" \n;,"))
    except (ValueError, RecursionError):
        return []
    return found
