"""OpenAI's /v1/responses in its basic form: a chat under other names. Nothing is stored between requests."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rung.serve.completions import show
from rung.serve.http import Refusal

# A chat's name of each field that only changes its name, and fields that are accepted with values without effect.
RENAMED = {"max_output_tokens": "max_completion_tokens", "parallel_tool_calls": "parallel_tool_calls"}
SAME = ("model", "temperature", "top_p", "stream", "seed", "user", "metadata", "store", "service_tier", "top_k",
        "chat_template_kwargs", "prompt_cache_key", "safety_identifier")  # fmt: skip
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "previous_response_id": (None,), "conversation": (None,), "background": (None, False), "include": (None, []),
    "truncation": (None, "disabled"), "prompt": (None,), "top_logprobs": (None, 0), "max_tool_calls": (None,),
    "stream_options": (None, {}),
}  # fmt: skip
TEXTS = ("input_text", "output_text", "text")
ITEM = "input must be a text, or a list of messages, calls and their outputs."


@dataclass
class Reply:
    """A request as a chat's body, and its answer so far."""

    chat: dict[str, Any]
    told: Mapping[str, Any]  # fields of the request that its answer repeats
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    numbered: int = 0  # events

    def answer(self, model: str, choice: Mapping[str, Any] | None, usage: Mapping[str, int] | None) -> dict[str, Any]:
        """The response: of a chat's choice, or of none while it is being written."""
        reason = choice and choice["finish_reason"]
        cut = reason == "length"
        return {
            "id": self.id, "object": "response", "created_at": self.created, "model": model, "error": None,
            "status": "in_progress" if choice is None else "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [] if choice is None else list(_items(choice["message"])),
            "usage": usage and {
                "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
            **self.told,
        }  # fmt: skip

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.numbered += 1
        return {"type": f"response.{kind}", "sequence_number": self.numbered - 1, **fields}


def _items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The items of an answer: its text, unless it is only calls, and each call."""
    calls = message.get("tool_calls") or ()
    if message.get("content") or not calls:
        yield message_item(message.get("content") or "")
    for call in calls:
        yield call_item(call)


def message_item(text: str, id: str = "", status: str = "completed") -> dict[str, Any]:
    content = [text_part(text)] if status == "completed" else []
    id = id or f"msg_{secrets.token_hex(16)}"
    return {"type": "message", "id": id, "status": status, "role": "assistant", "content": content}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "type": "function_call", "id": f"fc_{secrets.token_hex(16)}", "call_id": call["id"], "status": "completed",
        "name": function["name"], "arguments": function["arguments"],
    }  # fmt: skip


# ---- in -------------------------------------------------------------------------------------------------------------


def read_response(body: Any) -> Reply:
    """The request of a body; raises Refusal if it is not possible."""
    if not isinstance(body, dict):
        raise Refusal(400, 'the body is no JSON object; send {"input": ...}.')
    given = dict(body)
    for name, values in NEUTRAL.items():
        if given.pop(name, None) not in values:
            raise Refusal(400, f"{name} is not supported; leave it out.", name)
    chat: dict[str, Any] = {name: given.pop(name) for name in SAME if name in given}
    chat |= {ours: given.pop(name) for name, ours in RENAMED.items() if name in given}
    instructions, text = given.pop("instructions", None), given.pop("text", None) or {}
    if not isinstance(instructions, str | None):
        raise Refusal(400, "instructions must be a text.", "instructions")
    first = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] = [*first, *_messages(given.pop("input", None))]
    chat["response_format"] = _format(text)
    reasoning = given.pop("reasoning", None) or {}
    if not isinstance(reasoning, dict):
        raise Refusal(400, "reasoning must be an object.", "reasoning")
    chat["reasoning_effort"] = reasoning.get("effort")
    tools, choice = given.pop("tools", None) or [], given.pop("tool_choice", None)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Refusal(400, "tools must be a list of functions.", "tools")
    if wrong := next((tool for tool in tools if tool.get("type") != "function"), None):
        raise Refusal(400, f"there is no tool of the type {show(wrong.get('type'))}; functions alone.", "tools")
    chat["tools"] = [{"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} for tool in tools]
    chat["tool_choice"] = {"function": {"name": choice.get("name")}} if isinstance(choice, dict) else choice
    if given:
        raise Refusal(400, f"there is no field {show(min(given))}.", min(given))
    told = {
        "instructions": instructions, "max_output_tokens": body.get("max_output_tokens"), "tools": tools,
        "tool_choice": choice or "auto", "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "temperature": body.get("temperature", 1.0), "top_p": body.get("top_p", 1.0), "metadata": {},
        "text": text or {"format": {"type": "text"}}, "previous_response_id": None, "truncation": "disabled",
    }  # fmt: skip
    return Reply(chat, told)


def _format(text: Any) -> dict[str, Any] | None:
    """A chat's response_format."""
    given = text.get("format") if isinstance(text, dict) else text
    if given is None:
        return None
    if not isinstance(given, dict):
        raise Refusal(400, "text must be an object with a format.", "text")
    if given.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {k: v for k, v in given.items() if k != "type"}}
    return given


def _messages(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise Refusal(400, ITEM, "input")
    messages: list[dict[str, Any]] = []
    for item in given:
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
        elif kind == "function_call":
            call = {"id": item.get("call_id"), "function": {k: item.get(k) for k in ("name", "arguments")}}
            if not (messages and messages[-1]["role"] == "assistant"):
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = _content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind != "reasoning":
            raise Refusal(400, ITEM, "input")
    return messages


def _content(given: Any) -> Any:
    """Parts as a chat calls them."""
    if not isinstance(given, list):
        return given
    return [
        {"type": "text", "text": part["text"]} if isinstance(part, dict) and part.get("type") in TEXTS else part
        for part in given
    ]
