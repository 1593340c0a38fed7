"""Bugs of well-known CUDA code whose mend is public: what gpuless says of the code before the commit, and behind it.

    python tools/known_bugs.py [--repositories DIR] [NAME ...] > verdicts.jsonl

Each is fetched at the commit and at its parent (by git; from DIR/OWNER+NAME where that is there), compiled by nvcc with
a driver of ours (tools/known_bugs/), and run. Of files that need more than is here, functions are cut out by their
names, with their lines. Nothing of these projects is kept here.
"""

from __future__ import annotations

import argparse
import io
import json
import re
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
_GGML = ("src/ggml-cuda", "src", "include")
_LOOSE = ("-Xcompiler=-ffunction-sections", "-Xlinker=--gc-sections")  # without the host's part


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
    cut: tuple[str, ...] = ()  # a file, and names of its functions: all that is taken of it, as cut.cuh


def _cut(name: str, repository: str, commit: str, driver: str, kind: str, path: str, *names: str) -> Bug:
    return Bug(name, repository, commit, driver, (path,), (kind,), Path(path).name, cut=(path, *names))


BUGS = (
    Bug("cub-2699", "NVIDIA/cccl", "cb8707cbba", "cub_raking", _CUB, ("race",), "block_reduce_raking.cuh"),
    Bug("cub-2739", "NVIDIA/cccl", "deb9010735", "cub_scan", _CUB, ("unwritten",), "thread_load.cuh"),
    Bug("cub-5456", "NVIDIA/cccl", "7b3d8c5888", "cub_merge_sort", _CUB, ("race", "async"), "agent_merge_sort.cuh"),
    Bug("kaldi-1103-mtn", "kaldi-asr/kaldi", "e5dacb6b8", "kaldi_diag", _KALDI, ("bounds",), "cu-kernels.cu", _MTN),
    Bug("kaldi-1103-mn", "kaldi-asr/kaldi", "e5dacb6b8", "kaldi_diag", _KALDI, ("bounds",), "cu-kernels.cu", ("-DMN",)),
    Bug("kaldi-bc13196", "kaldi-asr/kaldi", "bc13196e7", "kaldi_diag", _KALDI, ("barrier",), "cu-kernels.cu"),
    Bug("popsift-82", "alicevision/popsift", "c238a92", "popsift_prefix", _POPSIFT, ("race",), "excl_blk_prefix_sum.h"),
    _cut("apex-1798", "NVIDIA/apex", "a7de60e5", "apex_reduce", "race", "csrc/type_shim.h", "reduce_block_into_lanes"),
    _cut("apex-758826fc", "NVIDIA/apex", "758826fc", "apex_finite", "race",
         "apex/contrib/csrc/optimizers/fused_adam_cuda_kernel.cu", "strided_check_finite_cuda_kernel",
         "fused_strided_check_finite"),
    _cut("raft-2183", "rapidsai/raft", "9d56b0114", "raft_sum", "bounds", "cpp/include/raft/stats/detail/sum.cuh",
         "sumKernelRowMajor"),
    _cut("cudf-20588", "rapidsai/cudf", "129f51c2e7", "cudf_words", "race", "cpp/src/text/wordpiece_tokenize.cu",
         "find_words_kernel"),
    _cut("cudf-20804", "rapidsai/cudf", "fa9f27e258", "cudf_inflate", "race", "cpp/src/io/comp/gpuinflate.cu",
         "constexpr int max_bits...inflate_kernel"),
    _cut("cudf-20967", "rapidsai/cudf", "c8400b6a7ef", "cudf_prefixes", "race",
         "cpp/src/io/parquet/page_delta_decode.cu", "string_scan"),
    Bug("flashinfer-3529", "flashinfer-ai/flashinfer", "0b29eed26", "flashinfer_topk", ("include",), ("race",),
        "topk.cuh"),
    Bug("llama-18448", "ggml-org/ggml", "a0dc83fd", "ggml_cumsum", _GGML, ("race",), "cumsum.cu", _LOOSE),
    Bug("llama-13294", "ggml-org/ggml", "31ef81d8", "ggml_mmq", _GGML, ("race",), "mmq.cuh", _LOOSE),
    Bug("llama-13299", "ggml-org/ggml", "2f15cd3c", "ggml_mmq", _GGML, ("race",), "mmq.cuh", (*_LOOSE, "-DFIXUP")),
    Bug("llama-24360", "ggml-org/ggml", "a9172a93", "ggml_ssm_scan", _GGML, ("race",), "ssm-scan.cu", _LOOSE,
        ("src/ggml-cuda/ssm-scan.cu", "ssm_scan_f32")),
    Bug("llama-20507", "ggml-org/ggml", "f7dfc352", "ggml_cpy", _GGML, ("race",), "cpy.cu", _LOOSE),
    Bug("llama-26385", "ggml-org/ggml", "f3a159ed", "ggml_norm", _GGML, ("race",), "common.cuh", _LOOSE,
        ("src/ggml-cuda/norm.cu", "group_norm_f32")),
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


def functions(path: Path, names: tuple[str, ...]) -> str:
    """Their text, with their lines. A name may be `WHAT...NAME`: all from the first place of WHAT to the function."""
    text, found = path.read_text(), []
    for name in names:
        first, _, name = name.rpartition("...")
        for match in re.finditer(rf"\b{name}\s*\(", text):
            ends = ("\n\n", "*/\n", "}\n")
            start = text.find(first) if first else max(text.rfind(e, 0, match.start()) + len(e) for e in ends)
            body = text.find("{", match.end())
            if body < 0 or ";" in text[match.end() : body]:
                continue  # a call, or a declaration
            depth, at = 1, body + 1
            while depth:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
            found.append(f'#line {text.count(chr(10), 0, start) + 1} "{path}"\n{text[start:at]}\n')
            if "template <>" not in text[at : at + 30]:
                break
    return "".join(found)


def verdict(bug: Bug, revision: str, repository: Path) -> dict[str, Any]:
    """`told` with kind and file, `silent`, `other` faults, or why it does not build."""
    with tempfile.TemporaryDirectory(prefix="known-bugs-") as folder:
        extract(repository, revision, bug.folders, Path(folder))
        include = [f"-I{folder}/{name}" for name in bug.folders] + [f"-I{HERE / 'include'}"]
        if bug.cut:
            path, *names = bug.cut
            (Path(folder) / "cut.cuh").write_text(functions(Path(folder) / path, tuple(names)))
            include.append(f"-I{folder}")
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
