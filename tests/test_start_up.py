"""Verbs that only read text answer at once: torch, whose import takes seconds, stays out of their process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
from rung.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    heavy = {"torch", "triton", "transformers", "cuda.core"} & set(sys.modules)
    print(sorted(heavy), end.code, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["list"],
        ["list", "attention", "--json"],
        ["show", "matmul/5", "--diff"],
        ["show", "softmax/9", "--json"],
        ["results", "--op", "matmul"],
        ["study"],
        ["new", "layernorm", "my_idea.cu"],
        ["bench", "--help"],
        ["generate", "--help"],
    ],
    ids=" ".join,
)
def test_reading_verbs_do_without_torch(words: list[str], tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    command = [sys.executable, "-c", RUN, *words]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[] 0", done.stderr


def test_text_on_a_cpu_does_without_rungs_and_what_compiles_them() -> None:
    program = "import sys, rung; rung.load('inner').generate('a', max_new_tokens=2); "
    program += "print(sorted({'rung.rungs.catalogue', 'rung.operation', 'rung.cuda.nvrtc', 'triton'} & set(sys.modules)))"
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_what_is_imported_later_is_the_module_itself() -> None:
    import torch
    import torch.nn.functional

    from rung import lazy

    assert lazy.torch.float32 is torch.float32
    assert lazy.F.gelu is torch.nn.functional.gelu
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lazy.torch.nothing  # noqa: B018
