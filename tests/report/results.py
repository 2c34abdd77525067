"""Results with known numbers."""

import math

from tm_bandit import SelectionResult
from tm_bandit.report.result import HISTORY_COLUMNS


def make_result(num_arms=4, pulls=60, step=2.0, compared=False, **changes):
    """A run with known numbers: arm 0 is the best, by `step` before the next, and it got most of the samples."""
    names = ["ema/cfg1.5", "raw <b>&", *(f"arm {index}" for index in range(2, num_arms))][:num_arms]
    history = {name: [] for name in HISTORY_COLUMNS}
    counts = dict.fromkeys(names, 0)
    rows = {}
    for pull in range(pulls):
        at = pull if pull < num_arms else (0 if pull % 5 else pull % num_arms)
        name = names[at]
        counts[name] += 10
        n = counts[name]
        width = math.inf if n == 10 else 12 / math.sqrt(n)
        value = 5.0 + step * at + math.sin(pull) / math.sqrt(n)
        rows[name] = {"estimate": value + 20 / n, "debiased": value, "lower": value - width, "upper": value + width}
        entry = {"samples": 10 * (pull + 1), "arm": name, "n": n, "best": names[0], "status": "open", **rows[name]}
        for column in HISTORY_COLUMNS:
            history[column].append(entry[column])
    total = 10 * pulls
    arms = [
        {
            "arm": name,
            "pulls": n // 10,
            "n": n,
            "share": n / total,
            "verdict": "best" if name == names[0] else "worse (likely)",
        }
        | rows[name]
        for name, n in counts.items()
    ]
    for row in arms if compared else ():
        behind = row["debiased"] - rows[names[0]]["debiased"]
        width = 6 / math.sqrt(row["n"])
        row |= {"behind": behind, "behind_lower": behind - width, "behind_upper": behind + width, "correlation": 0.9}
        if row["arm"] == names[0]:
            row |= dict.fromkeys(("behind", "behind_lower", "behind_upper", "correlation"), math.nan)
        elif row["behind_lower"] < 0:
            row["verdict"] = "tie"
    fields = {"uniform_cost": 1234, "stopped_by": "stop", "budget": 1000, "settings": {"policy": "ucb"}} | changes
    tied = [row["arm"] for row in arms if row["verdict"] == "tie"]
    status = "tie" if tied else "likely"
    fields = {"tied": tied} | fields
    return SelectionResult(names[0], status, "OptimisticFID", False, arms, history=history, **fields)


def make_nan_result():
    """A run that ended before anything could be said about its only arm."""
    scores = ("estimate", "debiased", "lower", "upper")
    row = {"arm": "a", "pulls": 1, "n": 5, "share": 1.0, "verdict": "best"} | dict.fromkeys(scores, math.nan)
    history = {"samples": [5], "arm": ["a"], "n": [5], "best": ["a"], "status": ["open"]}
    history |= {name: [math.nan] for name in scores}
    return SelectionResult("a", "budget_exhausted", "OptimisticFID", False, [row], history=history)
