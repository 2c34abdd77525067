"""Handing out pulls to workers: several are under way, and the selection depends on the seed alone."""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from tm_bandit._arguments import check_number
from tm_bandit._guards import uninterrupted
from tm_bandit.errors import ArmError, InputError, brief
from tm_bandit.execution.kit import Drawn, Kit
from tm_bandit.execution.workers import Workers

if TYPE_CHECKING:
    from tm_bandit.execution.loop import Run
    from tm_bandit.pull import Pull

#: How often a pull is given to another worker before it is taken for the arm's fault.
RETRIES = 2

#: Pulls under way per worker: the one that is drawn, and one in store so that nobody waits for the slowest.
PER_WORKER = 2


@dataclass(eq=False)
class Order:
    """A pull that is under way.

    Args:
        pull: the pull.
        tried: the places at which it failed.
        answer: rows and cost, or the reason why there are none; ``None`` while there is neither.
    """

    pull: Pull
    tried: list[int] = field(default_factory=list)
    answer: tuple[Tensor, float] | ArmError | None = None


def pulls_by_workers(run: Run, kit: Kit, workers: Workers, timeout: float | None = None) -> Generator[str]:
    """Make pulls until there are none left, and yield the arm of each.

    Pulls are told in the order in which they were asked for, and a new one is asked for only after one was told. So
    the choices do not depend on which worker was faster.

    Args:
        run: the selector.
        kit: what the workers hold.
        workers: who draws.
        timeout: seconds that a worker may take for a pull.

    Raises:
        InputError: if samplers cannot be sent, or if no worker is left; pulls that were not told are given back.
    """
    # More than a machine can wait for is as good as what it can.
    limit = None if timeout is None else min(check_number("timeout", timeout, least=0), threading.TIMEOUT_MAX)
    workers.open(kit)
    desk = _Desk(workers, limit)
    orders: deque[Order] = deque()
    try:
        for place in range(workers.num_workers):
            desk.start(place)
        while True:
            with uninterrupted():
                wanted = PER_WORKER * workers.num_workers - len(orders)
                asked = [Order(pull) for pull in run.ask(wanted)] if wanted else []
                orders += asked
                desk.waiting += asked
            if not orders:
                return
            while orders[0].answer is None:
                desk.go_on()
            order = orders[0]
            with uninterrupted():
                _tell(run, order)
                orders.popleft()
            if order.pull.arm in run.retired:
                desk.drop(order.pull.arm)
            yield order.pull.arm
    finally:
        with uninterrupted():
            for order in orders:
                with suppress(InputError):
                    run.give_back(order.pull)
        workers.close()


def _tell(run: Run, order: Order) -> None:
    if isinstance(order.answer, tuple):
        try:
            run.tell(order.pull, *order.answer)
        except ArmError as error:
            run.tell(order.pull, error)
    elif order.answer is not None:
        run.tell(order.pull, order.answer)


class _Desk:
    """Which worker does what at the moment.

    Args:
        workers: who draws.
        timeout: seconds that a worker may take for a pull.
    """

    def __init__(self, workers: Workers, timeout: float | None) -> None:
        self.waiting: deque[Order] = deque()
        self._workers = workers
        self._timeout = timeout
        self._idle: deque[int] = deque()
        self._busy: dict[int, tuple[Future[Drawn], Order]] = {}
        self._starting: dict[int, Future[object]] = {}
        #: In the order in which pulls were begun, which is that of their deadlines.
        self._deadlines: deque[tuple[float, int, Future[Drawn]]] = deque()
        self._news: queue.SimpleQueue[tuple[int, Future[object] | Future[Drawn]]] = queue.SimpleQueue()
        self._lost = ""

    def start(self, place: int) -> None:
        """Put a worker at a place, or give the place up."""
        try:
            future = self._workers.start(place)
        except InputError as error:
            self._lost = self._lost or str(error)
            return
        self._starting[place] = future
        future.add_done_callback(lambda done: self._news.put((place, done)))

    def drop(self, arm: str) -> None:
        """Stop drawing what is no longer needed.

        Args:
            arm: an arm that was retired.
        """
        for order in self.waiting:
            if order.pull.arm == arm:
                order.answer = ArmError("the arm was retired")
        self.waiting = deque(order for order in self.waiting if order.answer is None)

    def go_on(self) -> None:
        """Give pulls to idle workers, then wait until something happens.

        Raises:
            InputError: if no worker is left.
        """
        self._assign()
        if not self._busy and not self._starting:
            raise InputError(f"Expected at least one worker that works, but none is left ({self._lost}).")
        try:
            place, future = self._news.get(timeout=self._patience())
        except queue.Empty:
            self._end_what_hangs()
            return
        if self._starting.get(place) is future:
            del self._starting[place]
            try:
                future.result()
                self._idle.append(place)
            except Exception as error:
                self._lost = f"a worker could not be started: {_reason(error)}"
        elif place in self._busy and self._busy[place][0] is future:
            self._take(place)
        # What was drawn is told next, which takes a moment; the worker that drew it continues meanwhile.
        self._assign()

    def _assign(self) -> None:
        places = len(self._idle) + len(self._busy) + len(self._starting)
        for _ in range(len(self._idle)):
            if not self.waiting:
                return
            place = self._idle.popleft()
            # What failed at one place goes to another, if there is one.
            fitting = (order for order in self.waiting if place not in order.tried or len({*order.tried}) >= places)
            order = next(fitting, None)
            if order is None:
                self._idle.append(place)
                continue
            self.waiting.remove(order)
            try:
                future = self._workers.submit(place, order.pull)
            except Exception as error:  # a pool whose process died while idle
                self.waiting.appendleft(order)
                self._lost = _reason(error)
                self.start(place)
                continue
            self._busy[place] = future, order
            if self._timeout is not None:
                self._deadlines.append((time.monotonic() + self._timeout, place, future))
            future.add_done_callback(lambda done, place=place: self._news.put((place, done)))  # type: ignore[misc]

    def _patience(self) -> float | None:
        """Return the seconds until the next deadline; deadlines of pulls that are done are forgotten."""
        while self._deadlines:
            deadline, place, future = self._deadlines[0]
            if place in self._busy and self._busy[place][0] is future:
                return max(0.0, deadline - time.monotonic())
            self._deadlines.popleft()
        return None

    def _end_what_hangs(self) -> None:
        if self._patience() == 0.0:
            _, place, _ = self._deadlines.popleft()
            _, order = self._busy.pop(place)
            self._fail(order, place, ArmError(f"a worker took longer than the timeout of {self._timeout:g} s"))
            self.start(place)

    def _take(self, place: int) -> None:
        """Take a worker's answer."""
        future, order = self._busy.pop(place)
        try:
            drawn = future.result()
        except BaseException as error:
            self._lost = _reason(error)
            self._fail(order, place, ArmError(f"a worker failed: {self._lost}"))
            self.start(place)
            return
        self._idle.append(place)
        if isinstance(drawn, tuple):
            rows, cost = drawn
            order.answer = rows if isinstance(rows, Tensor) else pickle.loads(rows), cost
        elif isinstance(drawn, ArmError):
            self._fail(order, place, drawn)
        else:
            raise drawn  # not the arm's fault, and no other worker will fare better

    def _fail(self, order: Order, place: int, error: ArmError) -> None:
        order.tried.append(place)
        if len(order.tried) > RETRIES:
            order.answer = error
        else:
            self.waiting.appendleft(order)


def _reason(error: BaseException) -> str:
    if isinstance(error, BrokenProcessPool):
        return "its process died (a script that starts workers needs `if __name__ == '__main__':`)"
    return brief(error)
