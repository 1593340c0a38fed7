"""What holds for any header, expression, config, tensor file, prompt and command line, however odd.

Examples are drawn alike in every run; those that once failed are written out beside them.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuless.base.expressions import FUNCTIONS, evaluate
from rung.cli import main
from rung.errors import RungError
from rung.models.family import parse_config
from rung.models.folders import INNER
from rung.models.tensors import Safetensors
from rung.models.text_files import prompt_lines, prompt_records
from rung.models.tokenizer import Detokenizer, read_tokenizer
from rung.rungs import header

alike = settings(
    derandomize=True, database=None, deadline=None, max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
any_text = st.text(max_size=200)

# ---- expressions --------------------------------------------------------------------------------------------------

NAMES = {"N": 1031, "B": 3, "x": 0, "scale": 0.125}
BINARY = ("+", "-", "*", "/", "//", "%", "&", "|", "<", "<=", "==", "!=", " and ", " or ")


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, st.sampled_from(BINARY), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})")
    called = st.tuples(st.sampled_from(["min", "max", "ceil_div", "round_up"]), inner, inner)
    return (
        two
        | called.map(lambda t: f"{t[0]}({t[1]}, {t[2]})")
        | st.tuples(st.sampled_from(["-", "not ", "abs", "int", "next_pow2"]), inner).map(lambda t: f"({t[0]}({t[1]}))")
        | st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})")
    )


@alike
@given(st.recursive(st.sampled_from([*NAMES, "0", "1", "7", "128", "0.5", "True"]), _grown, max_leaves=12))
def test_an_expression_has_the_value_that_python_gives_it_or_none(text: str) -> None:
    try:
        expected = eval(text, {"__builtins__": {}}, {**FUNCTIONS, **NAMES})
    except (ZeroDivisionError, TypeError, ValueError, OverflowError):
        expected = None
    if text.count("and") + text.count("or"):  # which give a truth here, and one of their sides in Python
        with contextlib.suppress(RungError):
            evaluate(text, NAMES)
    elif expected is None or (isinstance(expected, int) and abs(expected) >= 2**128):
        with pytest.raises(RungError):
            evaluate(text, NAMES)
    else:
        assert evaluate(text, NAMES) == expected or math.isnan(expected)


@alike
@given(any_text | st.text("0123456789N+-*/%()<>=.,& ", max_size=60))
@example("9**9**9")
@example("(" * 900 + "1" + ")" * 900)
@example("-" * 1900 + "1")
@example("1 << 64 << 64 << 64")
@example("0\x00")
def test_any_text_is_a_number_or_a_sentence(text: str) -> None:
    try:
        value = evaluate(text, NAMES)
    except RungError as error:
        assert str(error).endswith(".") and len(str(error)) < 600
    else:
        assert isinstance(value, int | float)


# ---- headers ------------------------------------------------------------------------------------------------------


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "false" if value is None else json.dumps(value)


KEYS = sorted({*header.Header.__dataclass_fields__, "from", "launch", "inherit"} - {"parent", "launches"})
LAUNCH = {"kernel": "k", "grid": "B * T", "block": [32, 2]}


@alike
@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=5), st.booleans())
@example({"inherit": [[1]], "from": 5}, True)
@example({"tune": {"X": [True]}}, True)
@example({"launch": [{"kernel": "k", "grid": [], "block": 1}]}, False)
def test_any_header_is_read_or_refused_in_a_sentence(table: dict[str, Any], whole: bool) -> None:
    table = {"idea": "x", "launch": [LAUNCH]} | table if whole else table
    lines = "\n".join(f"{key} = {_toml(value)}" for key, value in table.items())
    try:
        found = header.parse(f"/*---\n{lines}\n---*/\n", "a.cu")
    except RungError as error:
        assert str(error).startswith("a.cu") and "\n" not in str(error)
    else:
        assert found.launches and all(len(entry.grid) in (1, 2, 3) for entry in found.launches)


@alike
@given(st.dictionaries(st.from_regex(r"[A-Z]{1,6}", fullmatch=True), st.lists(st.integers(-9, 2**40), min_size=1)))
def test_tunables_arrive_as_they_are_written(tune: dict[str, list[int]]) -> None:
    lines = "\n".join(["[tune]", *(f"{name} = {values}" for name, values in tune.items())])
    text = f'/*---\nidea = "x"\n{lines}\n[[launch]]\nkernel = "k"\ngrid = 1\nblock = 1\n---*/\n'
    assert header.parse(text, "a.cu").tune == {name: tuple(values) for name, values in tune.items()}


# ---- configs and tensor files -------------------------------------------------------------------------------------

FIELDS = ("n_embd", "n_head", "n_layer", "vocab_size", "n_positions", "n_inner", "layer_norm_epsilon", "eos_token_id",
          "activation_function", "tie_word_embeddings", "scale_attn_weights", "add_cross_attention", "model_type")  # fmt: skip


@alike
@given(st.dictionaries(st.sampled_from(FIELDS), json_values | st.integers(1, 64)))
@example({"layer_norm_epsilon": 10**400})
@example({"n_embd": True})
@example({"eos_token_id": [2**40]})
def test_any_config_is_a_gpt2_or_a_sentence(fields: dict[str, Any]) -> None:
    try:
        config = parse_config({"model_type": "gpt2"} | fields, "config.json")
    except RungError as error:
        assert str(error).endswith(".") and len(str(error)) < 400
    else:
        assert min(config.C, config.NH, config.layers, config.vocabulary, config.context, config.F) >= 1
        assert config.C % config.NH == 0 and 0 <= config.eps <= 1
        assert fields.get("n_embd") in (config.C, None)


ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@alike
@given(
    entries=st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), json_values | st.just(ENTRY)),
    data=st.binary(max_size=64),
)
@example(entries={"a": ENTRY | {"shape": [-1, -6]}}, data=bytes(24))
@example(entries={"a": ENTRY | {"data_offsets": [0, 2**70]}}, data=bytes(24))
@example(entries={"a": ENTRY | {"shape": [2, 4]}}, data=bytes(24))
def test_what_the_library_reads_is_read_alike_and_the_rest_is_refused(
    entries: dict[str, Any], data: bytes, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    raw = json.dumps(entries).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    try:
        theirs = load_file(path)
    except Exception:  # the library's own, and torch's
        theirs = None
    try:
        file = Safetensors(path)
        ours = {name: file.read(name) for name in file.shapes}
    except RungError as error:
        assert str(error).endswith(".")
        assert theirs is None
    else:
        assert not ours or (theirs is not None and ours.keys() == theirs.keys())  # the library opens what has a tensor
        theirs = theirs or {}
        assert all(torch.equal(ours[n].view(torch.uint8), theirs[n].view(torch.uint8)) for n in ours if ours[n].ndim)


@alike
@given(data=st.binary(max_size=300))
@example(data=b"\xff" * 8)
@example(data=struct.pack("<Q", 2**63) + b"{}")
def test_any_bytes_are_no_model(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    try:
        assert Safetensors(tmp_path / "x").shapes == {}
    except RungError as error:
        assert str(error).endswith(".")


# ---- prompts ------------------------------------------------------------------------------------------------------

TOKENIZER = read_tokenizer(INNER)


@alike
@given(st.text(max_size=80))
@example("<|endoftext|>")
@example("\ud800")
@example("\x00\u202e\U0001f9d7\u200d")
def test_any_text_comes_back_from_its_tokens_whole_and_piece_by_piece(text: str) -> None:
    try:
        ids = TOKENIZER.encode(text)
    except RungError:
        assert any("\ud800" <= c <= "\udfff" for c in text)
        return
    assert TOKENIZER.decode(ids) == text
    pieces = Detokenizer(TOKENIZER)
    assert "".join([*(pieces.push([i]) for i in ids), pieces.flush()]) == text


@alike
@given(
    data=st.binary(max_size=120)
    | st.lists(json_values, max_size=4).map(lambda v: "\n".join(map(json.dumps, v)).encode())
)
@example(data=b"[" * 100_000)
@example(data=b'{"prompt": 5}')
@example(data=b"\xef\xbb\xbf")
def test_any_file_is_prompts_or_a_sentence(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_bytes(data)
    for read in (prompt_lines, prompt_records):
        try:
            prompts = read(tmp_path / "prompts")
        except RungError as error:
            assert str(error).endswith(".")
        else:
            assert prompts and all(isinstance(p, str) and p for p in prompts)


# ---- command lines ------------------------------------------------------------------------------------------------

WORDS = ("--json", "--dtype", "--help", "-o", "--", "-", "=", "f32", "softmax/4", "softmax", "attention/99", "../x", "",
         "\x1b[2J", "--nothing", "-1", "1e999", "/dev/null", "\ud800", "'", "--case")  # fmt: skip


@settings(alike, max_examples=60)
@given(
    st.sampled_from(["list", "show", "results", "nothing", "help", "--version", ""]), st.lists(st.sampled_from(WORDS))
)
@example("show", ["softmax/4", "softmax/4"])
@example("list", ["--json", "=", ""])
def test_any_words_end_in_a_known_code_and_no_traceback(verb: str, words: list[str]) -> None:
    message = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(message),
        pytest.raises(SystemExit) as end,
    ):
        main([verb, *words])
    assert end.value.code in (0, 1, 2, 3, None)
    assert "Traceback" not in message.getvalue() and "\x1b" not in message.getvalue()
