"""Attention over MPI ranks, more of them than cores, against float64; and what becomes of a job that loses a rank."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from rung.errors import RungError
from rung_reproduce.parallel import data, launch
from rung_reproduce.parallel.mpi_rank import Case, Job
from suite import PACKAGES

pytestmark = pytest.mark.skipif(launch.available() is not None, reason=str(launch.available()))

SIZES = (1, 7, 64, 257)
HEADS, D = 3, 16
RANKS_AND_SPLITS = [(1, "zigzag"), (2, "zigzag"), (3, "contiguous"), (4, "zigzag")]


@pytest.fixture(autouse=True)
def packages_on_the_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")])))

def launch_job(tmp_path, ranks, **fields):
    results = tmp_path / "results.json"
    Job(results=str(results), output_folder=str(tmp_path), heads=HEADS, d=D, **fields).write(tmp_path / "job.json")
    launch.run(["-m", "rung_reproduce.parallel.mpi_rank", str(tmp_path / "job.json")], ranks, limit=60)
    return json.loads(results.read_text())


@pytest.mark.parametrize(("ranks", "placement"), RANKS_AND_SPLITS)
def test_every_split_gives_what_float64_gives(tmp_path, ranks, placement):
    cases = [Case(n, causal, "ring", placement) for n in SIZES for causal in (True, False)]
    cases += [Case(65, True, "heads"), Case(33, False, "heads")]
    rows = launch_job(tmp_path, ranks, cases=cases, seed=ranks, check=False)
    assert len(rows) == len(cases)
    for case in cases:
        kind = "causal" if case.causal else "full"
        with np.load(tmp_path / f"{case.method}_n{case.n}_{kind}_{case.placement}_r{ranks}.npz") as file:
            out, lse = file["out"], file["lse"]
        right, right_lse = data.attention(data.generate(case.n, D, HEADS, ranks), causal=case.causal)
        np.testing.assert_allclose(out, right, rtol=1.3e-6, atol=1e-5, err_msg=str(case))
        np.testing.assert_allclose(lse, right_lse, rtol=1.3e-6, atol=1e-5, err_msg=str(case))
        assert data.error(out, right) < data.CAP


DYING = """
import os, signal, sys, time
from rung_reproduce.parallel import local, mpi

ranks = mpi.Ranks(mpi.engine().COMM_WORLD, patience=2)
attend, seen = local.attend, []

def attend_and_die(*arguments, **options):
    seen.append(1)
    if ranks.rank == 1 and len(seen) == 2:
        {death}
    attend(*arguments, **options)

local.attend = attend_and_die
with mpi.report_once(ranks.comm):
    from rung_reproduce.parallel import data
    qkv = data.generate(64, 16, 1, 0) if ranks.rank == 0 else None
    mpi.sequence_split(ranks, qkv, (1, 64, 16), causal=True, kind="zigzag", threads=1)
"""


@pytest.mark.parametrize(
    ("death", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"rank 1 of 3 died of signal 9 \(SIGKILL\)|waited 2 s"),
        ("time.sleep(100)", "waited 2 s for .* in vain; another rank has died or hangs"),
        ("raise ValueError('no more')", "rank 1 of 3: ValueError.*no more"),
    ],
    ids=["killed", "hangs", "raises"],
)
def test_a_lost_rank_ends_the_job_with_one_sentence(tmp_path, death, message):
    program = tmp_path / "dying.py"
    program.write_text(DYING.format(death=death))
    start = time.monotonic()
    with pytest.raises(RungError, match=message) as caught:
        launch.run([str(program)], 3, limit=40)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 30


def test_a_job_without_end_is_stopped(tmp_path):
    program = tmp_path / "endless.py"
    program.write_text("import time\nfrom mpi4py import MPI\ntime.sleep(100)\n")
    with pytest.raises(RungError, match="did not end within 3 s"):
        launch.run([str(program)], 2, limit=3)


def test_the_launched_python_is_this_one(tmp_path):
    program = tmp_path / "which.py"
    program.write_text("import sys\nprint(sys.executable)\n")
    assert launch.run([str(program)], 1, limit=30).split() == [sys.executable]


def test_an_mpiexec_of_another_mpi_is_reported(tmp_path):
    """Its processes do not see each other, and each takes itself for the whole job."""
    Job(cases=[Case(4)]).write(tmp_path / "job.json")
    done = subprocess.run(
        [sys.executable, "-m", "rung_reproduce.parallel.mpi_rank", str(tmp_path / "job.json")],
        env={**os.environ, "RUNG_RANKS": "3"},
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode != 0
    assert "mpiexec started 3 processes, but each sees 1" in done.stderr
