"""Numbers of version 0.1: a metric may be rebuilt inside, what it says must stay.

Recorded anew since: the ends of the witness intervals, which promise nothing below 200 samples, and the standard error
of the debiased distance.

``python -m tests.metrics.test_golden`` records them anew, which is right only if a number was wrong.
"""

import json
from pathlib import Path

import pytest
import torch

from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.metrics.base import LOSS_FIELDS

GOLDEN = Path(__file__).parent.parent / "data" / "golden_metrics.json"
BATCHES = (3, 1, 7, 2, 12, 25, 70)
FITS = [{"fitting": fitting, "width": width} for fitting in ("crossfit", "predictable") for width in ("mixture", "lil")]
REPRODUCED = [
    {"bound": "paper"},
    {"bound": "paper", "paper_as_printed": True, "horizon": 10},
    {"bound": "bounded", "norm_bound": 40.0},
    {"bound": "bounded", "norm_bound": 40.0, "paper_as_printed": True},
    {"bound": "authors", "kappa": 1.5},
    {"bound": "authors", "threshold": 0.5},
    {"bound": "naive"},
    {"bound": "none"},
]
FRECHET = [
    *({"dim": dim, **fit} for dim in (6, 80) for fit in FITS),
    *({"dim": 6, "max_rows": 20, **fit} for fit in FITS),
    *({"dim": dim, **options} for dim in (6, 80) for options in REPRODUCED),
]
INCEPTION = [
    {"classes": classes, "real": real, **options}
    for classes, real in ((5, 0), (60, 9))
    for options in (*FITS, {"bound": "paper"}, {"bound": "authors"}, {"bound": "naive"}, {"bound": "none"})
]


def frechet(dim, **options):
    generator = torch.Generator().manual_seed(dim)
    scale = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.5

    def draw(count):
        return torch.randn(count, dim, generator=generator, dtype=torch.float64) * scale

    metric = OptimisticFID("none", ReferenceStatistics.from_features(draw(3 * dim)), **options)
    return metric, 1.2 * draw(sum(BATCHES)) + 0.3


def inception(classes, real, **options):
    generator = torch.Generator().manual_seed(classes)

    def draw(count):
        return (3 * torch.randn(count, classes, generator=generator, dtype=torch.float64)).softmax(1)

    metric = OptimisticIS("none", **options)
    if real:
        metric.update_probs(draw(real), real=True)
    return metric, draw(sum(BATCHES))


def looks(metric, rows):
    """What the metric says after each batch."""
    found = []
    for batch in rows.split(BATCHES):
        metric.update_rows(batch)
        values = (metric.compute(), metric.estimate(), *metric.bounds(), *metric.debiased())
        losses = metric.losses(LOSS_FIELDS)
        found.append([*(losses[name] for name in LOSS_FIELDS), *map(float, values)])
    return found


def named(cases):
    return {json.dumps(case): case for case in cases}


CASES = {name: (frechet, case) for name, case in named(FRECHET).items()}
CASES |= {name: (inception, case) for name, case in named(INCEPTION).items()}


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_first_version(golden, name):
    make, case = CASES[name]
    for found, expected in zip(looks(*make(**case)), golden[name], strict=True):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_nothing_else_is_recorded(golden):
    assert set(golden) == set(CASES)


if __name__ == "__main__":
    numbers = {
        name: [[float(f"{value:.12g}") for value in look] for look in looks(*make(**case))]
        for name, (make, case) in CASES.items()
    }
    GOLDEN.write_text(json.dumps(numbers, separators=(",", ":")).replace('],"', '],\n"') + "\n")
