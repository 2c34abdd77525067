"""Fixtures that tests of several parts share, and which tests are slow."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._ddp import RankPool

#: Whoever imports it has a fake accelerator for the rest of the process.
collect_ignore = ["_accelerator.py"]

#: Files whose tests train, start processes, build or measure: `make test-fast` leaves them out.
SLOW = frozenset(
    {
        "callbacks/test_burn_in.py",
        "callbacks/test_cost.py",
        "callbacks/test_ddp.py",
        "callbacks/test_end_to_end.py",
        "callbacks/test_bandit_checkpoint.py",
        "callbacks/test_loggers.py",
        "callbacks/test_modes.py",
        "callbacks/test_promise_branches.py",
        "callbacks/test_promise_errors.py",
        "callbacks/test_promise_folders.py",
        "callbacks/test_promise_modules.py",
        "callbacks/test_reference.py",
        "callbacks/test_report.py",
        "callbacks/test_resume.py",
        "callbacks/test_undisturbed.py",
        "cli/test_main.py",
        "demo/test_digits.py",
        "demo/test_flow.py",
        "demo/test_picture.py",
        "demo/test_story.py",
        "demo/test_truth.py",
        "extractors/test_fidelity.py",
        "extractors/test_inception_network.py",
        "extractors/test_real_network.py",
        "faults/test_kills.py",
        "metrics/test_fid_ddp.py",
        "metrics/test_inception_ddp.py",
        "metrics/test_witness_coverage.py",
        "selection/test_golden.py",
        "selection/test_real_metrics.py",
        "simulation/test_selection_benchmark.py",
        "test_docs.py",
        "test_examples.py",
        "test_packaging.py",
        "test_readme.py",
    }
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of slow files; a slow test elsewhere has the marker itself."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):  # one of several processes of xdist
        slow_first(items)


def slow_first(items: list[pytest.Item]) -> None:
    """Let slow files come first in either half of the tests, so that two processes end at the same time.

    Each begins with one half, and who is done takes over what the other one has last. A file stays whole, because its
    tests share what they have trained or started.
    """
    half = {path: at % 2 for at, path in enumerate(dict.fromkeys(item.path for item in items))}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (half[item.path], item.path not in slow))


@pytest.fixture
def listening() -> Iterator[None]:
    """A shell starts what it puts in the background with an ignored Ctrl-C; here it must count wherever this runs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
