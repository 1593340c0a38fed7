"""Problems in GPU MODE's format: an honest submission is right, and those that cheat are refused for the right reason."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rung import RungError
from rung.check.judge import device_named, report_on, requests
from rung.check.report import CheckRequest, Report
from rung.exchange import problem

FOLDER = Path(__file__).parents[1] / "problem"
HONEST = (FOLDER / "submissions" / "honest.py").read_text()
LAUNCH = "    scale_rows[(x.shape[0],)](x, scale, out, x.shape[1], shift, BLOCK=triton.next_power_of_2(x.shape[1]))\n"


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    before = os.environ.get("RUNG_LADDERS")
    yield
    os.environ.pop("RUNG_LADDERS", None)
    if before is not None:
        os.environ["RUNG_LADDERS"] = before


@pytest.fixture
def verdict(tmp_path: Path) -> Callable[[str], Report]:
    def of_source(source: str) -> Report:
        path = tmp_path / "submission.py"
        path.write_text(source)
        rung = problem.submission(FOLDER / "row_scale", path)
        (task,) = requests([rung], CheckRequest(device=device_named(None)))
        return report_on(task)

    return of_source


@pytest.mark.slow
def test_an_honest_submission_is_right(verdict: Callable[[str], Report]) -> None:
    report = verdict(HONEST)
    assert report.verdict == "ok", report.reason
    assert report.cases == 3 and report.runs > 300
    assert "check_implementation" in " ".join(report.notes)


def changed(old: str, new: str) -> str:
    assert old in HONEST
    return HONEST.replace(old, new)


REPLAY = changed(LAUNCH, LAUNCH.replace("    ", "    if x.data_ptr() in KEPT:\n        return KEPT[x.data_ptr()]\n    ", 1)
                 + "    KEPT[x.data_ptr()] = out\n") + "\n\nKEPT = {}\n"  # fmt: skip
PARTIAL = changed("inside = i < columns\n", "inside = (i < columns) & ((row < 4) | (i % 64 != 63))\n")
CHANGES = changed(LAUNCH, LAUNCH + "    x.copy_(out)\n")
LIBRARY = changed(LAUNCH, "    out = x * scale[:, None] + shift\n")
REFERENCE = changed(LAUNCH, "    import sys\n    sys.path.append(sys.path[-1].replace('beside', 'judge'))\n"
                    "    from reference import ref_kernel\n    out = ref_kernel(data)\n")  # fmt: skip
LAZY = changed("    return out\n", "    return out.as_subclass(Later)\n") + "\n\nclass Later(torch.Tensor):\n    pass\n"
PATCHES = changed(LAUNCH, "    torch.allclose = lambda *a, **k: True\n")
NEEDS = HONEST.replace(LAUNCH, "") + "\nNEEDS = ['test == 9']\nEMULATE = 'only there'\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(REPLAY, "mismatch", id="replays its first result"),
        pytest.param(PARTIAL, "mismatch", id="leaves a part out of large inputs"),
        pytest.param(CHANGES, "changed its input in0", id="changes its input"),
        pytest.param(LIBRARY, "aten::", id="calls the library"),
        pytest.param(REFERENCE, "aten::", id="calls the reference"),
        pytest.param(LAZY, "a Later, not a plain computed tensor", id="gives an object that computes later"),
        pytest.param(PATCHES, "mismatch", id="patches the comparison"),
        pytest.param(NEEDS, "mismatch", id="refuses the tests"),
    ],
)
def test_a_submission_that_cheats_is_refused(verdict: Callable[[str], Report], source: str, reason: str) -> None:
    report = verdict(source)
    assert report.verdict in ("failed", "calls the library", "not judged"), report
    assert reason in report.reason, report.reason


def test_an_output_that_is_handed_over_is_poisoned(tmp_path: Path) -> None:
    """The data's last tensor receives the result: a submission that leaves it unchanged is detected."""
    folder = tmp_path / "double_into"
    folder.mkdir()
    (folder / "task.yml").write_text('tests:\n  - {"size": 33, "seed": 1}\n')
    (folder / "reference.py").write_text(
        "import torch\n"
        "def generate_input(size, seed):\n"
        "    x = torch.randn(size, device='cuda')\n"
        "    return x, torch.empty_like(x)\n"
        "def ref_kernel(data):\n    data[1][...] = 2 * data[0]\n    return data[1]\n"
        "def check_implementation(data, output):\n"
        "    return '' if torch.equal(output, ref_kernel(data)) else 'mismatch'\n"
    )
    own = tmp_path / "mine.py"
    own.write_text("def custom_kernel(data):\n    return data[1]\n")
    rung = problem.submission(folder, own)
    assert [(o.name, o.role) for o in rung.operation.operands] == [("in0", "in"), ("out0", "out")]
    (task,) = requests([rung], CheckRequest(device=device_named(None)))
    report = report_on(task)
    assert report.verdict == "failed" and "never written" in report.reason


@pytest.mark.parametrize(
    ("text", "message"),
    [("def f(data): ...", "has no custom_kernel"), ("def custom_kernel(data): ...\ndef run(): ...", "defines run"),
     ("def custom_kernel(:", "no Python file")],
)  # fmt: skip
def test_what_is_no_submission_is_a_mistake(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(RungError, match=message):
        problem.submission(FOLDER / "row_scale", path)


def test_a_folder_without_a_task_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(RungError, match="cannot be read as a task"):
        problem.submission(tmp_path, FOLDER / "submissions" / "honest.py")


@pytest.mark.parametrize("task", ["a: " + "[" * 50_000, "a: &a [*a]\ntests: *a", "tests: [{seed: !!python/object:x.y 1}]"])
def test_a_hostile_task_is_a_sentence(tmp_path: Path, task: str) -> None:
    (tmp_path / "task.yml").write_text(task)
    with pytest.raises(RungError, match="cannot be read as a task"):
        problem.submission(tmp_path, FOLDER / "submissions" / "honest.py")


def test_a_problem_of_pipes_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "task.yml")
    with pytest.raises(RungError, match="is a pipe or a device"):
        problem.submission(tmp_path, FOLDER / "submissions" / "honest.py")


def test_a_long_complaint_of_a_problem_is_cut(tmp_path: Path) -> None:
    (tmp_path / "task.yml").write_text("tests: [{seed: 1}]")
    (tmp_path / "reference.py").write_text("raise ValueError('x' * 100_000)")
    with pytest.raises(RungError, match=r"reference\.py fails: ValueError: x") as caught:
        problem.submission(tmp_path, FOLDER / "submissions" / "honest.py")
    assert len(str(caught.value)) < 500
