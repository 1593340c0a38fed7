"""A command that is silent for a while tells on standard error what it does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rung import progress


def test_what_is_done_is_told_after_a_while_even_if_a_call_holds_pythons_lock(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "APART", 0.6)
    asleep = ctypes.PyDLL(None).usleep  # unlike CDLL's, its calls hold the lock
    with progress.telling("reading"):
        asleep(900_000)
        progress.doing("computing\x1b[2J")
        asleep(900_000)
        progress.doing("")
        asleep(900_000)
    told = re.findall(r"(\S+), for \d s so far", capfd.readouterr().err)
    assert told[:1] == ["reading"] and told[-1] == "computing?[2J"
    with progress.telling("short"):
        progress.stage("a stage")
    progress.stage("after the end")
    assert capfd.readouterr().err == "  a stage\n"


def test_a_check_on_a_terminal_is_never_silent(tmp_path: Path) -> None:
    kernel = tmp_path / "scale.cu"
    kernel.write_text(
        'extern "C" __global__ void gelu(const float* x, float* out, int n) {\n'
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) out[i] = 0.5f * x[i] * (1.0f + tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));\n}\n"
    )
    code, text, silence = _on_a_terminal("check", "gelu", str(kernel), "--device", "emulator", "--quick")
    assert code == 0 and silence < 2.0 and b"gelu/scale  f32" in text
    assert text.rfind(b"\x1b[K") > text.rfind(b"so far") or b"so far" not in text


def _on_a_terminal(*words: str) -> tuple[int, bytes, float]:
    """The exit code, what the terminal gets, and the longest silence in seconds."""
    near, far = pty.openpty()
    command, environment = [sys.executable, "-m", "rung", *words], {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env=environment) as process:
        os.close(far)
        last, silences, text = time.monotonic(), [0.0], b""
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(near, 1 << 16):
                silences.append(time.monotonic() - last)
                last, text = time.monotonic(), text + data
    os.close(near)
    return process.returncode, text, max(silences)
