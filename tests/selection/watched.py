"""The folder of a training run, and a watcher over it; run as a script, this kills a watcher again and again."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.selection.watcher import Watcher


class Point(nn.Module):
    """Samples around a point."""

    def __init__(self):
        super().__init__()
        self.at = nn.Parameter(torch.zeros(3))

    def sample(self, num_samples, generator):
        return self.at + torch.randn(num_samples, 3, generator=generator)


def save(path, at, mtime=None):
    """What a trainer would have written; the time of writing is part of what is tested."""
    torch.save({"at": torch.full((3,), at)}, path)
    if mtime is not None:
        os.utime(path, ns=(mtime * 10**9, mtime * 10**9))


def watcher(folder, **kwargs):
    reference = ReferenceStatistics(torch.zeros(3), torch.eye(3), 10_000)
    settings = {"budget": 120, "batch_size": 10, "settle": 0.0, "say": lambda text: None, "stop": "budget", **kwargs}
    return Watcher(folder, Point, OptimisticFID("none", reference), samples="features", **settings)


def outcome(folder):
    """Everything that a watcher has found."""
    return json.loads((Path(folder) / "tm_bandit" / "selection.json").read_text())


def kill_again_and_again(folder, times):
    """Start watchers by forking, which costs no imports, and kill them; return how many were killed in mid-work."""
    moments, killed = random.Random(0), 0
    for _ in range(times):
        child = os.fork()
        if child == 0:
            try:
                watcher(folder).run(every=0.01)
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0.01, 0.25))
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return killed


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(kill_again_and_again(Path(sys.argv[1]), int(sys.argv[2])))
