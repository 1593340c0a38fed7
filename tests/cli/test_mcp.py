"""`rung mcp` in a process of its own, through the SDK's client."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mcp import Client

# Not imported while tests are collected: each worker would spend seconds on it, and one needs it.
pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra mcp")

FAULTY = Path(__file__).parents[2] / "gpuless/tests/programs/faulty"


def asked(work: Callable[[Client], Awaitable[Any]]) -> Any:
    """What the work gets from a server of its own."""
    import anyio
    from mcp import Client, StdioServerParameters, stdio_client

    async def session() -> Any:
        command = StdioServerParameters(command=sys.executable, args=["-m", "rung", "mcp"], env=dict(os.environ))
        async with Client(stdio_client(command)) as client:
            return await work(client)

    return anyio.run(session)


async def found(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    document: dict[str, Any] = answer.structured_content
    return document.get("result", document)


def test_its_tools_run_a_program_and_find_its_race() -> None:
    async def work(client: Client) -> tuple[set[str], dict[str, Any]]:
        tools = await client.list_tools()
        source = str(FAULTY / "race_missing_barrier.cu")
        return {tool.name for tool in tools.tools}, await found(client, "run", files=[source])

    names, document = asked(work)
    assert names == {"check", "run", "inspect", "count", "operations", "show"}
    assert [one["kind"] for one in document["findings"]] == ["race"]
    assert document["findings"][0]["place"]["kernel"] == "rotate"


@pytest.mark.slow
def test_a_right_kernel_passes_and_a_wrong_one_fails(tmp_path: Path) -> None:
    async def work(client: Client) -> list[dict[str, Any]]:
        source = await client.call_tool("show", {"rung": "residual/1"})
        assert "residual" in source.content[0].text
        right = await found(client, "check", operation="residual/1", quick=True, dtype="f32")
        wrong = tmp_path / "wrong.cu"
        from rung.rungs import catalogue

        text = catalogue.find("residual/1").source
        wrong.write_text(text.replace(" + ", " - "))
        assert wrong.read_text() != text
        failed = await found(client, "check", operation="residual", file=str(wrong), quick=True, dtype="f32")
        refused = await found(client, "inspect", operation="nothing")
        return [right, failed, refused]

    right, failed, refused = asked(work)
    assert (right["verdict"], failed["verdict"], refused["verdict"]) == ("ok", "failed", "refused")
    assert right["results"][0]["cases"] == 1
    assert failed["findings"][0]["repeat"].startswith("rung check residual")
