import pytest

from tests._inception import random_weights_file
from tm_bandit.extractors import resolve


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory):
    path = random_weights_file(tmp_path_factory.getbasetemp())
    network = resolve(2048, weights_path=path).network  # held, so that it is built once for all tests
    yield path
    del network


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
