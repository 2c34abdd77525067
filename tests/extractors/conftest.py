import pytest

from tests._inception import random_weights_file
from tm_bandit.extractors import resolve


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory):
    path = random_weights_file(tmp_path_factory.getbasetemp())
    network = resolve(2048, weights_path=path).network  # held, so that it is built once for all tests
    yield path
    del network
