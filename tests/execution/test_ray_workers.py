"""A real Ray on this machine, started and stopped here."""

import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.execution.parts import Normal, Sly, Unlucky, numbers, selector_of
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
def test_an_address_that_does_not_answer(address, tmp_path, monkeypatch):
    """Ray itself would try for minutes."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where it looks for those that run here
    told = f"Expected a Ray cluster at {address!r}, but it does not answer"
    with pytest.raises(InputError, match=rf"{re.escape(told)} .*`ray start --head`") as refusal:
        selector_of().run(progress=False, workers=RayWorkers(1, address=address))
    assert "\n" not in str(refusal.value)
    assert not ray.is_initialized()


def test_a_cluster_that_has_died_and_left_its_address(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    with pytest.raises(InputError, match=r"at '127.0.0.1:1', but it does not answer .* or give 'local'"):
        selector_of().run(progress=False, workers=RayWorkers(1))
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Start a Ray; return the addresses for a driver that is part of it, and for a client from elsewhere."""
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as two:
        ports = {"own": one.getsockname()[1], "client": two.getsockname()[1]}
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--port={ports['own']}", f"--ray-client-server-port={ports['client']}", "--include-dashboard=false"]
    # A client has a server of its own, which on a busy machine starts in more than the 30 s that Ray waits for it.
    environment = {**os.environ, "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "300", "RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_worker_niceness"] = "0"  # with Ray's 15, workers next to other programs start in minutes
    # The nodes of a cluster have the code of the arms, which here is that of the tests.
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    said = tmp_path_factory.mktemp("ray") / "ray.log"
    with said.open("w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as head:
        try:
            assert within(120, lambda: "Ray runtime started" in said.read_text()), said.read_text()
            assert within(120, lambda: all(listens(port) for port in ports.values())), said.read_text()
            yield {"own": f"127.0.0.1:{ports['own']}", "client": f"ray://127.0.0.1:{ports['client']}"}
        finally:
            head.terminate()


def within(seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("kind", ["own", "client"])
def test_an_actor_is_killed_in_mid_pull_and_nothing_is_lost(addresses, kind, tmp_path):
    # Ray takes functions that pickle does not.
    arms = {name: lambda n, generator, at=at: Normal(at)(n, generator) for name, at in (("near", 0.0), ("far", 2.0))}
    arms = {"near": arms["near"], "mid": Sly(0.4, tmp_path, "die", times=1), "far": arms["far"]}
    result = selector_of(arms).run(progress=False, workers=RayWorkers(2, address=addresses[kind]))
    assert len(list(tmp_path.iterdir())) == 1
    with ThreadPoolExecutor(2) as pool:
        assert numbers(result) == numbers(selector_of().run(progress=False, workers=pool))
    assert not ray.is_initialized()


def test_actors_that_cannot_be_made(addresses):
    with ray.init(address=addresses["own"], log_to_driver=False, logging_level="ERROR"):
        with pytest.raises(InputError, match=r"with 2 x GPU \(2 workers of 1\), but it has 0"):
            selector_of().run(progress=False, workers=RayWorkers(2, resources={"CPU": 1, "GPU": 1}))
        with pytest.raises(InputError, match=r"none is left \(.*OSError: no such device here\)"):
            selector_of({"a": Unlucky(), "b": Normal(0.0)}).run(progress=False, workers=RayWorkers(1))
        assert ray.is_initialized(), "it was there before"
    with pytest.raises(InputError, match="Expected resources as"):
        RayWorkers(2, resources=3)
    with pytest.raises(InputError, match=r"resources\['CPU'\]. to be a finite number of at least 0, but got 'all'"):
        RayWorkers(2, resources={"CPU": "all"})
