"""`rung generate` and `rung score --perplexity`, as typed by a user."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpt2_models as models
import gpuless
import rung
from rung.cli import main
from rung.models.cpu import build

GREEDY = ["-t", "0", "-n", "12"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs a command; gives exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


class Terminal(io.StringIO):
    """A terminal that notes each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def expected(prompt: str, tokens: int = 12) -> str:
    return rung.load(device="cpu").generate(prompt, temperature=0, max_new_tokens=tokens).text


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("rung: ") and err.count("\n") == 1, err
    for word in words:
        assert word in err, err


def test_a_prompt_is_continued_by_the_model_inside(command) -> None:  # type: ignore[no-untyped-def]
    code, out, err = command("generate", "Once upon a time", *GREEDY)
    assert (code, err) == (0, "")
    assert out == "Once upon a time" + expected("Once upon a time") + "\n"
    assert (
        command("generate", "Once upon a time", "--no-echo", *GREEDY)[1]
        == expected("Once upon a time") + "\n"
    )


def test_a_prompt_comes_from_standard_input(command, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    for words in ([], ["-"]):
        piped(monkeypatch, "The naïve fox\n".encode())
        code, out, _ = command("generate", *words, *GREEDY)
        assert (code, out) == (0, "The naïve fox" + expected("The naïve fox") + "\n")


def test_a_file_of_prompts_leaves_blank_lines_out(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "prompts.txt"
    file.write_text("The king\n\n   \nThe fox\n")
    code, out, err = command("generate", "--prompts", str(file), *GREEDY)
    assert code == 0 and "2 blank lines" in err and err.count("\n") == 1
    assert out == f"The king{expected('The king')}\n---\nThe fox{expected('The fox')}\n"


def test_only_the_end_of_a_line_ends_a_prompt(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "prompts.txt"
    file.write_bytes("The king\x0cThe\u2028fox\r\nThe wood".encode())
    _, out, _ = command("generate", "--prompts", str(file), "--json", "-n", "1")
    prompts = [json.loads(line)["prompt"] for line in out.removesuffix("\n").split("\n")]
    assert prompts == ["The king\x0cThe\u2028fox", "The wood"]


@pytest.mark.slow
def test_texts_go_into_a_pipe_as_soon_as_they_are_complete(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("The king\n" * 20)
    words = ["--prompts", str(file), "--batch-size", "1", "-n", "400", "-t", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rung", "generate", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ}, preexec_fn=_hear_ctrl_c,
    )  # fmt: skip
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest = [json.loads(line) for line in process.stdout]
    assert process.wait(timeout=30) == 130
    assert first["finish_reason"] == "length" and len(rest) == 19
    assert rest[-1]["finish_reason"] == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("PYTHONIOENCODING=ascii {} generate Café -t 0 -n 1", 0, "Caf?", ""),
        ("{} generate <&-", 2, "", "rung: the prompt is empty"),
        ("{} generate Once -n 1 >&-", 0, "", ""),
    ],
)
def test_streams_may_be_closed_or_know_few_letters(line: str, code: int, out: str, err: str) -> None:
    done = subprocess.run(
        ["bash", "-c", line.format(f"{sys.executable} -m rung")], capture_output=True, text=True,
        env={**os.environ},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(out) and done.stderr.startswith(err) and "Traceback" not in done.stderr
    assert bool(done.stdout) == bool(out) and bool(done.stderr) == bool(err)


def test_json_has_one_object_a_text(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "prompts.txt"
    file.write_text("The king\nThe fox\n")
    words = ["--num-samples", "2", "--json", "--stats", "--logprobs", "--seed", "4", "-n", "6"]
    code, out, err = command("generate", "--prompts", str(file), *words)
    objects = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(o["prompt"], o["sample"]) for o in objects] == [
        (p, s) for p in ("The king", "The fox") for s in (0, 1)
    ]
    for o in objects:
        assert len(o["tokens"]) == len(o["logprobs"]) == 6
        assert not o["text"].startswith(o["prompt"])
        assert o["stats"]["new_tokens"] == 24 and o["stats"]["tokens_per_s"] > 0 and o["seed"] == 4


def test_a_terminal_gets_the_text_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra, streamed in (([], True), (["--no-stream"], False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        with pytest.raises(SystemExit):
            main(["generate", "Once upon a time", *GREEDY, *extra])
        assert terminal.getvalue() == "Once upon a time" + expected("Once upon a time") + "\n"
        assert (len(terminal.writes) > 10) == streamed


def test_stops_are_accepted_as_text_number_and_token(command) -> None:  # type: ignore[no-untyped-def]
    model = rung.load(device="cpu")
    whole = model.generate("Once upon a time", temperature=0, max_new_tokens=12)
    token = whole.tokens[5]
    until = model.tokenizer.decode(whole.tokens[: whole.tokens.index(token)])
    words = ["generate", "Once upon a time", "--no-echo", *GREEDY]
    assert command(*words, "--stop-token", str(token))[1] == until + "\n"
    text = model.tokenizer.decode([token])
    assert command(*words, "--stop", text)[1] == whole.text[: whole.text.index(text)] + "\n"
    refused(command(*words, "--stop-token", "no such token"), "--stop-token", "--stop")
    assert command(*words, "--stop-token", "<|endoftext|>")[1] == whole.text + "\n"


def test_stats_tell_times_speed_and_memory(command) -> None:  # type: ignore[no-untyped-def]
    _, _, err = command("generate", "Once", "--stats", *GREEDY)
    for word in ("loaded in", "prompt tokens in", "12 new tokens at", "tokens/s", "MB"):
        assert word in err


@pytest.mark.slow
@pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
def test_stats_tell_which_rungs_served_and_what_the_plan_could_not_do(command) -> None:  # type: ignore[no-untyped-def]
    words = ["generate", "Once", "--model", str(models.saved(n_layer=1)), "--device", "emulator", "--plan", "fused"]
    words += ["--window", "2", "--kernel", "gelu=1", "-t", "0", "-n", "2", "--stats"]
    _, _, err = command(*words)
    assert "plan fused: embedding/04_reuse, " in err and "gelu/01_naive" in err and "local_attention/03_tiles" in err
    assert "note: matmul_gelu is left out, so that the rung given for gelu is used." in err
    assert "cached_attention/04_split_keys" in err and "through torch" not in err
    figures = json.loads(command(*words, "--json")[1])["stats"]
    assert figures["plan"] == "fused" and figures["rungs"]["gelu"] == "gelu/01_naive" and len(figures["notes"]) == 1


def test_a_window_changes_the_text(command) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = command("generate", "Once upon a time", "--window", "2", *GREEDY)
    assert code == 0 and out.strip() != expected("Once upon a time").strip()
    assert command("generate", "Once upon a time", "--window", "4000", *GREEDY)[1:] == command(
        "generate", "Once upon a time", *GREEDY
    )[1:]


def test_a_folder_and_a_dtype_are_accepted(command) -> None:  # type: ignore[no-untyped-def]
    folder = models.saved()
    for dtype in ("f32", "bfloat16", "int8"):
        code, out, _ = command(
            "generate", "Once", "--model", str(folder), "--dtype", dtype, "--json", *GREEDY
        )
        assert code == 0 and len(json.loads(out)["tokens"]) == 12
    assert json.loads(command("generate", "Once", "-m", str(folder), "--dtype", "f32", "--json", *GREEDY)[1])[
        "tokens"
    ] == models.reference_greedy(folder, models.ours(folder).tokenizer.encode("Once"), 12)


def test_bad_input_is_refused_in_one_sentence(command, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    refused(command("generate", ""), "prompt is empty")
    refused(command("generate", "x", "-t", "-1"), "temperature is -1")
    refused(command("generate", "x", "--top-p", "0"), "top-p is 0")
    refused(command("generate", "x " * 2000), "context", "let it slide")
    refused(command("generate", "x", "-m", "no/such/model"), "no/such/model")
    refused(command("generate", "x", "-m", "no-such-model", "--offline"), "no-such-model", "offline")
    refused(command("generate", "x", "--logprobs"), "--json")
    refused(command("generate", "x", "--stop", ""), "--stop")
    refused(command("generate", "x", "--kernel", "gelu"), "OPERATION=RUNG")
    refused(command("generate", "x", "--kernel", "gelu=2"), "emulator")
    refused(command("generate", "x", "--plan", "fastest"), "'fastest'")
    refused(command("generate", "x", "--threads", "0"), "threads is 0")
    refused(command("generate", "x", "--window", "0"), "window is 0")
    refused(command("generate", "x", "--seed", "-4"), "seed is -4")
    refused(command("generate", "x", "--stop-token", "4096"), "4096", "vocabulary")
    refused(command("generate", "x", "--seed", "many"), "--seed")
    refused(command("generate", "x", "--no-such-option"), "--no-such-option")
    refused(command("generate", "x", "-m", ""), "name is empty")
    refused(command("generate", "x", "-m", "random:distilgpt2"), "no tokenizer")
    refused(command("generate", "bad \udcff"), "not UTF-8")
    piped(monkeypatch, b"good\nbad \xff\xfe")
    refused(command("generate"), "standard input", "UTF-8", "line 2")
    piped(monkeypatch, b"")
    refused(command("generate"), "prompt is empty")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdin", terminal)
    refused(command("generate"), "there is no prompt")
    file = tmp_path / "prompts"
    refused(command("generate", "--prompts", str(file)), str(file), "cannot be read")
    file.write_text("\n \n")
    refused(command("generate", "--prompts", str(file)), str(file), "no prompt")
    file.write_bytes(b"a\n\x80")
    refused(command("generate", "--prompts", str(file)), str(file), "line 2")
    refused(command("generate", "x", "--prompts", str(file)), "both")


@pytest.mark.parametrize("said", ["unable to mmap 9 bytes: Cannot allocate memory (12)", "std::bad_alloc"])
def test_too_little_memory_is_one_sentence(command, monkeypatch, said: str) -> None:  # type: ignore[no-untyped-def]
    def load(**_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr("rung.models.load.load", load)
    refused(command("generate", "x"), "memory")


def test_perplexity_prints_its_figure(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "text"
    file.write_text(models.TEXT)
    folder = str(models.saved())
    code, out, _ = command("score", "--perplexity", "--dtype", "float32", "--model", folder, str(file), "--stride", "16")
    figures = json.loads(command("score", str(file), "--model", folder, "--dtype", "float32", "--stride", "16")[1])
    assert code == 0 and out.startswith(f"perplexity {figures['perplexity']:.4f} ")
    refused(command("score", "--perplexity", "--dtype", "float32", "--model", folder, str(tmp_path / "none")), "cannot be read")
    refused(command("score", "--perplexity", "--dtype", "float32", "--model", folder, str(file), "--stride", "65"), "stride is 65")
    refused(command("score", "--perplexity", "--dtype", "float32", "--model", folder, str(file), "--context", "65"), "context is 65")
    refused(command("score", "--perplexity", "--dtype", "float32", "--model", folder, str(file), "--stride", "0"), "stride is 0")
    refused(command("score", "--perplexity", "--dtype", "float32", "--model", folder, str(file), "--context", "0"), "context is 0")
    file.write_bytes(b"\xff")
    refused(command("score", "--perplexity", "--dtype", "float32", "--model", folder, str(file)), "UTF-8")
    file.write_text("")
    refused(command("score", "--perplexity", "--dtype", "float32", "--model", folder, str(file)), "too short")


def _hear_ctrl_c() -> None:
    """Whoever runs the tests in the background may have told its children to ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_ends_with_what_was_written() -> None:
    words = ["generate", "Once upon a time", "-n", "100000", "--slide", "--ignore-eos", "--seed", "7", "--stats"]
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rung", *words],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ},
        preexec_fn=_hear_ctrl_c,
    )
    os.close(theirs)
    seen = b""
    while len(seen) < 200:
        seen += os.read(ours, 1024)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    err = process.stderr.read().decode()
    assert process.wait(timeout=30) == 130
    assert time.monotonic() - began < 10
    assert "tokens/s" in err and "Traceback" not in err and "Aborted" not in err
    assert seen.startswith(b"Once upon a time")


def test_neither_transformers_nor_the_hub_is_imported_for_the_model_inside() -> None:
    code = (
        "import sys; from rung.cli import main\n"
        "try: main(['generate', 'Once', '-n', '2'])\n"
        "except SystemExit: pass\n"
        "large = {'transformers', 'huggingface_hub', 'triton', 'scipy', 'cuda.core', 'rich.progress'}\n"
        "print(sorted(large & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.skipif(build.begin(build.DEFAULT) is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("more", [["-t", "0"], ["--top-k", "9", "--repetition-penalty", "1.2", "--seed", "1"]])
def test_a_text_is_written_on_a_cpu_without_torch(more: list[str]) -> None:
    code = (
        "import sys; from rung.cli import main\n"
        f"try: main(['generate', 'Once upon a time there was a king', '--device', 'cpu', '-n', '3', *{more}])\n"
        "except SystemExit as end: assert not end.code\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    for _ in range(2):  # the first may convert the weights
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.stderr.split()[-1] == "False"


def test_a_prompt_is_an_option_a_file_or_a_line_of_json(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plain = command("generate", "The cat", *GREEDY)
    assert command("generate", "-p", "The cat", *GREEDY) == plain
    file = tmp_path / "chapter.txt"
    file.write_text("The cat\n")
    assert command("generate", "-f", str(file), *GREEDY) == plain
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('"The cat"\n\n{"prompt": "Once\\nupon", "id": 7}\n')
    out = command("generate", "--prompts", str(lines), "--json", *GREEDY)[1]
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["The cat", "Once\nupon"]
    refused(command("generate", "a", "-p", "b"), "PROMPT and --prompt were both given")
    refused(command("generate", "-p", "a", "-f", str(file)), "--prompt and --file")
    lines.write_text('"a"\n{"text": "b"}\n')
    refused(command("generate", "--prompts", str(lines)), "line 2", "has no text")
    lines.write_text("{")
    refused(command("generate", "--prompts", str(lines)), "line 1", "is not JSON")


def test_threads_have_an_end(command) -> None:  # type: ignore[no-untyped-def]
    refused(command("generate", "x", "--device", "cpu", "--threads", "100000"), "threads is 100000", "give at most")


def test_a_stopped_run_is_resumed_with_its_options_alone(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder, prompts, out = models.saved(), tmp_path / "prompts.txt", tmp_path / "o.jsonl"
    prompts.write_text("Once upon\nThe wolf\nA dragon\n")
    words = ["generate", "--prompts", str(prompts), "-m", str(folder), "--device", "cpu", "--seed", "1", "-o", str(out)]
    assert command(*words, "-n", "5")[0] == 0
    whole = out.read_text()
    assert [json.loads(line)["index"] for line in whole.splitlines()] == [0, 1, 2]
    out.write_text(whole[: whole.index("\n") + 9])
    refused(command(*words, "-n", "6"), str(out), "options")
    assert command(*words, "-n", "5", "--batch-size", "1", "--threads", "1")[0] == 0
    assert out.read_text() == whole


@pytest.mark.parametrize("tty", [False, True])
def test_a_text_that_the_context_ends_is_mentioned(  # type: ignore[no-untyped-def]
    command, tty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = models.saved()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty, raising=False)
    code, _, err = command("generate", "A dragon", "-m", str(folder), "--device", "cpu", "--ignore-eos", "-n", "100000")
    assert code == 0 and "--slide" in err and err.count("\n") == 1
    slid = command("generate", "A dragon", "-m", str(folder), "--device", "cpu", "--ignore-eos", "-n", "100", "--slide")
    assert (slid[0], slid[2]) == (0, "")
