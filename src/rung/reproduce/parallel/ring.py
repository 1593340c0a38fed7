"""Ring attention: every rank keeps its queries, and the keys and values are passed around. In each step a rank computes
on its block while sending it to the next rank and receiving another. After as many steps as ranks, every query has met
every key, and no rank ever held more than two blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Buffer = TypeVar("Buffer")
Passed = TypeVar("Passed", contravariant=True)


class Link(Protocol[Passed]):
    """A rank's two neighbours."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def pass_on(self, block: Passed, into: Passed, work: Callable[[], None]) -> None:
        """Send `block` to the next rank and receive `into` from the one before, while `work` reads `block`."""


def travel(link: Link[Buffer], block: Buffer, spare: Buffer, attend: Callable[[int, Buffer], None]) -> None:
    """Call `attend(owner, block)` for the block of every rank, one's own first. Overwrites both buffers."""
    for step in range(link.size):
        owner = (link.rank - step) % link.size
        if step == link.size - 1:
            attend(owner, block)
            return
        current = block
        link.pass_on(current, spare, lambda owner=owner, current=current: attend(owner, current))  # type: ignore[misc]
        block, spare = spare, current
