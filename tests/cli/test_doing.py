"""A command that is silent for a while tells on standard error what it does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from rung.cli import console


def test_a_command_that_is_silent_for_a_while_tells_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "SILENCE", 0.6)

    @console.telling("reading")
    def command(seconds: float) -> float:
        time.sleep(seconds)
        console.doing("computing")
        for _ in range(2):
            subprocess.run([sys.executable, "-c", "pass"], check=True)  # a call that a signal interrupts
        time.sleep(seconds)
        return seconds

    before = signal.getsignal(signal.SIGALRM)
    assert command(1.3) == 1.3
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(",")[0].strip() for line in lines] == ["reading", "computing"]
    assert command(0.01) == 0.01 and not capfd.readouterr().err
    assert signal.getsignal(signal.SIGALRM) == before and signal.getitimer(signal.ITIMER_REAL)[0] == 0
