"""Fixtures that tests of several parts share."""

from collections.abc import Iterator

import pytest

from tests._ddp import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Two real processes in one gloo group."""
    pool = RankPool(2)
    yield pool
    pool.close()
