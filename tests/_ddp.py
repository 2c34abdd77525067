"""Real processes in a real gloo group, kept alive between tests because starting them costs seconds."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tm_bandit.execution.workers import process_context


class RankError(AssertionError):
    """What a rank raised, with its traceback."""


def _serve(rank: int, world_size: int, store: str, connection: Any) -> None:
    """Join the group and run what is sent, until ``None`` comes."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    while (task := connection.recv()) is not None:
        function, args = task
        try:
            connection.send((True, function(rank, world_size, *args)))
        except BaseException:
            connection.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class RankPool:
    """Processes that form one gloo group and run functions together.

    Args:
        world_size: number of processes.
    """

    def __init__(self, world_size: int = 2) -> None:
        self.world_size = world_size
        self._workers: list[tuple[Any, Any]] = []

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call ``function(rank, world_size, *args)`` on all ranks and return their answers, in order of rank.

        Args:
            function: a function at the top level of a module.
            args: what it gets besides rank and world size; must pickle.

        Raises:
            RankError: if a rank raised or does not answer; the processes are replaced then.
        """
        self._start()
        for _, connection in self._workers:
            connection.send((function, args))
        answers, failures = [], []
        for rank, (process, connection) in enumerate(self._workers):
            try:
                good, answer = connection.recv() if connection.poll(90) else (False, f"rank {rank} does not answer")
            except EOFError:
                good, answer = False, f"rank {rank} died with exit code {process.exitcode}"
            (answers if good else failures).append(answer)
        if failures:
            self.close(kill=True)
            raise RankError("\n".join(failures))
        return answers

    def _start(self) -> None:
        if self._workers:
            return
        context = process_context()
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.world_size, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def close(self, kill: bool = False) -> None:
        """End the processes.

        Args:
            kill: do not wait for them to leave the group.
        """
        for process, connection in self._workers:
            if kill:
                process.kill()
            else:
                connection.send(None)
        for process, connection in self._workers:
            process.join(30)
            connection.close()
        if self._workers:
            self._folder.cleanup()
        self._workers = []
