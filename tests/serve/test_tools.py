"""Tools by OpenAI's client over the templates of three families, and what a template's process bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import tokenizers
from test_serve import ask

import llama_models as models
from rung.errors import RungError
from rung.models.batching.constraint import Constraint
from rung.models.tokenizer import read_tokenizer
from rung.serve.chat import ChatTemplate
from rung.serve.run import served_from
from rung.serve.template_process import OUTPUT
from rung.serve.tools import BARE, MARK, TAGS, Call, form_of
from serving import Running, running

# In the style of the families' templates: what they say of tools, and how they repeat calls and outputs.
TAGGED = """{%- if tools %}<|go|>system
{{- '\\nTools:\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
{{- 'Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|go|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}{% endfor %}
{{- '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|go|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
BARED = """{{- bos_token }}{% for m in messages %}{{ '<|go|>' + m.role + '\\n' }}
{%- if tools and loop.first %}{{- 'Respond in the format {"name": function name, "parameters": its arguments}.\\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) }}{% endfor %}{% endif %}
{%- if m.tool_calls %}{% set call = m.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
{%- else %}{{- m.content }}{% endif %}{{- '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|go|>assistant\\n' }}{% endif %}"""
MARKED = """{{- bos_token }}{% for m in messages %}
{%- if tools and loop.last %}{{- '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}
{%- if m.tool_calls %}{{- '[TOOL_CALLS][' }}{% for call in m.tool_calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}' }}
{%- if not loop.last %}{{- ', ' }}{% endif %}{% endfor %}{{- ']' + eos_token }}
{%- else %}{{- '[' + m.role + ']' + m.content }}{% endif %}{% endfor %}"""
STYLES: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "tags": (TAGGED, ("<tool_call>", "</tool_call>", "<think>", "</think>"), TAGS),
    "bare": (BARED, ("<|python_tag|>",), BARE),
    "mark": (MARKED, ("[TOOL_CALLS]",), MARK),
}
WEATHER = {
    "type": "object", "required": ["city", "days"], "additionalProperties": False,
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
}  # fmt: skip
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
PAST: Any = [
    {"role": "user", "content": "How is Rome?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome", "days": 1}'}},
    ]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
]  # fmt: skip


def folder_of(style: str, home: Path) -> Path:
    """A random model with this style's template and special tokens."""
    template, more, _ = STYLES[style]
    source = models.saved("llama", vocab_size=512, max_position_embeddings=2048)
    home.mkdir()
    for file in source.iterdir():
        (home / file.name).write_bytes(file.read_bytes())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(['{"name": "weather", "arguments": {"city": "Rome", "days": 3}}'], trainer)
    tokenizer.add_special_tokens(["<s>", "<|end|>", "<|go|>", *more])
    tokenizer.save(str(home / "tokenizer.json"))
    told = {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (home / "tokenizer_config.json").write_text(json.dumps({**told, "bos_token": "<s>", "eos_token": "<|end|>"}))
    (home / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id("<|end|>")}))
    return home


@pytest.mark.parametrize("style", STYLES)
def test_a_template_is_told_of_tools_and_calls_as_by_transformers(style: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from rung.serve.chat_completions import read_chat

    folder = folder_of(style, tmp_path / style)
    served, theirs = served_from(folder, "tiny"), AutoTokenizer.from_pretrained(folder)
    tools = [{**tool, "function": {"description": "", "parameters": {"type": "object", "properties": {}}} | tool["function"]}
             for tool in TOOLS]  # fmt: skip
    past = [dict(message) for message in PAST]
    past[1] = {**past[1], "content": "", "tool_calls": [
        {**past[1]["tool_calls"][0], "function": {"name": "weather", "arguments": {"city": "Rome", "days": 1}}}
    ]}  # fmt: skip
    right = theirs.apply_chat_template(past, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False)
    chat = read_chat({"messages": PAST, "tools": TOOLS}, served)
    assert chat.body["prompt"] == right and chat.form is STYLES[style][2] and chat.names == ("weather", "now")
    assert read_chat({"messages": PAST, "tools": TOOLS, "tool_choice": "none"}, served).form is None


def test_calls_in_a_text() -> None:
    weather = Call("weather", '{"city": "Rome"}')
    inside = '{"name": "weather", "arguments": {"city": "Rome"}}'
    names = ["weather", "now"]
    two = f'Well.\n<tool_call>\n{inside}\n</tool_call>\n<tool_call>{{"name": "now"}}</tool_call>'
    assert TAGS.calls(two, names) == ("Well.", [weather, Call("now", "{}")])
    assert TAGS.calls(f"<tool_call>{inside}", names) == ("", [weather])
    assert MARK.calls(f"[TOOL_CALLS][{inside}, {inside}]", names) == ("", [weather, weather])
    bare = inside.replace("arguments", "parameters")
    assert BARE.calls(f"<|python_tag|>{bare}; {bare}", names) == ("", [weather, weather])
    assert TAGS.calls(f"<tool_call>{inside}</tool_call><tool_call>{{", names) == ("", [weather])
    for text in ("<tool_call>{oh</tool_call>", '<tool_call>{"name": "other"}</tool_call>', "a [TOOL_CALLS] b", "{}", "Hi"):
        for form in (TAGS, MARK, BARE):
            assert form.calls(text, names) == (text, [])
    for text, shown in (("Well. <tool", 6), ("Well. <tool_call>{", 6), ("a < b", 5), ("", 0)):
        assert TAGS.holds_back(text) == shown
    assert BARE.holds_back(' {"na') == 0 and BARE.holds_back("Hi") == 2


def test_a_text_is_free_before_and_after_a_trigger(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tokenizer = read_tokenizer(folder_of("tags", tmp_path / "tags"))
    begin, end = (tokenizer.token(text) for text in ("<tool_call>", "</tool_call>"))
    assert begin is not None and end is not None
    functions = [tool["function"] for tool in TOOLS]
    constraint = Constraint(TAGS.grammar(functions, tokenizer, begun=True, several=True), tokenizer, [0], TAGS.begin)
    scores = torch.zeros(1, 512)
    assert torch.equal(constraint.forbid(scores), scores)
    for token in [*tokenizer.encode("Well"), begin]:
        constraint.add(token)
    assert constraint.forbid(scores)[0, tokenizer.encode("W")[0]] == -torch.inf
    for token in tokenizer.encode('{"name": "now", "arguments": {}}'):
        assert constraint.forbid(scores)[0, token] == 0
        constraint.add(token)
    assert constraint.forbid(scores)[0, end] == 0
    constraint.add(end)
    assert torch.equal(constraint.forbid(scores), scores) and not constraint.ended


# ---- by a client ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(STYLES))
def served_style(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Running]]:
    with running(folder_of(request.param, tmp_path_factory.mktemp("tools") / request.param), slots=2) as server:
        yield request.param, server


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.slow
def test_openais_client_has_tools_called(served_style: tuple[str, Running]) -> None:
    style, server = served_style
    how: Any = {"model": "tiny", "messages": PAST, "tools": TOOLS, "max_tokens": 300, "seed": 5}
    with client_of(server) as client:
        free = client.chat.completions.create(**how)
        assert free.choices[0].message.content
        forced = client.chat.completions.create(**how, tool_choice="required").choices[0]
        named = client.chat.completions.create(**how, tool_choice={"type": "function", "function": {"name": "weather"}})
        (call,) = named.choices[0].message.tool_calls or ()
        given = json.loads(call.function.arguments)  # type: ignore[union-attr]
        assert given["city"] in ("Rome", "Oslo") and 1 <= given["days"] <= 9
        assert named.choices[0].finish_reason == "tool_calls" and named.choices[0].message.content is None
        assert forced.message.tool_calls and call.id.startswith("call_")
        parts: list[tuple[Any, Any]] = []
        for chunk in client.chat.completions.create(**how, tool_choice="required", stream=True):
            for piece in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
                assert piece.function is not None and piece.function.name
                parts.append((piece.function.name, piece.function.arguments))
        assert parts == [(one.function.name, one.function.arguments) for one in forced.message.tool_calls]  # type: ignore[union-attr]
        if style != "bare":  # a model that begins a call by itself
            trigger = read_tokenizer(Path(server.pool.workers[0].setup.model["model"])).token(STYLES[style][2].begin)
            auto = client.chat.completions.create(**how, logit_bias={str(trigger): 1000})
            assert auto.choices[0].message.tool_calls


@pytest.mark.slow
def test_responses_by_openais_client(served_style: tuple[str, Running]) -> None:
    _, server = served_style
    tools: Any = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
    how: Any = {"model": "tiny", "temperature": 0, "max_output_tokens": 60}
    with client_of(server) as client:
        chat = client.chat.completions.create(
            model="tiny", temperature=0, max_tokens=60,
            messages=[{"role": "system", "content": "Sing."}, {"role": "user", "content": "Hello"}],
        )  # fmt: skip
        plain = client.responses.create(input="Hello", instructions="Sing.", **how)
        assert plain.output_text == chat.choices[0].message.content and plain.status in ("completed", "incomplete")
        assert plain.usage is not None and chat.usage is not None
        assert plain.usage.output_tokens == chat.usage.completion_tokens
        events = list(client.responses.create(input="Hello", instructions="Sing.", stream=True, **how))
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == plain.output_text
        assert events[0].type == "response.created" and [e.sequence_number for e in events] == list(range(len(events)))
        called = client.responses.create(input="Hello", tools=tools, tool_choice="required", parallel_tool_calls=False, **how)
        (item,) = called.output
        assert item.type == "function_call" and json.loads(item.arguments)["city"] in ("Rome", "Oslo")
        back: Any = [
            {"role": "user", "content": "Hello"}, item.model_dump(),
            {"type": "function_call_output", "call_id": item.call_id, "output": "Rain."},
        ]  # fmt: skip
        assert client.responses.create(input=back, tools=tools, **how).output
        shaped: Any = {"format": {"type": "json_schema", "name": "a", "schema": WEATHER}}
        assert json.loads(client.responses.create(input="Hello", text=shaped, **how).output_text)["days"]


@pytest.mark.slow
def test_fields_of_chats(served_style: tuple[str, Running]) -> None:
    style, server = served_style
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 1}

    def tokens(**more: Any) -> int:
        status, found = ask(server, "/v1/chat/completions", {**body, **more})
        assert status == 200, found
        return int(found["usage"]["prompt_tokens"])

    usual = tokens(verbosity="medium", modalities=["text"], functions=[], best_of=1, reasoning_effort=None)
    assert tokens(best_of=2, n=2) == usual
    without = tokens(chat_template_kwargs={"enable_thinking": False})
    assert (without > usual) == (style == "tags")
    if style == "tags":
        assert tokens(reasoning_effort="none") == without and tokens(reasoning_effort="high") == usual
    else:
        assert ask(server, "/v1/chat/completions", {**body, "reasoning_effort": "high"})[0] == 400
    for more, param in (
        ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x " * 5000}]}, "messages"), ({"tools": [{"type": "web"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"), ({"modalities": ["audio"]}, "modalities"),
    ):  # fmt: skip
        status, found = ask(server, "/v1/chat/completions", {**body, **more})
        assert status == 400 and found["error"]["param"] == param, (more, found)


def test_an_assistants_last_message_is_continued(tmp_path: Path) -> None:
    template = served_from(folder_of("tags", tmp_path / "tags"), "tiny").chat_template
    assert template is not None
    user, begun = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once upon "}
    assert template.text([user, begun]) == "<|go|>user\nHi<|end|>\n<|go|>assistant\nOnce upon"
    assert template.text([user]).endswith("<|go|>assistant\n")
    template.close()


# ---- what a template may take ---------------------------------------------------------------------------------------

LOOP = "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", [
    "{{ ('a' * 3000000000) | length }}", "{{ 'a'.center(4000000000) }}", "{{ messages | tojson(indent=1000000000) }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "{{ undefined.name.name }}", "{{ '% s' % 1 / 0 }}",
    "{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}", "{% broken",
])  # fmt: skip
def test_a_template_that_cannot_write_is_one_sentence(source: str) -> None:
    assert OUTPUT < 90_000_000
    template = ChatTemplate(source, {})
    with pytest.raises(RungError):
        template.text([{"role": "user", "content": "Hi"}])
    template.close()


@pytest.mark.slow
def test_a_template_without_end_ends_and_others_are_written() -> None:
    template = ChatTemplate("{% if messages[0].content == 'loop' %}" + LOOP + "{% endif %}done", {})
    began = time.monotonic()
    with pytest.raises(RungError):
        template.text([{"role": "user", "content": "loop"}])
    assert template.text([{"role": "user", "content": "Hi"}]) == "done" and time.monotonic() - began < 60
    template.close()


def test_forms_follow_templates() -> None:
    assert form_of(ChatTemplate("{{ messages }}", {})) is None
    assert form_of(ChatTemplate("{{ tools }} <tool_call>", {})) is TAGS
    assert form_of(ChatTemplate("{{ messages }}", {}, "{{ tools }} [TOOL_CALLS]")) is MARK
