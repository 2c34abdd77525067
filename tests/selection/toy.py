"""A metric that is an ordinary mean, so that every number of the selector can be checked by hand."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from tm_bandit import Pull
from tm_bandit.errors import InputError
from tm_bandit.metrics import Debiased, Interval, OptimisticMetric, Traits


class MeanMetric(OptimisticMetric):
    """Loss = mean of the rows (one column), with a bias of ``bias / n`` on the plug-in side."""

    higher_is_better = False
    is_differentiable = False
    full_state_update = False
    values: list[Tensor]

    def __init__(self, delta: float = 0.05, bound: str = "witness", bias: float = 0.0, **kwargs) -> None:
        super().__init__(**kwargs)
        self.delta, self.bound, self.bias = delta, bound, bias
        self.asked: list[tuple[str, ...]] = []
        self._known = (0, 0.0, 0.0)
        self.add_state("values", default=[], dist_reduce_fx="cat")

    @property
    def traits(self) -> Traits:
        certain = self.bound in ("witness", "paper")
        return Traits(False, "unbiased", "anytime" if certain else "none", "none", self.bound, self.bound == "witness")

    def extract(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1).mean(1, keepdim=True)

    def check_rows(self, rows: Tensor) -> Tensor:
        if rows.ndim != 2 or rows.shape[1] != 1:
            raise InputError(f"Expected rows of shape (N, 1), but got {tuple(rows.shape)}; hand in one column.")
        if not torch.isfinite(rows).all():
            raise InputError("Expected finite rows, but got NaN or inf; check the sampler.")
        return rows

    def add_rows(self, rows: Tensor) -> None:
        self.values.append(rows.double())

    def compute(self) -> Tensor:
        return self.bounds().lower

    def _moments(self) -> tuple[float, float]:
        if self._known[0] != len(self.values):
            x = torch.cat(self.values)
            self._known = (len(self.values), float(x.mean()), float(x.std() / len(x) ** 0.5))
        return self._known[1], self._known[2]

    def estimate(self) -> Tensor:
        return torch.tensor(self._moments()[0] + self.bias / self.num_samples)

    def bounds(self) -> Interval:
        mean, se = self._moments()
        width = math.sqrt(2 * math.log(2 * self.num_samples**2 / self.delta)) * se
        return Interval(torch.tensor(mean - width), torch.tensor(mean + self.bias / self.num_samples + width))

    def debiased(self) -> Debiased:
        mean, se = self._moments()
        return Debiased(torch.tensor(mean), torch.tensor(se))

    @property
    def num_samples(self) -> int:
        return sum(len(v) for v in self.values)

    @property
    def burn_in_met(self) -> bool:
        return self.num_samples >= 2

    @property
    def min_samples(self) -> int:
        return 2

    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        fields = tuple(fields)
        self.asked.append(fields)
        mean, se = self._moments()
        lower, upper = self.bounds()
        numbers = {
            "witness": mean,
            "stderr": se,
            "estimate": float(self.estimate()),
            "optimistic": float(lower),
            "pessimistic": float(upper),
            "debiased": mean,
            "debiased_stderr": se,
        }
        return {name: numbers[name] for name in fields}

    def score_from_loss(self, loss: float) -> float:
        return loss

    def row_scores(self, count: int) -> Tensor | None:
        return torch.cat(self.values)[:count, 0] if self.bound == "witness" else None


def gaussian(mean: float, std: float = 1.0):
    """A sampler of rows of one column."""

    def sample(num_samples: int, generator: torch.Generator) -> Tensor:
        return mean + std * torch.randn(num_samples, 1, generator=generator)

    return sample


def pull(arm, size=5):
    """The next pull of an arm, under way."""
    return arm.reserve(Pull(arm.name, arm.next_draw, size, seed=0))


def rows(value=0.0, size=5):
    """Rows of one column."""
    return value + torch.arange(size, dtype=torch.float64).unsqueeze(1)
