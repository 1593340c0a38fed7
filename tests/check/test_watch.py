"""`rung check FILE --watch` judges again at each save; ^C leaves what is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rung.rungs import catalogue


def started(output: Path, *words: str) -> subprocess.Popen[bytes]:
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom rung.cli import main; main()"
    environment = {**os.environ}
    with output.open("wb") as file:
        command = [sys.executable, "-c", program, "check", "residual", *words, "--device", "emulator"]
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)


def until(holds: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_a_file_is_judged_again_at_each_save(tmp_path: Path) -> None:
    own, output = tmp_path / "own.cu", tmp_path / "output"
    source = catalogue.find("residual/1").source.replace('["f32", "f16", "bf16"]', '["f32"]')
    own.write_text(source.replace("+", "-"))
    process = started(output, str(own), "--watch")
    try:
        until(lambda: b"waiting for" in output.read_bytes())
        first = output.read_bytes()
        assert b"failed" in first
        own.write_text(source)
        until(lambda: output.read_bytes().count(b"waiting for") == 2)
        assert b" ok" in output.read_bytes()[len(first) :]
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()


@pytest.mark.slow
def test_an_interrupted_check_tells_what_is_known(tmp_path: Path) -> None:
    own, output = tmp_path / "own.cu", tmp_path / "output"
    own.write_text(catalogue.find("residual/1").source)
    process = started(output, str(own), "--dtype", "f32", "--thorough")
    try:
        until(lambda: b"cases are right; now races" in output.read_bytes())
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert b"stopped" in output.read_bytes()
    finally:
        process.kill()
