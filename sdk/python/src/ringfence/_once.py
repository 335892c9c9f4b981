"""Work that one program of many does at a time: what the plugs for queues and schedulers have in common."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from .errors import Held, TimedOut

_LOG = logging.getLogger("ringfence")


def takes_lease(work: Callable[..., Any]) -> bool:
    """Whether it has a parameter `lease`."""
    return "lease" in inspect.signature(work).parameters


def skipped(key: str, why: Held | TimedOut) -> None:
    """Tells that another one does it."""
    _LOG.info("the work of %r is done elsewhere: %s", key, why)
