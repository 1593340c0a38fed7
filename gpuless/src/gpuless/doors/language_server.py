"""`gpuless lsp`: an editor's language server. When a file is opened or saved, it runs: faults become diagnostics with
their related places, and what its lines do to memory becomes hints at the lines."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuless.base.errors import CompileError, UserError
from gpuless.counts import counters, counting
from gpuless.doors import findings
from gpuless.program import building, execution

_SECONDS = 60.0  # until a program is ended
_MAIN = re.compile(r"\bint\s+main\s*\(")
_SCRIPT = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.M)


def examine(path: Path, gpu: str) -> tuple[list[findings.Finding], dict[tuple[str, int], list[str]]]:
    """The findings of a file that is run, and hints by file and line. A file that has no entry is not run."""
    text = path.read_text(encoding="utf-8", errors="replace")
    with tempfile.TemporaryDirectory(prefix="gpuless-lsp-") as folder:
        if path.suffix == ".cu" and _MAIN.search(text):
            try:
                command = [str(building.program([path], building.Options(gpu=gpu)))]
            except CompileError as problem:
                plain = {"kind": "compile", "text": str(problem)[:2000], "place": {"file": str(path), "line": 1}}
                return [*building.errors_in(str(problem))] or [plain], {}
        elif path.suffix == ".py" and _SCRIPT.search(text):
            command = [sys.executable, str(path)]
        else:
            return [], {}
        how = execution.Execution(gpu=gpu, quiet=True, counts=Path(folder))
        try:
            ended = execution.run(command, how, keep=True, seconds=_SECONDS)
            launches = [one for file in Path(folder).iterdir() for one in counting.counted(file)]
        except UserError as problem:
            return [{"kind": "program", "text": str(problem), "place": {"file": str(path), "line": 1}}], {}
    return [*ended.findings()], hints(launches)


def hints(launches: Sequence[counters.Launched]) -> dict[tuple[str, int], list[str]]:
    """What each line asks of memory, summed over launches."""
    sums: dict[counters.Access, counters.Counts] = defaultdict(counters.Counts)
    for launched in launches:
        for access, counts in launched.accesses.items():
            sums[access].add(counts)
    told: dict[tuple[str, int], list[str]] = defaultdict(list)
    for access, counts in sums.items():
        if counts.requests and (counts.sectors or counts.wavefronts):
            told[access.file, access.line].append(_hint(access, counts))
    return told


def _hint(access: counters.Access, counts: counters.Counts) -> str:
    what = f"{access.memory} {access.direction}: {counts.requests:,} requests"
    if access.memory == "global":
        cost, ideal, unit = counts.sectors, counts.ideal_sectors, "sectors"
    else:
        cost, ideal, unit = counts.wavefronts, counts.ideal_wavefronts, "wavefronts"
    more = f" ({ideal / counts.requests:.3g} would do)" if cost > ideal else ""
    return f"{what}, {cost / counts.requests:.3g} {unit} each{more}"


def serve() -> None:
    """Serves an editor over standard input and output, until it ends."""
    make_server().start_io()


def make_server() -> Any:
    try:
        from lsprotocol import types
        from pygls.lsp.server import LanguageServer
        from pygls.uris import from_fs_path, to_fs_path
    except ImportError:
        raise UserError("the language server needs pygls: pip install 'gpuless[lsp]'.") from None
    server: Any = LanguageServer("gpuless", "0.1")
    hints_of: dict[str, dict[int, list[str]]] = {}
    shown: dict[str, set[str]] = {}  # the files with diagnostics of a file that has run

    def uri(file: str, near: Path) -> str:
        return str(from_fs_path(str((near.parent / file).resolve())))

    def at(file: str, line: int, near: Path) -> Any:
        line -= 1
        return types.Location(uri(file, near), types.Range(types.Position(line, 0), types.Position(line, 1000)))

    def diagnostic(finding: findings.Finding, near: Path) -> tuple[str, Any]:
        located = [(what, at(file, line, near)) for what, file, line in findings.places(finding)]
        own = located[0][1] if located else at(near.name, 1, near)
        related = [types.DiagnosticRelatedInformation(where, what) for what, where in located[1:]]
        return own.uri, types.Diagnostic(
            own.range, finding["text"], types.DiagnosticSeverity.Error, finding["kind"], source="gpuless",
            related_information=related,
        )  # fmt: skip

    @server.thread()  # type: ignore[untyped-decorator]
    def look(parameters: Any) -> None:
        name = parameters.text_document.uri
        path = Path(str(to_fs_path(name)))
        os.chdir(path.parent)  # the program's own folder
        found, told = examine(path, os.environ.get("GPULESS_GPU") or execution.Execution().gpu)
        by_file: dict[str, list[Any]] = defaultdict(list)
        for file, one in (diagnostic(finding, path) for finding in found):
            by_file[file].append(one)
        for file in {name, *shown.get(name, ()), *by_file}:
            server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(file, by_file.get(file, [])))
        shown[name] = set(by_file)
        for (file, line), texts in told.items():
            hints_of.setdefault(uri(file, path), {})[line] = texts
        server.workspace_inlay_hint_refresh(None)

    def hint(parameters: Any) -> list[Any]:
        lines = server.workspace.get_text_document(parameters.text_document.uri).lines
        first, last = parameters.range.start.line + 1, parameters.range.end.line + 1
        return [
            types.InlayHint(types.Position(n - 1, len(lines[n - 1].rstrip())), "; ".join(texts), padding_left=True)
            for n, texts in sorted(hints_of.get(parameters.text_document.uri, {}).items())
            if first <= n <= min(last, len(lines))
        ]

    server.feature(types.TEXT_DOCUMENT_DID_OPEN)(look)
    server.feature(types.TEXT_DOCUMENT_DID_SAVE)(look)
    server.feature(types.TEXT_DOCUMENT_INLAY_HINT)(hint)
    return server
