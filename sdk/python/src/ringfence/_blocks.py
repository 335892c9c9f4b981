"""The blocks of a lock that are open: `with lock` has no handle of its own, so the lock keeps the leases.

Whoever leaves a block may be another thread or task than entered it: frameworks run the two halves of a generator wherever they
like. A lease is found by the frame of the `with` statement, which stays the same. Where something else calls (`ExitStack`), the
only open block is meant; of several, the latest of the same thread or task, else the oldest. No end of a block ends with all
leases kept.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

L = TypeVar("L")


class _Open(NamedTuple, Generic[L]):
    frame: int
    owner: int
    lease: L


class Blocks(Generic[L]):
    """The open blocks of one lock."""

    def __init__(self) -> None:
        # Threads add and remove: each is one step.
        self._open: list[_Open[L]] = []

    def enter(self, frame: int, owner: int, lease: L) -> None:
        """A block is entered. `frame` stands for the `with` statement, `owner` for the thread or task."""
        self._open.append(_Open(frame, owner, lease))

    def leave(self, frame: int, owner: int) -> L:
        """The lease of the block that is left."""
        while opened := list(self._open):
            found = _which(opened, frame, owner)
            try:
                self._open.remove(found)
            except ValueError:
                continue
            return found.lease
        raise RuntimeError("this lock is not entered")


def _which(opened: list[_Open[L]], frame: int, owner: int) -> _Open[L]:
    for latest in reversed(opened):
        if latest.frame == frame:
            return latest
    if len(opened) > 1:
        for latest in reversed(opened):
            if latest.owner == owner:
                return latest
    return opened[0]
