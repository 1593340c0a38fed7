"""Bugs of well-known CUDA code whose mend is public: what gpuless says of the code before the commit, and behind it.

    python tools/known_bugs.py [--repositories DIR] [NAME ...] > verdicts.jsonl

Each is fetched at the commit and at its parent (by git; from DIR/OWNER+NAME where that is there), compiled by nvcc with
a driver of ours (tools/known_bugs/), and run. Nothing of these projects is kept here.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "known_bugs"
_CUB = ("cub", "thrust", "libcudacxx/include")
_KALDI, _MTN, _POPSIFT = ("src",), ("-DMTN",), ("src/popsift/common",)


@dataclass(frozen=True)
class Bug:
    """A commit that mends a bug, and how its code is driven."""

    name: str
    repository: str  # OWNER/NAME
    commit: str
    driver: str
    folders: tuple[str, ...]  # fetched, and searched for headers
    kinds: tuple[str, ...]  # of faults that tell the bug
    file: str  # one of a fault's places is there
    options: tuple[str, ...] = ()


BUGS = (
    Bug("cub-2699", "NVIDIA/cccl", "cb8707cbba", "cub_raking", _CUB, ("race",), "block_reduce_raking.cuh"),
    Bug("cub-2739", "NVIDIA/cccl", "deb9010735", "cub_scan", _CUB, ("unwritten",), "thread_load.cuh"),
    Bug("cub-5456", "NVIDIA/cccl", "7b3d8c5888", "cub_merge_sort", _CUB, ("race", "async"), "agent_merge_sort.cuh"),
    Bug("kaldi-1103-mtn", "kaldi-asr/kaldi", "e5dacb6b8", "kaldi_diag", _KALDI, ("bounds",), "cu-kernels.cu", _MTN),
    Bug("kaldi-1103-mn", "kaldi-asr/kaldi", "e5dacb6b8", "kaldi_diag", _KALDI, ("bounds",), "cu-kernels.cu", ("-DMN",)),
    Bug("kaldi-bc13196", "kaldi-asr/kaldi", "bc13196e7", "kaldi_diag", _KALDI, ("barrier",), "cu-kernels.cu"),
    Bug("popsift-82", "alicevision/popsift", "c238a92", "popsift_prefix", _POPSIFT, ("race",), "excl_blk_prefix_sum.h"),
)  # fmt: skip


def clone(bug: Bug, repositories: Path) -> Path:
    """A repository with the commit and its parent."""
    path = repositories / bug.repository.replace("/", "+")
    if (path / "repo").is_dir():  # a copy that is there
        return path / "repo"
    if not path.is_dir():
        url = f"https://github.com/{bug.repository}"
        subprocess.run(["git", "clone", "--quiet", "--filter=blob:none", "--no-checkout", url, str(path)], check=True)
    return path


def extract(repository: Path, revision: str, folders: tuple[str, ...], target: Path) -> None:
    words = ["git", "-C", str(repository), "archive", revision, *folders]
    with tarfile.open(fileobj=io.BytesIO(subprocess.run(words, check=True, capture_output=True).stdout)) as archive:
        archive.extractall(target, filter="data")


def verdict(bug: Bug, revision: str, repository: Path) -> dict[str, Any]:
    """`told` with kind and file, `silent`, `other` faults, or why it does not build."""
    with tempfile.TemporaryDirectory(prefix="known-bugs-") as folder:
        extract(repository, revision, bug.folders, Path(folder))
        include = [f"-I{folder}/{name}" for name in bug.folders] + [f"-I{HERE / 'include'}"]
        words = ["--json", "--races", "-std=c++17", *include, *bug.options, str(HERE / f"{bug.driver}.cu")]
        done = subprocess.run([sys.executable, "-m", "gpuless", "run", *words], capture_output=True, text=True)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = {"verdict": "refused"}
    if document["verdict"] == "refused":
        said = (done.stdout + done.stderr).splitlines()
        errors = [line for line in said if "error" in line] or said[-1:]
        return {"verdict": "does not build", "text": " ".join(errors)[:300].replace(folder, "")}
    findings = document["findings"]
    for one in findings:
        places = [one.get("place", {}), *one.get("related", [])]
        if one["kind"] in bug.kinds and any(str(place.get("file", "")).endswith(bug.file) for place in places):
            return {"verdict": "told", "kind": one["kind"], "text": one["text"].replace(folder, "")}
    if findings:
        return {"verdict": "other", "kind": findings[0]["kind"], "text": findings[0]["text"].replace(folder, "")}
    return {"verdict": "silent"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=Path, default=Path("build/repositories"))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for bug in BUGS:
        if options.names and bug.name not in options.names:
            continue
        repository = clone(bug, options.repositories)
        both = {when: verdict(bug, f"{bug.commit}{of}", repository) for when, of in (("before", "^"), ("after", ""))}
        print(json.dumps({"bug": bug.name, "commit": bug.commit, **both}), flush=True)


if __name__ == "__main__":
    main()
