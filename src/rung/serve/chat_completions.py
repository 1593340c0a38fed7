"""OpenAI's chats: from messages and tools to a completion's body, and from its parts back to messages and calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rung.errors import RungError
from rung.serve.chat import Message
from rung.serve.completions import MOST_LOGPROBS, Following, Served, show
from rung.serve.http import Refusal
from rung.serve.tools import MOST_TOOLS, NAME, Call, Form, form_of

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Fields of OpenAI's chats that are accepted only with values without effect.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "verbosity": (None, "medium"), "modalities": (None, ["text"]), "functions": (None, []),
    "function_call": (None, "none", "auto"), "audio": (None,), "prediction": (None,), "web_search_options": (None,),
}  # fmt: skip
MESSAGE = "messages must be a list of objects with a role and a content, both texts."


@dataclass(frozen=True)
class Chat:
    """A chat as a completion's body, and the calls that its answer may hold."""

    body: dict[str, Any]
    form: Form | None = None  # None: no calls
    names: tuple[str, ...] = ()  # of tools
    following: Following | None = None


def read_chat(body: Any, served: Served) -> Chat:
    """The chat of a body; raises Refusal where the model has no chat template."""
    template = served.chat_template
    if template is None:
        message = f"{served.name!r} brings no chat template, so that it has no form for messages; use /v1/completions."
        raise Refusal(400, message, "messages", "no_chat_template")
    if not isinstance(body, dict):
        raise Refusal(400, 'the body is no JSON object; send {"messages": [...]}.')
    given = dict(body)
    messages = messages_of(given.pop("messages", None))
    if "prompt" in given or "echo" in given:
        raise Refusal(400, "a chat has messages; prompt and echo are fields of /v1/completions.", "prompt")
    for name, values in NEUTRAL.items():
        if given.pop(name, None) not in values:
            raise Refusal(400, f"{name} is not supported; leave it out.", name)
    more = _names(given, served)
    tools, choice = _tools(given), given.pop("tool_choice", None)
    several = given.pop("parallel_tool_calls", None)
    if several not in (None, True, False):
        raise Refusal(400, "parallel_tool_calls must be true or false.", "parallel_tool_calls")
    form, chosen, following = _calling(tools, choice, served, several=several is not False)
    if following and given.get("response_format") not in (None, {"type": "text"}):
        raise Refusal(400, "a call of a tool has no response_format; leave one of the two out.", "response_format")
    try:
        text = template.text(messages, tools=[_declared(tool) for tool in chosen] or None, **more)
    except RungError as error:
        raise Refusal(400, str(error), "messages") from None
    _limit(given, _prompt(given, text, served), served)
    return Chat(given, form, tuple(tool["name"] for tool in chosen), following)


def _prompt(given: dict[str, Any], text: str, served: Served) -> int:
    """Puts the prompt's tokens into the body; their number."""
    ids = served.tokenizer.encode(text[: served.longest])
    most = served.config.context
    if len(text) > served.longest or len(ids) > most:
        message = f"the messages have {len(ids):,} tokens, more than the context of {most:,}; shorten them."
        raise Refusal(400, message, "messages", "context_length_exceeded")
    given["prompt"] = ids  # the template has written what a text begins with
    return len(ids)


def _limit(given: dict[str, Any], tokens: int, served: Served) -> None:
    """The fields that a completion calls differently."""
    logprobs, top = given.pop("logprobs", None), given.pop("top_logprobs", None)
    if logprobs not in (None, True, False):
        raise Refusal(400, "logprobs must be true or false.", "logprobs")
    if top is not None:
        if not logprobs:
            raise Refusal(400, "top_logprobs needs logprobs: true.", "top_logprobs")
        if type(top) is not int or not 0 <= top <= MOST_LOGPROBS:
            message = f"top_logprobs is {show(top)}; it must be a whole number from 0 to {MOST_LOGPROBS}."
            raise Refusal(400, message, "top_logprobs")
    if logprobs:
        given["logprobs"] = top or 0
    most = given.pop("max_completion_tokens", None)
    if most is not None:
        given["max_tokens"] = most
    if given.get("max_tokens") is None:
        given["max_tokens"] = max(1, served.config.context + 1 - tokens)


# ---- messages -------------------------------------------------------------------------------------------------------


def messages_of(given: Any) -> list[Message]:
    """Messages in the form that templates expect: contents are texts, arguments of calls are objects."""
    if not isinstance(given, list) or not given:
        raise Refusal(400, MESSAGE, "messages")
    return [_message(one) for one in given]


def _message(given: Any) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise Refusal(400, MESSAGE, "messages")
    message = {name: value for name, value in given.items() if value is not None}
    message["role"] = {"developer": "system", "function": "tool"}.get(given["role"], given["role"])
    calls = message.get("tool_calls")
    if calls is not None:
        message["tool_calls"] = [_past_call(one) for one in calls] if isinstance(calls, list) else None
        if message["tool_calls"] is None:
            raise Refusal(400, "tool_calls must be a list of calls, each with a function.", "messages")
    content = message.get("content", "" if calls else None)
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise Refusal(400, MESSAGE, "messages")
    return {**message, "content": content}


def _past_call(given: Any) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refusal(400, "tool_calls must be a list of calls, each with a function.", "messages")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise Refusal(400, "the arguments of a past call are no JSON.", "messages") from None
    return {**given, "type": "function", "function": {**function, "arguments": arguments}}


def _names(given: dict[str, Any], served: Served) -> dict[str, Any]:
    """Further names for the template, by chat_template_kwargs and reasoning_effort."""
    more, effort = given.pop("chat_template_kwargs", None) or {}, given.pop("reasoning_effort", None)
    if not isinstance(more, dict) or not all(name.isidentifier() for name in more):
        raise Refusal(400, "chat_template_kwargs must be an object of names and values.", "chat_template_kwargs")
    if effort is None:
        return more
    template = served.chat_template
    assert template is not None
    if effort not in EFFORTS:
        raise Refusal(400, f"reasoning_effort is {show(effort)}; use {', '.join(EFFORTS)}.", "reasoning_effort")
    if template.names("enable_thinking"):
        return {"enable_thinking": effort not in ("none", "minimal"), **more}
    if template.names("reasoning_effort"):
        return {"reasoning_effort": effort, **more}
    if effort != "none":
        raise Refusal(400, "this model has no reasoning_effort; leave it out.", "reasoning_effort")
    return more


# ---- tools ----------------------------------------------------------------------------------------------------------


def _tools(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The functions of a body's tools."""
    tools = given.pop("tools", None) or []
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise Refusal(400, f"tools must be a list of at most {MOST_TOOLS} functions.", "tools")
    found = []
    for tool in tools:
        function = (
            tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
        )
        if not isinstance(function, dict) or not NAME.fullmatch(str(function.get("name"))):
            raise Refusal(400, "a tool must be a function with a name of letters, digits, '_', '.' and '-'.", "tools")
        if not isinstance(function.get("parameters"), dict | None):
            raise Refusal(400, f"the parameters of {function['name']} must be a JSON schema.", "tools")
        found.append(function)
    return found


def _declared(function: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as templates expect it."""
    described = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": described | {k: v for k, v in function.items() if k != "strict"}}


Tools = list[dict[str, Any]]


def _calling(
    tools: Tools, choice: Any, served: Served, *, several: bool
) -> tuple[Form | None, Tools, Following | None]:
    """The form of calls, the tools that the model is told of, and the grammar of its answer."""
    named = (
        choice["function"].get("name") if isinstance(choice, dict) and isinstance(choice.get("function"), dict) else ""
    )
    if not named and choice not in (None, "none", "auto", "required"):
        raise Refusal(400, 'tool_choice must be "none", "auto", "required" or a function.', "tool_choice")
    chosen = [tool for tool in tools if tool["name"] == named] if named else tools
    if not chosen:
        if choice in (None, "none", "auto"):
            return None, [], None
        raise Refusal(400, f"tool_choice asks for a tool, and tools has none named {show(named)}.", "tool_choice")
    if choice == "none":
        return None, [], None
    assert served.chat_template is not None
    form = form_of(served.chat_template)
    if form is None:
        raise Refusal(400, "the model's chat template has no form for tools; leave them out.", "tools", "no_tools")
    forced = choice == "required" or bool(named)
    following = None
    if forced or form.begin:
        grammar = form.grammar(chosen, served.tokenizer, begun=not forced, several=several and not named)
        following = Following(grammar, "" if forced else form.begin)
    return form, tools if named else chosen, following


# ---- out ------------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """A choice's text so far: what can be shown of it, and its calls at the end."""

    chat: Chat
    text: str = ""
    shown: int = 0
    begun: bool = False
    calls: list[Call] = field(default_factory=list)

    def add(self, text: str, *, last: bool) -> tuple[str, list[Call]]:
        """What is new: content, and at the end calls."""
        self.text += text
        form = self.chat.form
        if form is None:
            return text, []
        if not last:
            end = max(self.shown, form.holds_back(self.text))
            new, self.shown = self.text[self.shown : end], end
            return new, []
        content, self.calls = form.calls(self.text, self.chat.names)
        return (content if self.calls else self.text)[self.shown :], self.calls


def chat_answer(
    completion: Mapping[str, Any], chat: Chat, answers: dict[int, Answer], *, chunk: bool
) -> dict[str, Any]:
    """A chat's answer, or its chunk, from a completion's; `answers` are those of its choices so far."""
    choices = []
    for choice in completion["choices"]:
        answer = answers.setdefault(choice["index"], Answer(chat))
        reason = choice["finish_reason"]
        content, calls = answer.add(choice["text"], last=reason is not None)
        message: dict[str, Any] = {"content": content}
        if not chunk or not answer.begun:
            message = {"role": "assistant", **message}
        answer.begun = True
        if calls:
            message["tool_calls"] = [call.as_json(i if chunk else None) for i, call in enumerate(calls)]
            message["content"] = content or None
            reason = "tool_calls" if reason == "stop" else reason
        choices.append({
            "index": choice["index"], "delta" if chunk else "message": message,
            "logprobs": _logprobs(choice["logprobs"]), "finish_reason": reason,
        })  # fmt: skip
    kind = "chat.completion.chunk" if chunk else "chat.completion"
    return {**completion, "id": "chat" + completion["id"], "object": kind, "choices": choices}


def _logprobs(told: Mapping[str, Sequence[Any]] | None) -> dict[str, Any] | None:
    if not told:
        return None
    each = zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True)
    return {
        "content": [
            {
                "token": token, "logprob": p, "bytes": list(token.encode()),
                "top_logprobs": [{"token": t, "logprob": q, "bytes": list(t.encode())} for t, q in (top or {}).items()],
            }
            for token, p, top in each
        ]
    }  # fmt: skip
