"""Which process this is. A forked child has the memory of its parent, but none of its threads."""

from __future__ import annotations

import os

_forks = 0


def process() -> tuple[int, int]:
    """What identifies this process. An id alone may be used again."""
    return _forks, os.getpid()


def _count() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
