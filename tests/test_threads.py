"""Small work is done in one thread, whatever the machine has: next to other programs, threads wait for each other.

That the demo keeps to it as well is tested where the demo is.
"""

import pytest

from tests._threads import MEASURABLE, shares_of_other_threads

SETUP = """
import torch
from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, OptimisticKID, ReferenceStatistics

rows = torch.randn(500, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
reference = ReferenceStatistics.from_features(rows, keep_rows=True)
arm = lambda mean: (lambda n, generator: mean + torch.randn(n, 32, generator=generator))
arms = {str(mean): arm(mean) for mean in (0.0, 0.1, 0.2)}
whole = torch.nn.Identity()
"""

ALGEBRA = """
for metric in (OptimisticFID(whole, reference), OptimisticKID(whole, reference), OptimisticIS(whole)):
    ModelSelector(metric, arms, batch_size=20, budget=1200, stop="budget").run(progress=False)
"""

THREADED = """
x = torch.randn(1000, 1000)
for _ in range(100):
    x = (x @ x).clamp(-1, 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(not MEASURABLE, reason="needs Linux")
def test_other_threads_have_nothing_to_do_and_would_be_seen(tmp_path):
    # The first selection loads libraries, which start their threads.
    *_, algebra, threaded = shares_of_other_threads(tmp_path, SETUP, ALGEBRA, ALGEBRA, THREADED)
    assert algebra < 0.02
    assert threaded > 0.05
