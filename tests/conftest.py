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


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A machine without internet, on which torch has never downloaded anything; returns torch's folder."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    # The discard port of this machine: nobody listens there, so a download fails at once, wherever the tests run.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "torch" / "hub" / "checkpoints"
