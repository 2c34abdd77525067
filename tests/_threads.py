"""How much of the work of some code is done by threads other than the first, measured in a process of its own."""

import os
import subprocess
import sys

#: What comes before counts for nothing: libraries that are loaded have threads of their own.
_BEGIN = """
import os
from pathlib import Path
import torch, tm_bandit, tm_bandit.demo

def ticks():
    found = {}
    for stat in Path("/proc/self/task").glob("*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        found[int(stat.parent.name)] = int(fields[11]) + int(fields[12])
    return found

shares = []
"""

#: Two threads are to be had, whatever the code before this one has left.
_MEASURED = """
torch.set_num_threads(2)
before = ticks()
{code}
spent = {{task: count - before.get(task, 0) for task, count in ticks().items()}}
shares.append(sum(spent.values()) / spent.get(os.getpid(), float("nan")) - 1)
"""

#: Without /proc, which tells the processor time of each thread, every share is nan.
MEASURABLE = os.path.exists("/proc/self/task")


def shares_of_other_threads(folder, *codes):
    """Return, for codes that run one after the other, the processor time of other threads by that of the first."""
    program = "".join([_BEGIN, *(_MEASURED.format(code=code) for code in codes), "print(*shares)"])
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [float(share) for share in done.stdout.splitlines()[-1].split()]
