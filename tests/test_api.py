"""The verbs from Python: rows with types, tables for people, and packages that can be called."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rung
from rung import RungError
from rung.show.verb_tables import Table

BROKEN = Path(__file__).parent / "broken"


def test_a_check_gives_reports_and_shows_a_table() -> None:
    found = rung.check("gelu", dtypes="f32", quick=True, device="emulator", jobs=1)
    assert found.ok and [r.rung for r in found][:2] == ["gelu/01_naive", "gelu/02_vector"]
    assert all(r.verdict == "ok" and r.element <= 1 for r in found)
    text = str(found)
    assert text.splitlines()[0].split() == ["rung", "dtype", "cases", "of", "bound", "verdict"]
    assert len(text.splitlines()) == len(found) + 1
    assert len(found[:2]) == 2 and "gelu/01_naive" in found[:2]._repr_html_()


@pytest.mark.slow
def test_a_file_is_checked_in_a_process_of_its_own() -> None:
    found = rung.check(BROKEN / "exits.cu", operation="residual", device="emulator")
    assert not found.ok and found[0].verdict == "failed" and "exit" in found[0].reason
    with pytest.raises(RungError, match="name the operation"):
        rung.check(BROKEN / "exits.cu")
    with pytest.raises(RungError, match="leave it out"):
        rung.check("gelu/2", operation="gelu")


def test_a_file_of_a_ladder_needs_no_operation() -> None:
    from rung.rungs import catalogue

    path = catalogue.find("gelu/2").path
    assert path is not None
    assert rung.inspect(path, archs="sm_80")[0].rung == "gelu/02_vector"


def test_an_inspection_gives_rows_and_shows_a_table() -> None:
    found = rung.inspect("gelu/1", archs=["sm_80", "sm_90"])
    assert [row.arch for row in found] == ["sm_80", "sm_90"]
    assert all(row.registers and row.occupancy == 1.0 for row in found)
    assert found.table().columns[:2] == ("rung", "kernel")
    assert str(found[0].registers) in str(found)


def test_a_bench_without_a_gpu_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RungError, match="no CUDA device"):
        rung.bench("gelu/1")


@pytest.mark.gpu
def test_a_bench_gives_rows_with_times() -> None:
    found = rung.bench("gelu/2", shapes="b4t64", dtypes="f32", seconds=0.1)
    assert {row.rung for row in found} == {"gelu/02_vector", "gelu/torch"}
    assert all(row.cold_us and row.shape == "b4t64" for row in found)


def test_packages_are_verbs_too_whichever_is_imported_first() -> None:
    program = (
        "import rung.check.judge as judge, rung\n"
        "from rung.bench import race\n"
        "assert rung.check.judge is judge and rung.bench.race is race\n"
        "assert callable(rung.check) and callable(rung.bench)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    assert list(inspect.signature(rung.check).parameters)[:2] == ["what", "operation"]
    assert set(rung.__all__) <= set(dir(rung))


def test_importing_rung_imports_no_torch() -> None:
    program = "import rung, sys; rung.RungError; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})


def test_a_table_in_a_notebook_escapes_what_it_shows() -> None:
    made = Table(("name", "n", "empty"), [("<b>", 1, "")], ("n",))._repr_html_()
    assert "&lt;b&gt;" in made and "empty" not in made and 'text-align:right">1<' in made
