"""What users name or send that is broken on purpose: one sentence each, without waiting, in bounded memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rung
from gpt2_models import saved, tokenizer_file
from gpuless.base import disk_cache
from rung import RungError, lines
from rung.check import judge
from rung.check.judge import report_on, requests
from rung.check.report import QUICK, CheckRequest, Report
from rung.cli import main
from rung.exchange.problem import submission
from rung.lines import write_whole
from rung.models import resume, tokenizer
from rung.models.text_files import texts_of
from rung.models.tokenizer import read_tokenizer
from rung.rungs import catalogue

ROOT = Path(__file__).parents[2]
TEXT = "Once upon a time there was a king who had three sons."


def command(
    *words: str, cwd: Path | None = None, stdin: str = "", stdout: Any = subprocess.PIPE, limit: int = 60, **more: str
) -> tuple[int, str, str]:
    """The exit code, output and errors of a command, whose data may take 4 GB."""
    done = subprocess.run(
        [sys.executable, "-m", "rung", *words], input=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=cwd,
        timeout=limit, env={**os.environ, "HF_HUB_OFFLINE": "1", **more}, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30)),
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout or "", done.stderr


def refused(*words: str, **how: Any) -> str:
    code, out, error = command(*words, **how)
    error = "".join(line for line in error.splitlines(keepends=True) if not line.endswith(" s so far\n"))  # progress
    assert code == 2 and out == "" and error.startswith("rung: ") and error.count("\n") == 1, (code, out, error)
    return error


# ---- tokenizers -----------------------------------------------------------------------------------------------------


def model_with(folder: Path, **changes: object) -> Path:
    """The small model with changes to its tokenizer.json."""
    folder.mkdir()
    for file in saved().iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    fields = json.loads(tokenizer_file().read_text())
    model = fields["model"] | changes.pop("model", {})  # type: ignore[operator]
    (folder / "tokenizer.json").write_text(json.dumps(fields | {"model": model} | changes))
    return folder


PADDING = {"direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}


@pytest.mark.parametrize(
    "changes",
    [
        {"truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}},
        {"padding": {"strategy": {"Fixed": 50}, **PADDING}},
        {"padding": {"strategy": {"Fixed": 10**9}, **PADDING}},
        {"model": {"dropout": 0.9}},
    ],
)
def test_a_tokenizers_settings_do_not_change_a_prompts_tokens(tmp_path: Path, changes: dict[str, object]) -> None:
    tokenizer = read_tokenizer(model_with(tmp_path / "model", **changes))
    assert tokenizer.encode(TEXT) == read_tokenizer(saved()).encode(TEXT)


def test_a_normalizer_that_makes_long_texts_is_refused(tmp_path: Path) -> None:
    grows = {"type": "Replace", "pattern": {"String": "O"}, "content": "O" * 5000}
    folder = model_with(tmp_path / "model", normalizer={"type": "Sequence", "normalizers": [grows] * 3})
    with pytest.raises(RungError, match="times longer"):
        read_tokenizer(folder)


def test_an_expression_without_end_is_a_sentence_and_no_stack_of_calls(tmp_path: Path, capfd: Any) -> None:
    normalizer = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}
    tokenizer = read_tokenizer(model_with(tmp_path / "model", normalizer=normalizer))
    with pytest.raises(RungError, match="cannot be applied"):
        tokenizer.encode("a" * 40 + "b")
    assert capfd.readouterr().err == ""


def test_a_text_too_long_to_divide_into_tokens_is_refused() -> None:
    with pytest.raises(RungError, match="divide it"):
        read_tokenizer(saved()).encode("a " * 2_000_000)


# ---- files, pipes and devices ---------------------------------------------------------------------------------------


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


GENERATE = ("generate", "Once", "-n", "2", "-o")


@pytest.mark.slow
def test_outputs_that_nothing_can_be_written_to_are_a_sentence(tmp_path: Path, pipe: str) -> None:
    assert "no program reads this pipe" in refused(*GENERATE, pipe)
    assert "No space left" in refused(*GENERATE, "/dev/full")
    assert "Is a directory" in refused(*GENERATE, str(tmp_path))
    assert "No such file" in refused(*GENERATE, "/proc/nothing/x")
    assert "no program reads this pipe" in refused("results", "--csv", pipe)
    with pytest.raises(RungError, match="no program reads this pipe"):
        write_whole(Path(pipe), "<svg/>")
    for path, message in ((pipe, "no program reads this pipe"), ("/dev/full", "No space left"), ("/", "directory")):
        with pytest.raises(RungError, match=message):
            lines.append(Path(path), {})


@pytest.mark.slow
def test_standard_output_can_be_the_output() -> None:
    code, out, error = command(*GENERATE, "/dev/stdout")
    assert code == 0 and json.loads(out)["index"] == 0, error


def test_a_pipe_that_is_read_can_be_the_output(pipe: str) -> None:
    got: list[str] = []
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    reader = threading.Thread(target=lambda: got.append(os.fdopen(reading).read()), daemon=True)
    with resume.opened(Path(pipe)) as sink:
        reader.start()
        sink.write("line\n")
    reader.join(10)
    assert got == ["line\n"] and resume.done(Path(pipe), "run") == 0


@pytest.mark.parametrize(
    "content", [b"[" * 100_000 + b"\n", b"\xff\xfe\n", b'{"index": 0.0}\n', b"[]\n", b'{"index": true}\n']
)
def test_an_output_of_other_content_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "out").write_bytes(content)
    with pytest.raises(RungError, match="another file with --output"):
        resume.done(tmp_path / "out", "run")
    assert (tmp_path / "out").read_bytes() == content


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("name", ["zeros.txt", "zeros.jsonl"])
def test_texts_of_zeros_are_refused_in_bounded_memory(tmp_path: Path, name: str, each: bool) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(RungError, match="more than 256 MB"):
        next(texts_of(str(tmp_path / name), "text", each))


@pytest.mark.slow
def test_a_pipe_without_a_writer_is_not_waited_for(pipe: str) -> None:
    assert "".join(texts_of(pipe, "text", lines=False)) == ""
    for words in (("serve", "--api-key-file", pipe), ("generate", "x", "--model", pipe)):
        assert "is a pipe or a device" in refused(*words)
    for words in (("serve", "--api-key-file", "/dev/zero"), ("results", "/dev/zero"), ("results", pipe)):
        assert "device" in (said := refused(*words)) or "not a file" in said


@pytest.mark.slow
def test_a_task_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    os.mkfifo(tmp_path / "task.yaml")
    assert "is a pipe or a device" in refused("eval", str(tmp_path / "task.yaml"))
    (tmp_path / "task.yaml").unlink()
    (tmp_path / "task.yaml").write_text("task: [[[\n")
    assert "ParserError" in refused("eval", str(tmp_path / "task.yaml"))


def test_only_a_line_feed_ends_a_line_of_json(tmp_path: Path) -> None:
    from rung.models.text_files import prompt_records

    texts = ["one\u2028two", "three\x85four", "five\x1csix", "seven"]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": t, "prompt": t}, ensure_ascii=False) + "\r\n" for t in texts), "utf-8")
    assert prompt_records(path) == texts == list(texts_of(str(path), "text", lines=False))


@pytest.mark.slow
def test_a_closed_standard_output_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for words in (("list",), ("--help",), ("generate", "Once", "-n", "2", "--json")):
        code, _, error = command(*words, stdout=writing)
        assert (code, error) == (0, ""), words
    os.close(writing)


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("generate", "x", "--num-samples", "1000000000"), "num_samples"),
        (("generate", "x", "--temperature", "nan"), "--temperature is nan"),
        (("serve", "--timeout", "inf"), "--timeout is inf"),
        (("sweep", "layernorm/5", "--seconds", "inf"), "--seconds is inf"),
        (("serve", "--cors", "*\r\nX: y"), "--cors"),
        (("serve", "--name", ""), "--name"),
    ],
)
def test_an_option_of_nonsense_is_a_sentence(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("rung: ") and message in captured.err and captured.err.count("\n") == 1


def test_no_samples_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", "hi", "--num-samples", "0"])
    assert ended.value.code == 2 and "num_samples is 0" in capsys.readouterr().err


def test_a_server_of_more_texts_than_memory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from rung.models.backends import backend_of

    with pytest.raises(RungError, match="fit into memory"):
        backend_of(rung.load(saved(), device="cpu").transformer, 1_000_000_000)


@pytest.mark.parametrize("options", [{"repetition_penalty": 1e-320}, {"presence_penalty": -1e308}])
def test_a_penalty_that_leaves_no_numbers_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(RungError, match="it must"):
        rung.load(saved(), device="cpu").generate("Once", max_new_tokens=1, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_no_cluster_is_waited_for() -> None:
    pytest.importorskip("ray")
    begin = time.monotonic()
    assert "there is no Ray cluster" in refused(*GENERATE[:-1], "--ray", "127.0.0.1:1")
    assert time.monotonic() - begin < 30


# ---- the cache folder -----------------------------------------------------------------------------------------------

CHECK = ("check", "residual/1", "--device", "emulator", "--quick", "--dtype", "f32")


def test_a_cache_that_cannot_be_used_is_a_mistake_and_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file"), "/dev/null", "/dev/full", "/proc/x", "~nosuchuser/x", "x" * 5000):
        assert "RUNG_CACHE" in refused(*CHECK, RUNG_CACHE=place)


@pytest.mark.slow
def test_a_relative_cache_is_where_the_command_begins(tmp_path: Path) -> None:
    code, _, error = command(*CHECK, cwd=tmp_path, RUNG_CACHE="here")
    assert code == 0, error
    assert list((tmp_path / "here" / "emulator").glob("*.so"))


def spoil(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo, lambda p: p.symlink_to("/dev/zero"), lambda p: p.mkdir(), lambda p: p.write_text("[" * 100_000),
        lambda p: p.write_text("5"), lambda p: p.write_bytes(b"\xff"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", [".so", ".json"])
def test_a_spoilt_entry_of_the_cache_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], end: str
) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    (tmp_path / "made.so").write_bytes(b"code")
    where = disk_cache.folder("native")
    entry = disk_cache.put(where, "key", tmp_path / "made.so", {})
    assert disk_cache.find(where, "key") == entry
    spoil(make)(entry.path if end == ".so" else where / "key.json")
    assert disk_cache.find(where, "key") is None
    (tmp_path / "made.so").write_bytes(b"code")
    assert disk_cache.find(where, "key") is None and disk_cache.put(where, "key", tmp_path / "made.so", {}) == entry
    assert disk_cache.find(where, "key") == entry


# ---- code that is judged --------------------------------------------------------------------------------------------

LEAVES = '''"""Leaves a process behind."""

import os
import time
from pathlib import Path

import torch

if os.fork() == 0:
    Path(__file__).with_suffix(".pid").write_text(str(os.getpid()))
    time.sleep(600)
    os._exit(0)
while not Path(__file__).with_suffix(".pid").exists():
    time.sleep(0.01)

DTYPES = ["f32"]


def run(a, b, out):
    torch.add(a, b, out=out)
'''
CLOSES = LEAVES.partition("if os.fork()")[0] + "os.closerange(0, 200)\n" + LEAVES.partition("(0.01)\n")[2]


def verdict_of(source: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """The verdict of the process alone: what the text imports and names is not looked at."""
    monkeypatch.setattr(judge, "computes_beside", lambda rung: None)
    path.write_text(source)
    own = catalogue.rung_from_file(catalogue.operation("residual"), path)
    return report_on(next(iter(requests([own], CheckRequest(effort=QUICK)))))


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="processes are confined on Linux")
def test_no_child_of_a_judged_rung_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict_of(LEAVES, tmp_path / "leaves.py", monkeypatch)
    process = int((tmp_path / "leaves.pid").read_text())
    until = time.monotonic() + 5
    while alive(process) and time.monotonic() < until:
        time.sleep(0.05)
    stays = alive(process)
    if stays:
        os.kill(process, signal.SIGKILL)
    assert not stays


@pytest.mark.slow
def test_a_judged_rung_that_closes_its_pipes_has_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = verdict_of(CLOSES, tmp_path / "closes.py", monkeypatch)
    assert report.verdict == "failed" and "Traceback" not in report.reason + capfd.readouterr().err


PROBLEM = ROOT / "tests" / "problem"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("import os\nos._exit(0)\n", "ended the process with exit code 0"),
        ("import os\nos.abort()\n", "ended the process by SIGABRT"),
        ("import sys\nsys.exit(0)\n", "reference.py fails: SystemExit"),
        ("def ref_kernel(data):\n    raise SystemExit(0)\n", "ref_kernel fails: SystemExit"),
        ("import sys\nsys.stdout.close()\nsys.stderr.close()\nimport os\nos._exit(0)\n", "ended the process"),
    ],
)
def test_a_problem_that_ends_the_process_has_no_verdict(tmp_path: Path, added: str, message: str) -> None:
    shutil.copytree(PROBLEM / "row_scale", tmp_path / "problem" / "row_scale")
    shutil.copy(PROBLEM / "common.py", tmp_path / "problem")
    with (tmp_path / "problem" / "row_scale" / "reference.py").open("a") as file:
        file.write(f"\n{added}")
    honest = str(PROBLEM / "submissions" / "honest.py")
    words = ("check", "--problem", str(tmp_path / "problem" / "row_scale"), honest, "--device", "emulator")
    assert message in refused(*words, "--quick")


def test_a_task_of_a_million_tests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task.yml").write_text("tests:\n" + "- {seed: 1}\n" * 100_000)
    with pytest.raises(RungError, match="too many for its kind"):
        submission(tmp_path, PROBLEM / "submissions" / "honest.py")


def test_standard_error_is_itself_again_after_two_threads() -> None:
    """Each had put back what it found: the second one found the first one's nowhere."""
    before, both = os.fstat(2), threading.Event()

    def first() -> None:
        with tokenizer._panics_unsaid():
            both.wait(0.5)

    def second() -> None:
        with tokenizer._panics_unsaid():
            both.set()
            one.join(5)

    one, two = threading.Thread(target=first), threading.Thread(target=second)
    one.start()
    two.start()
    one.join()
    two.join()
    assert os.path.samestat(os.fstat(2), before)
