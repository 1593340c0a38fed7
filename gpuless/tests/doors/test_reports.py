"""Reports of `gpuless run`, read by the tools that they are for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from gpuless.base.errors import UserError
from gpuless.doors import findings, reports

RACY = """__global__ void turn(float* x, int n)
{
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    if (n > 1000) {
        for (int k = 0; k < n; k++) atomicAdd(x + k, 1.0f);
        return;
    }
    x[threadIdx.x] = s[threadIdx.x ^ 1];
}
int main()
{
    float* x;
    cudaMalloc(&x, 256), cudaMemset(x, 0, 256);
    turn<<<1, 64>>>(x, 64);
    cudaDeviceSynchronize();
}
"""
RACE = {
    "kind": "race",
    "text": "a, b: 100%\nc",
    "place": {"file": "a.cu", "line": 3, "kernel": "turn"},
    "related": [{"file": "a.cu", "line": 4}],
    "launched": "main.cu:9",
}


def ran(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "turn.cu").write_text(RACY)
    command = [sys.executable, "-m", "gpuless", "run", "--quiet", *options, "turn.cu"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | environment)


@pytest.mark.slow
def test_reports_tell_the_same_fault(tmp_path: Path) -> None:
    done = ran(
        tmp_path,
        "--sarif",
        "o.sarif",
        "--junit",
        "o.xml",
        "--lcov",
        "o.info",
        "--cobertura",
        "c.xml",
        GITHUB_ACTIONS="true",
    )
    assert done.returncode == 102, done.stderr
    log = json.loads((tmp_path / "o.sarif").read_text())
    result = log["runs"][0]["results"][0]
    lines = [
        place["physicalLocation"]["region"]["startLine"]
        for place in (*result["locations"], *result["relatedLocations"])
    ]
    assert result["ruleId"] == "race" and sorted(lines) == [4, 9, 15]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {
        "uri": "turn.cu",
        "uriBaseId": "%SRCROOT%",
    }
    suite = xml.parse(tmp_path / "o.xml").find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures")) == ("2", "1")
    told = (tmp_path / "o.info").read_text()
    assert "DA:4,64" in told and "DA:6,0" in told and "DA:9,64" in told and "FNDA:1,turn" in told
    # The compiler has made a conditional exit of the `if`, and its loop was not reached.
    assert {"BRDA:10,0,0,64", "BRDA:10,0,1,0", "BRDA:6,0,0,-"} <= set(told.splitlines())
    hits = {row.get("number"): row.get("hits") for row in xml.parse(tmp_path / "c.xml").iter("line")}
    assert (hits["4"], hits["6"]) == ("64", "0")
    assert any(line.startswith("::error file=turn.cu,line=9,") for line in done.stdout.splitlines())
    if genhtml := shutil.which("genhtml"):
        html = subprocess.run([genhtml, "o.info", "-o", "html"], cwd=tmp_path, capture_output=True, text=True)
        assert html.returncode == 0 and (tmp_path / "html/index.html").exists(), html.stderr


@pytest.mark.slow
def test_suppressed_faults_leave_the_exit_code_alone(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text('[[suppress]]\nfile = "*turn.cu"\nreason = "mended in 2.0"\n')
    done = ran(tmp_path, "--suppress", "known.toml", "--sarif", "o.sarif")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "o.sarif").read_text())["runs"][0]["results"]
    assert results and {one["suppressions"][0]["justification"] for one in results} == {"mended in 2.0"}
    (tmp_path / "known.toml").write_text('[[suppress]]\nkind = "bounds"\nreason = "mended in 2.0"\n')
    assert ran(tmp_path, "--suppress", "known.toml").returncode == 102


def test_sarif_is_what_its_readers_expect() -> None:
    sarif = pytest.importorskip("sarif_pydantic")
    log = sarif.Sarif.model_validate(reports.sarif(["a.cu"], 102, [RACE], [(RACE, findings.Suppression("known"))]))
    (run,) = log.runs
    assert [one.rule_id for one in run.results] == ["race", "race"]
    assert [len(one.related_locations) for one in run.results] == [2, 2]


def test_junit_is_read_by_its_parser() -> None:
    junitparser = pytest.importorskip("junitparser")
    kernels = [{"kernel": "turn", "seconds": 0.5}, {"kernel": "turn", "seconds": 0.25}]
    (suite,) = junitparser.JUnitXml.fromstring(reports.junit(["a.cu"], [RACE], kernels).encode())
    assert [(case.name, case.time, len(case.result)) for case in suite] == [("turn", 0.75, 1), ("a.cu", 0.0, 0)]


def test_annotations_escape_what_github_reads() -> None:
    told = reports.annotation(RACE)
    assert told.startswith("::error file=a.cu,line=3,title=gpuless%3A race::a, b: 100%25%0Ac")
    assert told.endswith("main.cu:9") and "\n" not in told


@pytest.mark.parametrize(
    "text, told", [('kind = "race"', "no reason"), ('reason = "x"\nkinds = "y"', "unknown keys: kinds")]
)
def test_an_entry_that_suppresses_says_why(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "known.toml").write_text(f"[[suppress]]\n{text}\n")
    with pytest.raises(UserError, match=told):
        findings.read_suppressions(tmp_path / "known.toml")


@pytest.mark.parametrize("entry", [{"line": 4}, {"file": "main.cu"}, {"kernel": "tu*"}, {"text": "*100%*"}])
def test_an_entry_fits_any_place_of_a_fault(entry: dict[str, object]) -> None:
    assert findings.Suppression("why", **entry).fits(RACE)  # type: ignore[arg-type]
    assert not findings.Suppression("why", kind="bounds", **entry).fits(RACE)  # type: ignore[arg-type]
