"""Chats of the models of Llama's family: what their templates write, token by token as transformers, and their ends."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import openai
import pytest
import tokenizers
from test_serve import ask

import llama_models as models
import rung
from rung.cli import main
from rung.errors import RungError
from rung.serve.run import served_from
from serving import running

# In the style of the families' templates: how messages begin and end, and what the first one is.
TEMPLATES = {
    "headers": {
        "bos": "<|first|>", "eos": "<|turn_end|>", "more": ("<|head|>", "<|/head|>"),
        "template": """{%- if not date is defined %}{%- set date = "26 Jul 2024" %}{%- endif %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|head|>system<|/head|>\\n\\nToday: " + date + "\\n\\n" + system + eos_token }}
{%- for m in messages %}
    {{- "<|head|>" + m['role'] + "<|/head|>\\n\\n" + m['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|head|>assistant<|/head|>\\n\\n" }}{%- endif %}
""",
    },
    "marks": {
        "bos": None, "eos": "<|stop|>", "more": ("<|go|>", "<think>", "</think>"),
        "template": """{%- set ns = namespace(thought=false) %}
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|go|>system\\nYou answer briefly.' + eos_token + '\\n' }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- set words = message.content.split('</think>')[-1].lstrip('\\n') %}
        {% generation %}{{- '<|go|>assistant\\n' + words + eos_token + '\\n' }}{% endgeneration %}
        {%- set ns.thought = true %}
        {%- continue %}
    {%- endif %}
    {{- '<|go|>' + message.role + '\\n' + message.content + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|go|>assistant\\n' }}{% if ns.thought %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}""",
    },
    "plain": {
        "bos": "<s>", "eos": "</s>", "more": ("<|go|>",),
        "template": "{% for m in messages %}<|go|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|go|>assistant\n{% endif %}",
    },
    # As Gemma's: the system's text begins the first turn, and the assistant is called model.
    "turns": {
        "bos": "<bos>", "eos": "<eos>", "more": ("<start_of_turn>", "<end_of_turn>"),
        "template": """{{ bos_token }}
{%- if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}{% set turns = messages[1:] %}
{%- else %}{% set first = '' %}{% set turns = messages %}{% endif %}
{%- for turn in turns %}
{{- '<start_of_turn>' + ('model' if turn.role == 'assistant' else turn.role) + '\\n' + (first if loop.first else '') }}
{{- turn.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}""",
    },
    "brackets": {
        "bos": "<s>", "eos": "</s>", "more": ("[INST]", "[/INST]"),
        "template": """{{ bos_token }}{% for m in messages %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('user and assistant take turns, and a system message has no place: ' + (m | tojson)) }}
{% endif %}
{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ m['content'] + eos_token }}{% endif %}
{% endfor %}""",
    },
}  # fmt: skip
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": " Once upon <a> time & \"more\"\n"}],
    [
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "<think>\nwell\n</think>\n\nHi <|go|> there"},
        {"role": "user", "content": "And then? \u00e9\u4e16"},
    ],
    [{"role": "system", "content": "Speak as a bird."}, {"role": "user", "content": "Sing </s> [/INST]"}],
]  # fmt: skip


def folder_of(style: str, home: Path, **settings: Any) -> Path:
    """A random model with a byte-level tokenizer of its own special tokens, and this template."""
    of, source = TEMPLATES[style], models.saved("llama", vocab_size=512)
    home.mkdir()
    for file in source.iterdir():
        (home / file.name).write_bytes(file.read_bytes())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["Once upon a time there was a bird, and then it sang."], trainer)
    special = [token for token in (of["bos"], of["eos"], *of["more"]) if token]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(home / "tokenizer.json"))
    given = {"chat_template": of["template"], "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": of["eos"]}
    given |= {"bos_token": {"content": of["bos"], "__type": "AddedToken"}} if of["bos"] else {}
    (home / "tokenizer_config.json").write_text(json.dumps({**given, **settings}))
    return home


@pytest.mark.parametrize("style", TEMPLATES)
def test_a_template_writes_the_tokens_of_transformers(style: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = folder_of(style, tmp_path / style)
    theirs, ours = AutoTokenizer.from_pretrained(folder), served_from(folder, "tiny")
    assert ours.chat_template is not None
    for chat in CHATS:
        try:
            right = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        except Exception as refused:
            assert style == "brackets" and "take turns" in str(refused)
            with pytest.raises(RungError, match="take turns"):
                ours.chat_template.text(chat)
            continue
        assert ours.tokenizer.encode(ours.chat_template.text(chat)) == right


def test_a_template_in_a_file_of_its_own_and_one_of_several(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"}]
    folder = folder_of("plain", tmp_path / "several", chat_template=several)
    template = served_from(folder, "tiny").chat_template
    assert template is not None and template.text(CHATS[0]) == "<s>" + CHATS[0][0]["content"]
    (folder / "chat_template.jinja").write_text("[{{ messages | length }}]")
    template = served_from(folder, "tiny").chat_template
    assert template is not None and template.text(CHATS[1]) == "[3]"


def test_a_template_reaches_nothing_of_the_program(tmp_path: Path) -> None:
    folder = folder_of("plain", tmp_path / "hostile", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    template = served_from(folder, "tiny").chat_template
    assert template is not None
    with pytest.raises(RungError):
        template.text(CHATS[0])


def test_a_conversation_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of("headers", tmp_path / "model")
    model, template = rung.load(folder, dtype="float32", device="cpu"), served_from(folder, "tiny").chat_template
    assert template is not None
    told = [{"role": "system", "content": "Sing."}]
    answers, messages = [], list(told)
    for text in ("Hello", "And?", "Hello"):
        if len(answers) == 2:
            messages = list(told)  # after /new
        messages.append({"role": "user", "content": text})
        ids = model.tokenizer.encode(template.text(messages))
        answers.append(model.generate([ids], max_new_tokens=6, temperature=0)[0].text)
        messages.append({"role": "assistant", "content": answers[-1]})
    lines = "Hello\n\nAnd?\n/new\nHello\n" + "too long " * 200 + "\n/end\nunread\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    words = ["chat", "--model", str(folder), "--dtype", "float32", "-t", "0", "-n", "6", "--system", "Sing."]
    with pytest.raises(SystemExit) as ended:
        main(words)
    found = capsys.readouterr()
    assert ended.value.code == 0 and found.out == "".join(f"{answer}\n" for answer in answers)
    assert found.err.startswith("rung: ") and "/new" in found.err and answers[0] == answers[2]
    with pytest.raises(SystemExit) as ended:
        main(["chat"])  # the model inside has no template
    assert ended.value.code == 2 and capsys.readouterr().err.startswith("rung: ")


@pytest.mark.slow
def test_a_chat_by_openais_client_ends_at_any_of_the_end_tokens(tmp_path: Path) -> None:
    """A text ends before the first token that is an end; generation_config.json names several."""
    folder = folder_of("headers", tmp_path / "model")
    model = rung.load(folder, dtype="float32", device="cpu")
    template = served_from(folder, "tiny").chat_template
    assert template is not None
    ids = model.tokenizer.encode(template.text(CHATS[0]))
    wrote = model.generate([ids], max_new_tokens=24, temperature=0)[0].tokens
    ends = sorted({wrote[7], wrote[11], 511})
    first = min(wrote.index(end) for end in ends if end in wrote)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    expected = model.tokenizer.decode(wrote[:first])
    parts: Any = [{"type": "text", "text": CHATS[0][0]["content"][:5]}, {"type": "text", "text": CHATS[0][0]["content"][5:]}]
    with running(folder, slots=2) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        how: Any = {"model": "tiny", "temperature": 0, "max_tokens": 24}
        whole = client.chat.completions.create(messages=CHATS[0], **how)  # type: ignore[arg-type]
        stream = list(client.chat.completions.create(messages=CHATS[0], stream=True, **how))  # type: ignore[arg-type]
        divided = client.chat.completions.create(messages=[{"role": "user", "content": parts}], **how)
        assert whole.choices[0].message.content == expected == divided.choices[0].message.content
        assert whole.choices[0].finish_reason == "stop" and whole.usage is not None
        assert whole.usage.prompt_tokens == len(ids)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == expected
        assert ask(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"image": 1}]}]})[0] == 400
