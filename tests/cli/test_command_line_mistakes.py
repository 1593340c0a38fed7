"""Foreseeable mistakes: one sentence, a code that is not zero, no traceback; and what looks like one but is none."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rung import plugins
from rung.cli import VERBS
from rung.rungs import catalogue, identity
from rung.rungs.cuda import CudaRung
from verbs import rung

KERNEL = """/*---
idea   = "A test."
dtypes = ["f32"]
[[launch]]
kernel = "k"
grid   = "B * T"
block  = 64
---*/
#include "rung.cuh"
extern "C" __global__ void k(const Real* x, Real* out, int C) {
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        const float v = x[blockIdx.x * C + c];
        out[blockIdx.x * C + c] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
    }
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence that ends the command."""
    assert rung(*words) == 2
    captured = capsys.readouterr()
    told = [line for line in captured.err.splitlines() if "compiled for this processor" not in line]  # with empty caches
    assert captured.out == "" and len(told) == 1 and told[0].startswith("rung: ")
    return captured.err


def test_the_verbs_fit_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert rung("--help") == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_check_of_what_is_missing_where_nothing_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "residual/01_naive", "--dtype", "f32", "--device", "emulator", "-o", str(tmp_path / "rows.jsonl")]
    assert rung(*words, "--quick") == 0
    capsys.readouterr()
    assert rung(*words, "--missing", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["results"] == [] and "nothing is left to check" in captured.err


@pytest.mark.parametrize("name", ["mine.cu", "folder/mine.cuh", "../mine.py"])
def test_a_file_alone_that_is_not_there_is_no_operation(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "check", name)
    assert "there is no file" in message and name in message


@pytest.mark.parametrize("more", [["--csv", "all.csv"], ["--json"], ["--compare", "A", "B"]])
def test_published_results_are_not_printed_as_well(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "results", "--publish", str(tmp_path), *more)
    assert "--publish" in message and more[0] in message and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (b"", "is empty"),
        (b"int nothing;\n", "has no header"),
        (KERNEL.replace("---*/", "").encode(), "begins a header that does not end"),
        (b"// a licence\n" + KERNEL.encode(), "too far down"),
        (b"int nothing;\n/*------- a part ------*/\nint more;\n/*--- another ---*/\n", "has no header"),
        (KERNEL.replace('"f32"]', "f32]").encode(), "not TOML: Invalid value, at line 3, column 11"),
        (KERNEL.replace("A test", "Caf\xe9").encode("latin-1"), "line 2: this is not UTF-8"),
        (KERNEL.replace("[[launch]]", '[constants]\nw = "c"\n[[launch]]').encode(), "constants.w is no operand"),
    ],
)
def test_a_file_that_is_no_rung_says_why(
    content: bytes, messages: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.cu"
    path.write_bytes(content)
    message = refused(capsys, "check", "gelu", str(path))
    assert messages in message and "mine.cu" in message


@pytest.mark.parametrize(
    ("facts", "messages"),
    [
        ("TUNE = [128]", "tune is not a table"),
        ('TUNE = {"BLOCK": 1.5}', "tune.BLOCK is not a list of whole numbers"),
        ('BUFFERS = {"tmp": ["B"]}', "buffers.tmp is not a table"),
        ('BUFFERS = {"tmp": {"shape": ["B"], "kept": True}}', "buffers.tmp has an unknown key 'kept'"),
    ],
)
def test_a_python_file_with_facts_of_another_form_says_which(
    facts: str, messages: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f'"""An idea."""\n{facts}\ndef run(x, out): ...\n')
    assert messages in refused(capsys, "check", "gelu", str(path))


def test_a_folder_is_not_mistaken_for_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.cu").mkdir()
    assert "is a folder" in refused(capsys, "check", "gelu", str(tmp_path / "mine.cu"))


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_another_editors_file_is_the_same_rung(start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_bytes(start + KERNEL.replace("\n", "\r\n").encode())
    found = catalogue.rung_from_file(catalogue.operation("gelu"), path)
    assert isinstance(found, CudaRung) and found.source == KERNEL


def test_cases_and_tunables_that_do_not_exist_are_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "gelu has no case 'none'; it has 'one'" in refused(capsys, "check", "gelu", "--case", "none")
    assert "no ladder has a case 'none'" in refused(capsys, "check", "--case", "none")
    assert "gelu/01_naive has no tunable 'X'; it has BLOCK" in refused(capsys, "check", "gelu", "--tune", "X=1")


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000, "1_0", "+1", "--1"])
@pytest.mark.parametrize(
    "words",
    [
        ("new", "gelu/{}", "mine"),
        ("show", "gelu/{}"),
        ("check", "gelu/{}"),
        ("check", "gelu", "--tune", "BLOCK={}"),
        ("export", "gelu/{}", "--to", "torch"),
        ("results", "--rung", "gelu/{}"),
        ("inspect", "gelu/1", "--tune", "BLOCK={}"),
        ("sweep", "gelu/1", "--tune", "BLOCK=64,{}"),
        ("sweep", "gelu/1", "--shape", "B=1,T=4,C={}"),
        ("sweep", "gelu/1", "--shard", "{}/4", "--measure", "emulator"),
        ("generate", "Once", "--stop-token", "{0}{0}"),
    ],
)
def test_only_ascii_digits_are_a_number(words: tuple[str, ...], number: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, *(word.format(number) for word in words))


def test_what_is_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("sweep", "inspect", "bench"):
        message = refused(capsys, verb, "gelu/1", "--shape", "B=1,T=4,C=8,B=2")
        assert "gives B twice" in message
    assert "gives BLOCK twice" in refused(capsys, "check", "gelu", "--tune", "BLOCK=64", "--tune", "BLOCK=32")
    assert "gives BLOCK twice" in refused(capsys, "sweep", "gelu/1", "--tune", "BLOCK=64", "--tune", "BLOCK=32")


def test_rungs_without_the_tunable_are_skipped_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("check", "gelu", "--tune", "num_warps=2", "--quick", "--dtype", "f32", "-j", "1") == 0
    lines = map(str.split, capsys.readouterr().out.splitlines())
    verdicts = {words[1]: words[0] for words in lines if len(words) > 1 and words[1].startswith("gelu/")}
    assert verdicts.pop("gelu/05_triton") == "ok" and {*verdicts.values()} == {"skipped"} and len(verdicts) > 3


@pytest.mark.slow
def test_a_bind_that_no_parameter_has_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace("[[launch]]", '[bind]\ninp = "x"\n[[launch]]'))
    assert rung("check", "gelu", str(path), "--quick") == 1
    assert "bind.inp is no kernel parameter; there are x, out, C" in capsys.readouterr().out


def test_a_new_kernel_claims_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for original in ("gelu/1", "gelu/5"):
        assert rung("new", original, "mine") == 0
    assert "exists already" in (capsys.readouterr().out and refused(capsys, "new", "gelu", "mine.cu"))
    for name in ("mine.cu", "mine.py"):
        copy = catalogue.rung_from_file(catalogue.operation("gelu"), Path(name))
        assert copy.found == "" and copy.parent.startswith("gelu/")


def test_a_library_has_no_rung_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no number and names no parent" in refused(capsys, "show", "gelu/torch", "--diff")


def test_a_reader_that_leaves_early_is_no_failure() -> None:
    command = f"{sys.executable} -m rung show layernorm/8 | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["/*---", "0"] and done.stderr == ""


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "rung", "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr == "rung: No space left on device.\n"


def test_the_least_gpu_a_rung_is_for_is_no_part_of_what_is_measured(tmp_path: Path) -> None:
    def digest(needs: str) -> str:
        path = tmp_path / "mine.cu"
        path.write_text(KERNEL.replace("[[launch]]", f"{needs}[[launch]]"))
        return identity.text(catalogue.rung_from_file(catalogue.operation("gelu"), path))

    assert digest("") == digest('needs  = "sm >= 80"\n') == digest('needs = ["C % 4 == 0", "sm >= 80"]\n')


@pytest.mark.parametrize("spec", ["matmul/wmma_tf32", "attention/wmma_tf32"])
def test_tf32_is_refused_where_tensor_cores_lack_it(spec: str) -> None:
    from rung.profile.inspect import inspect

    (row,) = inspect([catalogue.find(spec)], ["sm_75"], mix=False)
    assert row.state == "skipped" and "sm >= 80" in row.reason


def _hear_ctrl_c() -> None:
    """Whoever runs the tests in the background may have told its children to ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
def test_an_interrupt_ends_every_process_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rung", "check", "attention", "-j", "2"]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_ctrl_c,
    )
    compiling = time.monotonic() + 60
    while not any((tmp_path / "cache").rglob("*.*")) and time.monotonic() < compiling:
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    out, err = running.communicate(timeout=10)
    assert (running.returncode, err.splitlines()[-1:]) == (130, ["rung: interrupted."])
    assert not out or "stopped before the other" in out  # what it knew by then


def test_a_ladder_tells_the_names_that_parameters_are_bound_by(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("list", "layernorm") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for operand in (["out", *"BxTxC", "out", "real"], ["mean", *"BxT", "out", "f32", "optional"]):
        assert operand in lines
    assert lines[-1][:2] == ["scalars:", "eps"]


def test_the_list_of_studies_is_json_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("study", "--json") == 0
    assert {"study", "question"} == set(json.loads(capsys.readouterr().out)[0])


def test_the_help_has_five_groups_and_each_verb_once(capsys: pytest.CaptureFixture[str]) -> None:
    rung("--help")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.isalpha()] == ["learn", "kernels", "programs", "models", "measure"]
    shown = [line.split()[0] for line in lines if line.startswith("  ") and line[2] not in " -" and "rung" not in line[:6]]
    assert sorted(shown) == sorted([*VERBS, *plugins.entries(plugins.COMMANDS)])
