"""Small work is done in one thread, whatever the machine has: beside other programs, threads wait for each other."""

import os
import subprocess
import sys

import pytest

ALGEBRA = """
import torch
from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, OptimisticKID, ReferenceStatistics

rows = torch.randn(500, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
reference = ReferenceStatistics.from_features(rows, keep_rows=True)
arm = lambda mean: (lambda n, generator: mean + torch.randn(n, 32, generator=generator))
arms = {str(mean): arm(mean) for mean in (0.0, 0.1, 0.2)}
whole = torch.nn.Identity()
for metric in (OptimisticFID(whole, reference), OptimisticKID(whole, reference), OptimisticIS(whole)):
    ModelSelector(metric, arms, batch_size=20, budget=1200, stop="budget").run(progress=False)
"""

DEMO = """
from tm_bandit.demo import main
main(["--fast", "--out", "out"])
"""

#: What comes before counts for nothing: libraries that are loaded have threads of their own.
BEGIN = """
import os
from pathlib import Path
import torch, tm_bandit, tm_bandit.demo
torch.set_num_threads(2)

def ticks():
    found = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found[int(task.name)] = int(fields[11]) + int(fields[12])
    return found

before = ticks()
"""

#: Prints the share of the processor's time that went to threads other than the first.
MEASURE = """
spent = {task: count - before.get(task, 0) for task, count in ticks().items()}
first = spent.pop(os.getpid())
print(sum(spent.values()) / first)
"""


def share_of_other_threads(code, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + code + MEASURE]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
@pytest.mark.parametrize("code", [ALGEBRA, DEMO], ids=["algebra", "demo"])
def test_other_threads_have_nothing_to_do(tmp_path, code):
    assert share_of_other_threads(code, tmp_path) < 0.02


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
def test_the_measurement_sees_threads(tmp_path):
    code = "x = torch.randn(1000, 1000)\nfor _ in range(100): x = (x @ x).clamp(-1, 1)\n"
    assert share_of_other_threads(code, tmp_path) > 0.05
