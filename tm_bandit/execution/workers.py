"""Parallel workers: processes of this machine, or any ``concurrent.futures.Executor``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any

import torch
from typing_extensions import override

from tm_bandit._arguments import check_count
from tm_bandit.errors import ArmError, BanditError, InputError, brief
from tm_bandit.execution.kit import Drawn, Kit, draw, forget, keep, unpack
from tm_bandit.pull import Pull

#: Processes of one machine: more than any has cores, and far fewer than a slip of the finger would start.
_MOST = 1024

#: With this variable Python does not look for modules in the current folder first. Version 3.10 does not know it.
_SAFE_PATH = "PYTHONSAFEPATH"

#: Held while the variable is changed: of two threads, one would put back what the other has set.
_ENVIRONMENT = threading.RLock()


class Workers(ABC):
    """Some places at which pulls can be carried out, each with one at a time.

    Args:
        num_workers: how many places.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = check_count("workers", num_workers, 1)

    @abstractmethod
    def open(self, kit: Kit) -> None:
        """Get ready for a run.

        Args:
            kit: what the workers hold.

        Raises:
            InputError: if they are not available.
        """

    @abstractmethod
    def start(self, place: int) -> Future[object]:
        """Put a new worker at a place, ending any earlier one there. The future is done when the worker is ready.

        Args:
            place: which one.

        Raises:
            InputError: if there can be no other worker at that place.
        """

    @abstractmethod
    def submit(self, place: int, pull: Pull) -> Future[Drawn]:
        """Let the worker at a place carry out a pull.

        Args:
            place: which one.
            pull: what to draw.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers, including those still at work."""


def make_workers(workers: int | Executor | Workers) -> Workers:
    """Return the workers that are meant.

    Args:
        workers: how many processes, an executor, or workers.

    Raises:
        InputError: if it is none of these.

    Example:
        >>> make_workers(4).num_workers
        4
    """
    if isinstance(workers, Workers):
        return workers
    if isinstance(workers, Executor):
        return ExecutorWorkers(workers)
    return ProcessWorkers(check_count("workers", workers, 1))


class ProcessWorkers(Workers):
    """Processes of this machine. Each is an executor of one process: if it dies, only its own pull is affected.

    With a metric on a GPU, the first worker uses the first GPU, the second the next, and round again.

    Args:
        num_workers: how many.

    Raises:
        InputError: if there are more than a machine can run.
    """

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        if self.num_workers > _MOST:
            raise InputError(
                f"Expected at most {_MOST:,} processes as `workers`, but got {self.num_workers:,}; start one per core."
            )

    @override
    def open(self, kit: Kit) -> None:
        self._packed, self._token = kit.pack(), kit.token
        self._gpus = torch.cuda.device_count() if kit.metric.device.type == "cuda" else 0
        self._pools: dict[int, ProcessPoolExecutor] = {}
        self._pids: dict[int, Future[int]] = {}

    @override
    def start(self, place: int) -> Future[object]:
        self._end(place)
        try:
            self._pools[place] = pool = one_process()
            # Before anything else: one that hangs while it unpacks its kit can then be ended too.
            with looking_elsewhere():
                self._pids[place] = pool.submit(os.getpid)
        except (OSError, EOFError) as error:  # no memory, no more processes, or no server to fork them from
            raise InputError(f"Expected a process to start, but got {brief(error)}; give fewer workers.") from error
        device = f"cuda:{place % self._gpus}" if self._gpus else None
        return pool.submit(_move_in, self._packed, device)

    @override
    def submit(self, place: int, pull: Pull) -> Future[Drawn]:
        return self._pools[place].submit(draw, self._token, pull)  # type: ignore[arg-type]

    @override
    def close(self) -> None:
        for place in list(self._pools):
            self._end(place)

    def _end(self, place: int) -> None:
        pool, pid = self._pools.pop(place, None), self._pids.pop(place, None)
        if pool is None:
            return
        if pid is not None:
            with suppress(OSError, BrokenExecutor):  # it is already dead
                os.kill(pid.result(), getattr(signal, "SIGKILL", signal.SIGTERM))
        pool.shutdown(wait=True, cancel_futures=True)


def process_context() -> BaseContext:
    """Return how processes are started: fast, and without what this process has in memory.

    On Linux one process imports torch, which takes seconds, and the workers are forked from it. It has no threads and
    no GPU, which a fork would break; this process may have both.
    """
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def one_process() -> ProcessPoolExecutor:
    """Return an executor of one process, which ends when this process does."""
    with looking_elsewhere() as before:  # it starts another process at once, which tracks its semaphores
        return ProcessPoolExecutor(1, process_context(), initializer=_stay_with_parent, initargs=(before,))


@contextmanager
def looking_elsewhere() -> Iterator[str | None]:
    """Let processes that are started here not look for modules in the current folder, where anybody's files may lie.

    They begin as ``python -c``, which puts that folder first: a ``json.py`` in it would run in place of Python's own.

    Yields:
        What a variable was before, for those processes to put back.
    """
    with _ENVIRONMENT:
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = "1"
        try:
            yield before
        finally:
            _put_back(before)


def _put_back(safe_path: str | None) -> None:
    if safe_path is None:
        os.environ.pop(_SAFE_PATH, None)
    else:
        os.environ[_SAFE_PATH] = safe_path


def _stay_with_parent(safe_path: str | None) -> None:
    """End this process when its parent ends: otherwise the worker of a killed process would live on.

    It comes before the first task, because a worker waits for its tasks forever: it holds both ends of their pipe.

    Args:
        safe_path: the parent's own value of a variable, see :func:`looking_elsewhere`.
    """
    _put_back(safe_path)  # programs that a sampler starts find what they did
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that selects
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _move_in(packed: bytes, device: str | None) -> None:
    """Give a new process what it holds."""
    torch.set_num_threads(1)
    unpack(packed, device)


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)


class ExecutorWorkers(Workers):
    """The workers of an executor that was made elsewhere: a pool of threads or processes, loky, Dask, MPI.

    A worker is sent the samplers and the feature network once, when it is first found without them. A worker that hangs
    cannot be ended from here: with ``timeout=`` its place is given up.

    Args:
        executor: the executor; it is not shut down.
        num_workers: how many workers it has; ``None`` if it is one of ``concurrent.futures``, which say so.
    """

    def __init__(self, executor: Executor, num_workers: int | None = None) -> None:
        known = num_workers if num_workers is not None else getattr(executor, "_max_workers", None)
        if known is None:
            raise InputError(
                f"Expected an executor that says how many workers it has, but got {type(executor).__name__}; give "
                "workers=ExecutorWorkers(executor, num_workers)."
            )
        super().__init__(known)
        self._executor = executor

    @override
    def open(self, kit: Kit) -> None:
        self._kit, self._packed = kit, b""
        keep(kit)  # for threads, and for processes that are forked from now on
        self._answers: dict[int, Future[Drawn]] = {}

    @override
    def start(self, place: int) -> Future[object]:
        last = self._answers.get(place)
        # An executor that lives on has replaced the worker that failed. One that is broken stays so, and a pull that
        # hangs keeps a worker forever.
        if last is not None and (not last.done() or isinstance(last.exception(), BrokenExecutor)):
            raise InputError(
                "Expected the workers of the executor to answer in time, but one hangs or has died, and cannot be "
                "replaced from here."
            )
        ready: Future[object] = Future()
        ready.set_result(None)
        return ready

    @override
    def submit(self, place: int, pull: Pull) -> Future[Drawn]:
        answer: Future[Drawn] = Future()
        self._answers[place] = answer

        def pass_on(asked: Future[Drawn | None], again: bool) -> None:
            try:
                drawn = asked.result()
                if drawn is None and again:
                    self._packed = self._packed or self._kit.pack()
                    packed = self._executor.submit(_draw_with, self._packed, self._kit.token, pull)
                    packed.add_done_callback(lambda done: pass_on(done, again=False))
                else:
                    answer.set_result(drawn or ArmError("a worker forgot what it was sent"))
            except BanditError as error:  # the kit cannot be sent, which is not the worker's fault
                answer.set_result(error)
            except BaseException as error:
                answer.set_exception(error)

        try:
            first = self._executor.submit(draw, self._kit.token, pull)
        except RuntimeError as error:  # it is broken, or was shut down
            answer.set_exception(BrokenExecutor(brief(error)))
            raise
        first.add_done_callback(lambda done: pass_on(done, again=True))
        return answer

    @override
    def close(self) -> None:
        forget(self._kit)


def _draw_with(packed: bytes, token: str, pull: Pull) -> Drawn | None:
    try:
        unpack(packed)
    except Exception as error:
        return InputError(f"Expected samplers that a worker can unpack, but got {brief(error)}.")
    return draw(token, pull)


#: What :meth:`tm_bandit.ModelSelector.run` takes: how many processes, an executor, workers, or none of them.
WorkersLike = int | Executor | Workers | None
