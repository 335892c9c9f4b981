"""The blocks of a lock that are open: `with lock` has no handle of its own, so the lock keeps the leases.

Whoever leaves a block may be another thread or task than entered it: frameworks run the two halves of a generator wherever they
like. A block is known by its *place*: the frame of the `with` statement, which stays the same, or the stack of `contextlib`. Once
a frame is gone, another may have its number, so its code and the thread or task count, too.

Whoever leaves at an unknown place means the only open block. Of several, none is released: it could be another's, who still works.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

L = TypeVar("L")


class Place(NamedTuple):
    """Where a block is entered and left."""

    number: int
    code: object = None


@dataclass(frozen=True)
class _Open(Generic[L]):
    place: Place | None
    owner: int
    lease: L


def caller() -> Place | None:
    """The place where a function was called that calls this. `None`: not by Python."""
    try:
        frame = sys._getframe(2)
    except ValueError:
        return None
    if frame.f_globals.get("__name__") == "contextlib" and "self" in frame.f_code.co_varnames:
        # Other methods of the stack end what one of them began.
        return Place(id(frame.f_locals["self"]))
    return Place(id(frame), frame.f_code)


class Blocks(Generic[L]):
    """The open blocks of one lock."""

    def __init__(self) -> None:
        # Threads add and remove: each is one step.
        self._open: list[_Open[L]] = []

    def enter(self, place: Place | None, owner: int, lease: L) -> None:
        """A block is entered. `owner` stands for the thread or task."""
        self._open.append(_Open(place, owner, lease))

    def leave(self, place: Place | None, owner: int, left: list[L] | None = None) -> L:
        """The lease of the block that ends. It is put into `left` before it leaves this list, as an interrupt may come between."""
        while opened := list(self._open):
            found = _which(opened, place, owner)
            left = [] if left is None else left
            left[:] = [found.lease]
            try:
                self._open.remove(found)
            except ValueError:
                left.clear()
                continue
            return found.lease
        raise RuntimeError("this lock is not entered")

    def forget(self, *leases: L) -> None:
        """Forgets these leases, whose blocks are over."""
        for one in [one for one in self._open if one.lease in leases]:
            with suppress(ValueError):
                self._open.remove(one)


def _which(opened: list[_Open[L]], place: Place | None, owner: int) -> _Open[L]:
    here = [one for one in opened if place is not None and one.place == place]
    own = [one for one in here if one.owner == owner]
    if own:
        # The innermost.
        return own[-1]
    for found in (here, opened):
        if len(found) == 1:
            return found[0]
    raise RuntimeError(
        "several blocks of this lock are open, and none of them was entered here: use `with lock.acquire() as lease`"
    )
