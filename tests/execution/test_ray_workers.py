"""A real Ray on this machine, started and stopped here."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.execution.parts import Normal, Sly, numbers, selector_of
from tm_bandit.errors import InputError

ray = pytest.importorskip("ray")

from tm_bandit.execution.ray_workers import RayWorkers  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # Ray opens files, sockets and processes that it leaves to the garbage collector, and warns of its own plans.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "no address", "a:b", ""])
def test_an_address_that_does_not_answer(address):
    """Ray itself would try for minutes."""
    told = f"Expected a Ray cluster at {address!r}, but it does not answer"
    with pytest.raises(InputError, match=rf"{re.escape(told)} .*`ray start --head`") as refusal:
        selector_of().run(progress=False, workers=RayWorkers(1, address=address))
    assert "\n" not in str(refusal.value)
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_an_actor_is_killed_in_mid_pull_and_nothing_is_lost(cluster, tmp_path):
    # Ray takes functions that pickle does not.
    arms = {name: lambda n, generator, at=at: Normal(at)(n, generator) for name, at in (("near", 0.0), ("far", 2.0))}
    arms = {"near": arms["near"], "mid": Sly(0.4, tmp_path, "die", times=1), "far": arms["far"]}
    result = selector_of(arms).run(progress=False, workers=RayWorkers(2))
    assert len(list(tmp_path.iterdir())) == 1
    with ThreadPoolExecutor(2) as pool:
        assert numbers(result) == numbers(selector_of().run(progress=False, workers=pool))
    assert ray.is_initialized(), "it was there before"


def test_more_than_the_cluster_has(cluster):
    with pytest.raises(InputError, match=r"with 2 x GPU \(2 workers of 1\), but it has 0"):
        selector_of().run(progress=False, workers=RayWorkers(2, resources={"CPU": 1, "GPU": 1}))
    with pytest.raises(InputError, match="Expected resources as"):
        RayWorkers(2, resources=3)
