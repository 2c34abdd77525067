"""Real processes: what is selected does not depend on their pace, and one that dies or hangs costs nothing."""

import os
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import torch

from tests.execution.parts import Normal, Slow, Sly, Unlucky, build_normal, numbers, selector_of
from tm_bandit.errors import InputError
from tm_bandit.execution import Factory
from tm_bandit.execution.workers import ExecutorWorkers, ProcessWorkers, make_workers, process_context
from tm_bandit.selection.running import kit_of

#: Starting a process costs seconds, most of them the imports of torch and torchmetrics.
processes = pytest.mark.slow


@pytest.fixture(scope="module")
def plain():
    """Two workers with nothing that goes wrong; threads draw what processes draw."""
    with ThreadPoolExecutor(2) as pool:
        return selector_of().run(progress=False, workers=pool)


@processes
def test_processes_that_die_or_hang_are_replaced_and_nothing_is_lost(plain, tmp_path):
    (tmp_path / "dying").mkdir()
    (tmp_path / "hanging").mkdir()
    arms = {
        "near": Normal(0.0, seconds=0.01),
        "mid": Sly(0.4, tmp_path / "dying", "die", times=1),
        "far": Sly(2.0, tmp_path / "hanging", "hang", times=1),
    }
    result = selector_of(arms).run(progress=False, workers=2, timeout=2.0)
    assert numbers(result) == numbers(plain)
    assert len(list((tmp_path / "dying").iterdir())) == 1
    assert len(list((tmp_path / "hanging").iterdir())) == 1


@processes
def test_one_that_hangs_while_it_moves_in_is_ended():
    workers, selector = ProcessWorkers(1), selector_of({"a": Slow(), "b": Normal(0.0)})
    workers.open(kit_of(selector))
    moving = workers.start(0)
    pid = workers._pids[0].result()
    os.kill(pid, 0)
    workers.close()
    assert isinstance(moving.exception(), BrokenExecutor)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_more_processes_than_a_machine_can_run_are_refused():
    with pytest.raises(InputError, match="at most 1,024 processes"):
        selector_of().run(progress=False, workers=10**9)


def test_processes_that_cannot_be_started_are_said_to_be(monkeypatch):
    def no_more(self, function, /, *args):
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", no_more)
    with pytest.raises(InputError, match=r"none is left .*Resource temporarily unavailable"):
        selector_of().run(progress=False, workers=2)


ABANDONED = """
import os, signal
from tm_bandit.execution.workers import one_process
pool = one_process()
print(pool.submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@processes
def test_a_worker_that_was_given_nothing_yet_ends_with_its_parent():
    """All processes hold the pipe of the output: that it ends says that they are gone."""
    ended = subprocess.run([sys.executable, "-c", ABANDONED], stdout=subprocess.PIPE, timeout=180, check=False)
    assert ended.stdout.strip().isdigit()
    assert ended.returncode == -9


@processes
def test_somebody_elses_pool_is_used_and_may_break(plain, tmp_path):
    """One process stands for two places: the selection depends on their number, not on who is there."""
    arms = {"near": Normal(0.0), "mid": Factory(build_normal, 0.4), "far": Normal(2.0)}
    unlucky = selector_of({"a": Unlucky(), "b": Normal(0.0)})
    stuck = selector_of({"a": Normal(0.0), "b": lambda num_samples, generator: torch.zeros(num_samples, 1)})
    selector = selector_of({"near": Normal(0.0), "mid": Sly(0.4, tmp_path, "die", times=1)})
    with ProcessPoolExecutor(1, process_context()) as pool:
        workers = ExecutorWorkers(pool, num_workers=2)
        assert numbers(selector_of(arms).run(progress=False, workers=workers)) == numbers(plain)
        assert pool.submit(len, "abc").result() == 3, "it is not shut down"
        with pytest.raises(InputError, match=r"a worker can unpack, but got OSError: no such device here"):
            unlucky.run(progress=False, workers=workers)
        with pytest.raises(InputError, match=r"the sampler of arm 'b' to go to another process.*Factory\(build"):
            stuck.run(progress=False, workers=workers)
        with pytest.raises(InputError, match=r"its process died \(a script that starts workers needs `if __name__"):
            selector.run(progress=False, workers=workers)
    assert selector.retired == unlucky.retired == stuck.retired == {}
    for one in (selector, unlucky):
        assert one.run(progress=False).total_samples == 320, "nothing is lost"


class Foreign(Executor):
    """An executor of which nobody knows how many workers it has; it works at once."""

    def submit(self, function, *args):
        future = Future()
        future.set_result(function(*args))
        return future


class Forgiving(Foreign):
    """An executor that replaces the workers that die, as that of Dask does; or that ends."""

    def __init__(self, deaths=0, ends_after=None):
        self.deaths, self.left = deaths, ends_after

    def submit(self, function, *args):
        if self.left == 0:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.left = None if self.left is None else self.left - 1
        if args[-1].arm != "mid" or not self.deaths:
            return super().submit(function, *args)
        self.deaths -= 1
        future = Future()
        future.set_exception(OSError("the node is gone"))
        return future


def test_an_executor_that_lives_on_keeps_its_places(plain):
    def run(executor):
        return selector_of().run(progress=False, workers=ExecutorWorkers(executor, num_workers=2))

    assert numbers(run(Forgiving(deaths=2))) == numbers(plain)
    result = run(Forgiving(deaths=99))
    assert result.retired == {"mid": "a worker failed: OSError: the node is gone"}
    assert result.total_samples == 320
    with pytest.raises(InputError, match=r"none is left \(RuntimeError: cannot schedule new futures"):
        run(Forgiving(ends_after=7))


def test_what_can_be_a_worker():
    assert isinstance(make_workers(3), ProcessWorkers)
    mine = ExecutorWorkers(Foreign(), num_workers=3)
    assert make_workers(mine) is mine
    assert selector_of().run(progress=False, workers=mine).total_samples == 320
    with pytest.raises(InputError, match="but got Foreign; give workers=ExecutorWorkers"):
        make_workers(Foreign())
    for bad in (-1, 2.5, "two", True):
        with pytest.raises(InputError, match="workers"):
            selector_of().run(progress=False, workers=bad)
