"""The doctor tests components, reports what is missing, and what to do."""

import json
from pathlib import Path

import pytest
import torch

from gpuless.compile import headers
from rung import doctor
from verbs import rung


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))


def rung_doctor(*words: str) -> int:

    return rung("doctor", *words)


def test_a_sound_machine_has_nothing_broken(capsys: pytest.CaptureFixture[str]) -> None:
    code = rung_doctor("--json")
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    broken = {name: f["detail"] for name, f in findings.items() if f["state"] == "broken"}
    assert (code, broken) == (0, {})
    tried = ("torch", "NVRTC", *headers.NEEDED, "g++", "CPU emulator", "a Triton kernel's machine code", "cache")
    for name in tried:
        assert findings[name]["state"] == "works", findings[name]
    assert all(f["mend"] for f in findings.values() if f["state"] != "works")
    if not torch.cuda.is_available():
        assert findings["GPU"]["state"] == "missing"


def test_headers_that_do_not_compile_are_broken_each_with_a_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cuda_fp16.h").write_text("")
    monkeypatch.setenv(headers.OVERRIDE, str(tmp_path))
    found = {f.name: f for f in doctor._compiler()}
    assert found["cuda_fp16.h"].state == "works"
    assert found["mma.h"].state == "broken"
    assert 'cannot open source file "mma.h"' in found["mma.h"].detail
    assert headers.OVERRIDE in found["mma.h"].mend


def test_a_cache_that_cannot_be_written_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    (finding,) = doctor._cache()
    assert finding.state == "broken"
    assert "set RUNG_CACHE" in finding.mend


def test_without_gpp_a_machine_without_a_gpu_cannot_run_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("RUNG_CXX", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (finding,) = doctor._emulator()
    assert (finding.name, finding.state) == ("g++", "broken")
    assert "install it" in finding.detail


def test_what_nobody_foresaw_is_reported_and_the_rest_still_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(doctor, "_compiler", fails)
    found = list(doctor.examine())
    surprise = next(f for f in found if f.name == "fails")
    assert (surprise.state, surprise.detail) == ("broken", "surprise")
    assert found[-1].name == "cache"


def test_a_broken_finding_makes_the_verb_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = doctor.Finding("NVRTC", "broken", "not there", "install it.")
    monkeypatch.setattr(doctor, "examine", lambda: iter([found]))
    assert rung_doctor() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "broken: NVRTC."
