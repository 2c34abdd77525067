"""Arms with known truth, and fair comparisons of policies on them."""

from tm_bandit.simulation.arms import (
    SimulatedArm,
    bank_arm,
    class_bank,
    gaussian_arm,
    paired_gaussian_arm,
    probability_arm,
)
from tm_bandit.simulation.paper_scale import paper_scale_arms
from tm_bandit.simulation.trials import (
    Contestant,
    Scenario,
    Trial,
    average_regret,
    compare,
    mean_and_error,
    optimal_pick_ratio,
    run_trial,
    settles_after,
)

__all__ = [
    "Contestant",
    "Scenario",
    "SimulatedArm",
    "Trial",
    "average_regret",
    "bank_arm",
    "class_bank",
    "compare",
    "gaussian_arm",
    "mean_and_error",
    "optimal_pick_ratio",
    "paired_gaussian_arm",
    "paper_scale_arms",
    "probability_arm",
    "run_trial",
    "settles_after",
]
