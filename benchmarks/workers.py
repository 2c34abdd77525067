"""What workers gain: two against one, the selector's own time per pull, and a thousand of them that only sleep."""

from __future__ import annotations

import itertools
import resource
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.engine_cost import Table
from benchmarks.replay import Replay
from benchmarks.scenarios import fid_metric
from tm_bandit import ModelSelector
from tm_bandit.execution import Sampler
from tm_bandit.metrics.base import OptimisticMetric

#: Seconds that a sampler takes for a pull.
PULL = 0.05

#: Samples of a pull.
BATCH = 5


def selector_of(metric: OptimisticMetric, arms: Mapping[str, Sampler], pulls: int) -> ModelSelector:
    """Return a selector that makes so many pulls, whatever it finds."""
    return ModelSelector(metric, arms, batch_size=BATCH, budget=BATCH * pulls, stop="budget", samples="features")


class Sleeper:
    """A sampler whose time passes elsewhere, as on a GPU."""

    def __init__(self, level: float, seconds: float) -> None:
        self.level, self.seconds = level, seconds

    def __call__(self, num_samples: int, generator: torch.Generator) -> torch.Tensor:
        """Sleep, then return rows."""
        time.sleep(self.seconds)
        return self.level + torch.randn(num_samples, 8, generator=generator)


def two_against_one(pulls: int) -> dict[str, float]:
    """Pulls per second of one and of two processes; starting them is not counted."""
    rates = {}
    for workers in (1, 2):
        arms = {f"arm {i}": Sleeper(0.3 * i, PULL) for i in range(5)}
        metric = fid_metric(torch.zeros(8), torch.eye(8))("witness")
        selector = selector_of(metric, arms, pulls)
        times: list[float] = []
        tell = selector.tell

        def timed(*args: object, tell=tell, times=times) -> None:
            tell(*args)
            times.append(time.perf_counter())

        selector.tell = timed  # type: ignore[method-assign]
        selector.run(progress=False, workers=workers)
        rates[str(workers)] = (len(times) - 1) / (times[-1] - times[0])
    return rates


def own_time(pulls: int) -> float:
    """Milliseconds that the selector itself takes for a pull with one thread that draws at once."""
    arms = {f"arm {i}": Sleeper(0.3 * i, 0.0) for i in range(20)}
    selector = selector_of(fid_metric(torch.zeros(8), torch.eye(8))("witness"), arms, pulls)
    with ThreadPoolExecutor(1) as pool:
        start = time.process_time()
        result = selector.run(progress=False, workers=pool)
    return (time.process_time() - start) / len(result.history["arm"]) * 1e3


class AtOnce(Executor):
    """As many workers that need no time and no threads: what is left is the selector, and drawing itself."""

    _max_workers = 1000

    def submit(self, function, /, *args, **kwargs):
        """Call the function here and now."""
        answer: Future = Future()
        answer.set_result(function(*args, **kwargs))
        return answer


def thousand(pulls: int, pool: Executor, seconds: float) -> tuple[float, float, float]:
    """What a thousand workers get on 200 arms, in the second half of the run.

    Args:
        pulls: how many in all.
        pool: the workers.
        seconds: how long each of them sleeps for a pull.

    Returns:
        Pulls per second, the same per second of this process's own time (on a busy machine it gets but a part of each
        second), and kilobytes per pull.
    """
    template = fid_metric(torch.zeros(2), torch.eye(2))("witness")
    metric = Replay([Table(10.0 + 0.02 * i) for i in range(200)], template)

    def sampler(i: int):
        def sample(num_samples: int, generator: torch.Generator) -> torch.Tensor:
            if seconds:
                time.sleep(seconds)
            noise = torch.rand(num_samples, 1, generator=generator)  # no two draws are the same
            return torch.cat([torch.full_like(noise, i), noise], dim=1)

        return sample

    arms = {f"arm {i}": sampler(i) for i in range(200)}
    selector = selector_of(metric, arms, pulls)
    marks: list[tuple[float, float, int]] = []
    tell, told = selector.tell, itertools.count(1)
    half = pulls // 2

    def timed(*args: object) -> None:
        tell(*args)
        # Not at every pull: to add up the time of a thousand threads takes half as long as the pull itself.
        if next(told) in (half, pulls):
            now = time.perf_counter(), time.process_time()
            marks.append((*now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

    selector.tell = timed  # type: ignore[method-assign]
    with pool:
        selector.run(progress=False, workers=pool)
    wall, own, memory = (last - middle for middle, last in zip(*marks, strict=True))
    return (pulls - half) / wall, (pulls - half) / own, memory / (pulls - half)


def main(full: bool, out: Path) -> None:
    """Measure, print and write a table."""
    torch.set_num_threads(1)
    rates = two_against_one(400 if full else 100)
    milliseconds = own_time(4000 if full else 1000)
    pulls = 40_000 if full else 10_000
    rate, own_rate, memory = thousand(pulls, ThreadPoolExecutor(1000), 1.0)
    _, alone, books = thousand(pulls, AtOnce(), 0.0)
    lines = [
        "| what | measured | asked for |",
        "|---|---|---|",
        f"| two processes against one, {1000 * PULL:.0f} ms per pull | {rates['2'] / rates['1']:.2f} x | 1.7 x |",
        f"| the selector's own time per pull, 20 arms | {milliseconds:.2f} ms | 5 ms |",
        f"| pulls handed out, 200 arms, 1,000 threads that sleep 1 s | {rate:.0f} a second | 500 a second |",
        f"| the same per second of the processor, which the threads share | {own_rate:.0f} | |",
        f"| the same with workers that answer at once, without threads | {alone:.0f} | |",
        f"| memory per pull in the second half | {memory:.2f} kB | flat |",
        f"| the same without threads, which have memory of their own | {books:.2f} kB | |",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    (out / "workers.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    folder = Path(__file__).parent / "results"
    main(full="--full" in sys.argv, out=folder)
