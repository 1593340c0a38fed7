"""The language server, by pygls' own client."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls")
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from gpuless.counts import counters
from gpuless.doors import language_server
from gpuless.program import building

RACY = """#include <cstdio>
__global__ void turn(float* x)
{
    __shared__ float s[64 * 32];
    s[threadIdx.x * 32] = x[threadIdx.x];
    x[threadIdx.x] = s[(threadIdx.x ^ 1) * 32];
}
int main()
{
    float* x;
    cudaMalloc(&x, 256), cudaMemset(x, 0, 256);
    turn<<<1, 64>>>(x);
    cudaDeviceSynchronize();
}
"""


async def conversation(path: Path) -> tuple[list[list[types.Diagnostic]], list[types.InlayHint]]:
    """The file is opened, then saved with a barrier: the diagnostics of both, and the hints of the first."""
    client = LanguageClient("test", "1")
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(
        lambda _, parameters=None: arrived.put_nowait(parameters or _)
    )
    refreshed: asyncio.Queue[Any] = asyncio.Queue()
    client.feature(types.WORKSPACE_INLAY_HINT_REFRESH)(lambda *_: refreshed.put_nowait(1))
    await client.start_io(sys.executable, "-m", "gpuless", "lsp")
    await client.initialize_async(
        types.InitializeParams(capabilities=types.ClientCapabilities(), root_uri=path.parent.as_uri())
    )
    client.initialized(types.InitializedParams())
    document = types.TextDocumentItem(path.as_uri(), types.LanguageKind.Cpp, 1, path.read_text())
    client.text_document_did_open(types.DidOpenTextDocumentParams(document))
    told = [(await asyncio.wait_for(arrived.get(), 300)).diagnostics]
    await asyncio.wait_for(refreshed.get(), 60)
    whole = types.Range(types.Position(0, 0), types.Position(100, 0))
    which = types.TextDocumentIdentifier(path.as_uri())
    hints = await client.text_document_inlay_hint_async(types.InlayHintParams(which, whole))
    path.write_text(RACY.replace("x[threadIdx.x];", "x[threadIdx.x]; __syncthreads();"))
    client.text_document_did_save(types.DidSaveTextDocumentParams(which))
    told.append((await asyncio.wait_for(arrived.get(), 300)).diagnostics)
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return told, hints


@pytest.mark.slow
def test_a_race_is_shown_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "turn.cu"
    path.write_text(RACY)
    (before, after), hints = asyncio.run(conversation(path))
    first = before[0]
    places = {first.range.start.line, *(one.location.range.start.line for one in first.related_information)}
    assert first.code == "race" and places == {4, 5, 11}
    assert not after
    at = {hint.position.line: str(hint.label) for hint in hints}
    assert "2 requests, 32 wavefronts each (1 would do)" in at[4] and "4 sectors each" in at[4] and set(at) == {4, 5}


def test_errors_of_both_compilers_have_lines() -> None:
    said = 'a.cu(3): error: identifier "y" is undefined\nb.cpp:7:2: error: expected ;\n1 error detected'
    found = building.errors_in(said)
    assert [(one["place"]["file"], one["place"]["line"]) for one in found] == [("a.cu", 3), ("b.cpp", 7)]


def test_hints_sum_launches() -> None:
    from gpuless.launch import LaunchConfig

    def launched() -> counters.Launched:
        one = counters.Launched("k", LaunchConfig((1, 1, 1), (32, 1, 1)))
        access = counters.Access("a.cu", 3, "global", "read", "plain")
        one.accesses[access].add(counters.Counts(requests=2, sectors=16, ideal_sectors=8))
        return one

    (texts,) = language_server.hints([launched(), launched()]).values()
    assert texts == ["global read: 4 requests, 8 sectors each (4 would do)"]
