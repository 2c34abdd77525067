"""Pulls under way at several workers: the selection is a function of the seed, and nothing is lost."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.execution.parts import Normal, Sly, numbers, selector_of
from tm_bandit.errors import ArmError, InputError, WeightsError
from tm_bandit.execution.hand_out import PER_WORKER, pulls_by_workers
from tm_bandit.execution.kit import draw, forget, keep
from tm_bandit.execution.workers import ExecutorWorkers, Workers
from tm_bandit.selection.running import kit_of


class Scripted(Workers):
    """Workers in this process that answer in an order that the test decides, and misbehave when it says so."""

    def __init__(self, num_workers, order=lambda pulls: 0, deeds=()):
        super().__init__(num_workers)
        self.order, self.deeds = order, list(deeds)
        self.begun, self.held, self.most, self.started = [], [], 0, []

    def open(self, kit):
        self.kit = kit
        keep(kit)

    def start(self, place):
        self.started.append(place)
        ready = Future()
        ready.set_result(None)
        return ready

    def submit(self, place, pull):
        future = Future()
        self.begun.append((place, pull))
        self.held.append((pull, future))
        self.most = max(self.most, len(self.held))
        # Answers come when all places are taken, or when nothing more comes.
        threading.Timer(0.002, self.answer).start()
        return future

    def answer(self):
        pull, future = self.held.pop(self.order([pull for pull, _ in self.held]))
        deed = self.deeds.pop(0) if self.deeds and (pull.arm, pull.draw) == ("mid", 1) else None
        if isinstance(deed, Exception):
            future.set_exception(deed)
        elif deed != "hang":
            future.set_result(draw(self.kit.token, pull))

    def close(self):
        forget(self.kit)


def run(workers, timeout=None, **kwargs):
    selector = selector_of(**kwargs)
    result = selector.run(progress=False, workers=workers, timeout=timeout)
    return selector, result


def test_the_order_of_answers_changes_nothing():
    first = run(Scripted(3, lambda pulls: 0))[1]
    last = run(Scripted(3, lambda pulls: -1))[1]
    middle = run(Scripted(3, lambda pulls: len(pulls) // 2))[1]
    assert numbers(first) == numbers(last) == numbers(middle)
    assert first.total_samples == 320
    assert first.stopped_by == "budget"


@pytest.mark.parametrize("settings", [{"policy": "thompson"}, {"stop": "certified", "budget": 4000}], ids=str)
def test_nor_with_other_policies_and_rules(settings):
    one, two = (run(Scripted(4, order), **settings)[1] for order in (lambda pulls: 0, lambda pulls: -1))
    assert numbers(one) == numbers(two)
    assert one.stopped_by == two.stopped_by == ("stop" if "stop" in settings else "budget")


def test_one_worker_with_one_pull_under_way_is_the_plain_loop(monkeypatch):
    monkeypatch.setattr("tm_bandit.execution.hand_out.PER_WORKER", 1)
    assert numbers(run(Scripted(1))[1]) == numbers(selector_of().run(progress=False))


def test_every_worker_has_work_and_no_more_than_one_pull():
    workers = Scripted(3)
    run(workers)
    assert workers.most == 3
    assert {place for place, _ in workers.begun} == {0, 1, 2}
    assert PER_WORKER >= 1


def test_a_pull_of_a_worker_that_died_goes_to_another():
    workers = Scripted(3, deeds=[RuntimeError("the node is gone")] * 2)
    selector, result = run(workers)
    assert numbers(result) == numbers(run(Scripted(3))[1]), "as if nothing had happened"
    assert result.retired == {}
    tries = [place for place, pull in workers.begun if (pull.arm, pull.draw) == ("mid", 1)]
    assert len(set(tries)) == len(tries) == 3
    assert len(workers.started) == 5, "two were replaced"
    assert selector.spent == 320


def test_after_two_retries_the_arm_is_retired_with_the_reason():
    workers = Scripted(3, deeds=[RuntimeError("the node is gone")] * 3)
    selector, result = run(workers)
    assert result.retired == {"mid": "a worker failed: RuntimeError: the node is gone"}
    assert result.best == "near"
    assert result.total_samples == 320, "the others get what is left"
    assert selector._arms["near"].pending == selector._arms["far"].pending == 0


def test_a_worker_that_hangs_is_replaced():
    workers = Scripted(2, deeds=["hang"])
    result = run(workers, timeout=0.3)[1]
    assert numbers(result) == numbers(run(Scripted(2))[1])
    assert len(workers.started) == 3
    hanging = Scripted(2, deeds=["hang"] * 3)
    assert run(hanging, timeout=0.1)[1].retired == {"mid": "a worker took longer than the timeout of 0.1 s"}


def test_an_arm_that_raises_is_tried_elsewhere_too(tmp_path):
    (tmp_path / "once").mkdir()
    (tmp_path / "often").mkdir()
    arms = {"a": Normal(0.0), "b": Sly(0.2, tmp_path / "once", "raise", 2)}
    result = run(Scripted(2), arms=arms)[1]
    assert numbers(result) == numbers(run(Scripted(2), arms={"a": Normal(0.0), "b": Normal(0.2)})[1])
    arms = {"a": Normal(0.0), "b": Sly(0.2, tmp_path / "often", "raise", 99)}
    result = run(Scripted(2), arms=arms)[1]
    assert result.retired == {"b": "the sampler raised OSError: the disk is gone"}
    assert len(list((tmp_path / "often").iterdir())) <= 9, "what waits for a retired arm is not drawn"


def test_if_all_arms_fail_it_says_so(tmp_path):
    with pytest.raises(ArmError, match="the disk is gone"):
        run(Scripted(2), arms={"a": Sly(0.0, tmp_path, "raise", 99)})


def test_what_is_no_arms_fault_ends_the_run_and_gives_pulls_back():
    class Without(Scripted):
        def answer(self):
            self.held.pop()[1].set_result(WeightsError("no weights"))

    selector = selector_of()
    with pytest.raises(WeightsError, match="no weights"):
        selector.run(progress=False, workers=Without(2))
    assert selector.retired == {}
    assert all(arm.pending == 0 for arm in selector._arms.values())
    assert selector.run(progress=False).total_samples == 320


def test_ctrl_c_gives_back_what_is_under_way():
    class Interrupting(Scripted):
        def submit(self, place, pull):
            if len(self.begun) == 20:
                raise KeyboardInterrupt
            return super().submit(place, pull)

    selector, result = run(Interrupting(2))
    assert result.stopped_by == "interrupt"
    assert 0 < selector.spent < 320
    assert all(arm.pending == 0 for arm in selector._arms.values())
    assert selector.run(progress=False).total_samples == 320


def test_no_worker_is_left():
    class Doomed(Scripted):
        def start(self, place):
            ready = Future()
            ready.set_exception(OSError("no memory"))
            return ready

    with pytest.raises(InputError, match=r"none is left \(a worker could not be started: OSError: no memory\)"):
        run(Doomed(2))


def test_threads(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        one = run(pool, seconds=0.003)[1]
        two = run(pool, seconds=0.001)[1]
    assert numbers(one) == numbers(two)


def test_threads_that_hang_lose_their_place(tmp_path):
    event = threading.Event()

    class Stuck(Normal):
        def __call__(self, num_samples, generator):
            if not event.is_set() and threading.current_thread().name.endswith("_0"):
                event.wait(20)
            return super().__call__(num_samples, generator)

    with ThreadPoolExecutor(3) as pool:
        result = run(ExecutorWorkers(pool), timeout=0.3, arms={"a": Stuck(0.0), "b": Normal(1.0)})[1]
        event.set()
    assert result.retired == {}
    assert result.total_samples == 320


def test_a_timeout_of_ages_is_no_timeout():
    assert run(Scripted(2), timeout=1e300)[1].best == run(Scripted(2))[1].best


def test_bad_timeout():
    with pytest.raises(InputError, match="timeout"):
        list(pulls_by_workers(selector_of(), kit_of(selector_of()), Scripted(2), timeout=-1.0))


def test_a_worker_goes_on_before_what_it_drew_is_told():
    workers, selector, begun = Scripted(1), selector_of(), []
    tell = selector.tell

    def told(*args):
        begun.append(len(workers.begun))
        tell(*args)

    selector.tell = told
    selector.run(progress=False, workers=workers)
    assert begun[:3] == [2, 3, 4]
