"""Fixtures for pytest, which finds them by the entry point of this package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import ringfence as client

    from .testing import FakeCluster


@pytest.fixture
def ringfence_cluster() -> Iterator[FakeCluster]:
    """A cluster in memory, of this test alone."""
    from .testing import FakeCluster

    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def ringfence(ringfence_cluster: FakeCluster) -> Iterator[client.Client]:
    """A client of `ringfence_cluster`, for threads."""
    with ringfence_cluster.client() as found:
        yield found
