"""Tables and plots of the selection benchmark."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scenarios import scenario
from benchmarks.selection import (
    AUTHORS,
    BATCH,
    DEFAULT,
    EXTRA,
    IDENTIFY,
    MARK,
    RIVALS,
    STOP_BATCH,
    UNIFORM,
    final,
    identification,
)

Entries = Mapping[str, Sequence[dict[str, Any]]]


def render(results: Mapping[str, Any]) -> str:
    """Return all tables as Markdown."""
    by_scenario: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in results["regret_task"]:
        by_scenario[entry["scenario"]].append(entry)
    parts = ["# Selection benchmark", _setting(results["plan"])]
    if by_scenario:
        more = {name: list(entries) for name, entries in by_scenario.items()}
        for entry in results["identify_task"]:
            more[entry["scenario"]].append(entry)
        parts += [_regret(by_scenario), _identification(more, results["plan"])]
    if results["stop_task"]:
        parts.append(_stopping(results["stop_task"]))
    if results["blind_task"]:
        parts.append(_blind(results["blind_task"], results["plan"]))
    if results.get("cost"):
        parts.append(_cost(results["cost"]))
    return "\n\n".join(parts) + "\n"


def _setting(plan: Mapping[str, Any]) -> str:
    return (
        f"Batch {BATCH}, {plan['pulls']} pulls ({plan['large_pulls']} above 256 dimensions; there the plug-in estimate "
        f"of the baselines is held until an arm's sample count has grown by {plan['large_refresh']:.0%}). The rows say "
        "how many trials they have, each with the arms in another order unless arms join. The constants of the default "
        "policy and of the recommendation were chosen on these same scenarios, after trying some hundred variants, but "
        f"with other seeds: here they begin at {plan['first_seed']}. (What the default demands before it passes over "
        "an arm was chosen on those too, but last changed after a look at these: 'diverse but bad' had 0.0512.) Regret "
        "is in the metric's unit; ± is one standard "
        "error over the trials. All start with two batches per arm, the selector's default for this batch size "
        "(uniform evaluation with one, which is the same), and the last column compares those that do. Greedy from one "
        "batch is not among them: it shows what the second batch costs if the first is enough.\n\n"
        "All arms but those of the rows with 'real' are simulated. 'diverse and good' is the counterpart of 'diverse "
        "but bad': in passing over beaten arms, the default is likely to err there. 'authors' demo' has the three "
        "Gaussians of the authors' script. 'DINOv2-sized' arms are Gaussians in 1,024 dimensions with the published "
        "norms and distances of DINOv2 features, not such features. The real ones are CIFAR-10 images with graded "
        "corruption, as EfficientNet-Lite0 sees them; they are not part of the repository (`TM_BANDIT_DATA` names "
        "their folder), and without them these rows are missing."
    )


def _regret(by_scenario: Entries) -> str:
    names = list(dict.fromkeys(name for entries in by_scenario.values() for name in entries[0]["contestants"]))
    lines = [
        "## Average regret [optimal pick ratio] at the end",
        "",
        "| scenario | trials | " + " | ".join(names) + " | half of the authors' | not worse than the best baseline |",
        "|" + "---|" * (len(names) + 4),
    ]
    for entries in by_scenario.values():
        cells = [entries[0]["title"], str(len(entries))]
        for name in names:
            (regret, error), (ratio, _) = final(entries, name, "regret"), final(entries, name, "ratio")
            cells.append("-" if math.isnan(regret) else f"{regret:.3g}±{error:.1g} [{ratio:.2f}]")
        lines.append("| " + " | ".join([*cells, *_promises(entries)]) + " |")
    return "\n".join(lines)


def _promises(entries: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Say whether the default has half of the authors' regret, and does not lose to the best baseline."""
    mine, error = final(entries, DEFAULT.name, "regret")
    authors, _ = final(entries, AUTHORS.name, "regret")
    half = "yes" if mine <= 0.5 * authors else f"no ({mine / authors:.2f})"
    rivals = {name: final(entries, name, "regret") for name in RIVALS}
    best = min(rivals, key=lambda name: rivals[name][0])
    slack = 2.0 * math.hypot(error, rivals[best][1])
    return half, "yes" if mine <= rivals[best][0] + slack else f"no ({best})"


def _identification(by_scenario: Entries, plan: Mapping[str, Any]) -> str:
    rows: list[str] = []
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for name, entries in by_scenario.items():
        arms = scenario(name)
        assert arms is not None
        pulls = min(entry["pulls"] for entry in entries)
        if name in EXTRA or arms.last_join >= pulls:
            continue
        right, end = arms.acceptable(), (pulls - arms.last_join) * BATCH
        found = {c.name: identification(entries, c.name, right, arms.last_join) for c in (DEFAULT, IDENTIFY, UNIFORM)}
        mine, theirs = found[IDENTIFY.name], found[UNIFORM.name]
        if mine is None:
            text, ratio = ("neither", 1.0) if theirs is None else (f"less than {theirs / end:.1f}", theirs / end)
        else:
            ratio = (theirs or end) / mine
            text = f"{ratio:.1f}" if theirs else f"more than {ratio:.1f}"
        ratios[arms.last_join > 0].append(ratio)
        cells = [entries[0]["title"], str(len(entries))]
        cells += [str(found[c.name] or f"not by {end}") for c in (DEFAULT, IDENTIFY, UNIFORM)]
        rows.append("| " + " | ".join([*cells, text]) + " |")
    joined, fixed = ratios[True], ratios[False]
    lines = [
        "## Samples until the recommendation is within 2 % of the best score in nine of ten trials, and stays so",
        "",
        *_further_trials(plan),
    ]
    if joined:
        lines += ["If arms join, samples are counted from the moment the last one does.", ""]
    lines += [
        "| scenario | trials | default | identify | uniform, plain estimate | times fewer (identify) |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    if rows:
        lines += ["", f"Median over the scenarios: {statistics.median(joined + fixed):.2f} times fewer."]
    if joined and fixed:
        lines[-1] += f" Over those in which no arm joins: {statistics.median(fixed):.2f}."
    return "\n".join(lines)


def _further_trials(plan: Mapping[str, Any]) -> list[str]:
    if not plan["more_trials"]:
        return []
    pulls = plan["more_pulls"]
    return [
        f"Nine of ten is a coarse measure in {plan['trials']} trials. The small scenarios in which no arm joins have "
        f"{plan['more_trials']} more, of {pulls} pulls, and are looked at up to there: for them, stays so means until "
        f"{BATCH * pulls:,} samples; for the others, until the end.",
        "",
    ]


def _stopping(entries: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "## Stopping early",
        "",
        f"delta = 0.05, batch {STOP_BATCH}. The runs re-pair independent paths of the arms, as many per arm as the "
        "table says, so an error rate of 0 means rare, not never. Wrong is a share of all runs. If no arm joins, "
        "a run that has not stopped by its budget names no winner; if arms join, a run continues when one does, and "
        "is wrong if any of its winners was not the best of the arms that were there.",
        "",
        "| scenario | rule | budget | runs | paths per arm | stopped | wrong | median samples | uniform would take |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for title, stop in sorted({(entry["title"], entry["stop"]) for entry in entries}):
        blocks = [entry for entry in entries if (entry["title"], entry["stop"]) == (title, stop)]
        runs, paths, wrong = (sum(block[key] for block in blocks) for key in ("runs", "paths", "wrong"))
        samples, uniform = ([n for block in blocks for n in block[key]] for key in ("samples", "uniform"))
        cells = [
            title,
            stop,
            str(blocks[0]["budget"]),
            str(runs),
            str(paths),
            f"{len(samples) / runs:.0%}",
            f"{wrong / runs:.1%}",
        ]
        cells += [f"{statistics.median(found):.0f}" if found else "-" for found in (samples, uniform)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _blind(entries: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> str:
    lines = [
        "## The blind spot: rivals that are bad only through rotation of their covariance",
        "",
        f"Default policy, {plan['blind_pulls']} pulls.",
        "",
        "| scenario | share of the best arm | share in the last fifth | recommendation right |",
        "|---|---|---|---|",
    ]
    for title in sorted({entry["title"] for entry in entries}):
        group = [entry for entry in entries if entry["title"] == title]
        share, late, right = (statistics.fmean(float(e[key]) for e in group) for key in ("share", "late", "right"))
        lines.append(f"| {title} | {share:.2f} | {late:.2f} | {right:.0%} of {len(group)} |")
    return "\n".join(lines)


def _cost(cost: Mapping[str, float]) -> str:
    hours = cost["authors_s_per_pull"] * cost["pulls"] / 3600.0
    return "\n".join(
        [
            "## Cost",
            "",
            "In one thread:",
            "",
            f"- Engine (policy and bookkeeping, 20 arms): {cost['engine_ms']:.2f} ms per pull.",
            f"- Algebra of {cost['pulls']:.0f} pulls at {cost['dim']:.0f} dimensions, 5 arms: "
            f"{cost['selection_s']:.1f} s.",
            f"- The authors' algorithm needs {cost['authors_s_per_pull']:.2f} s of algebra per pull (measured once), "
            f"that is {hours:.2f} h for the same pulls (extrapolated).",
        ]
    )


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw average regret over the pulls, one panel per scenario."""
    from matplotlib.figure import Figure

    by_scenario: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in results["regret_task"]:
        by_scenario[entry["scenario"]].append(entry)
    if not by_scenario:
        return
    columns = min(4, len(by_scenario))
    rows = math.ceil(len(by_scenario) / columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    colours = {
        "default": "#0072B2", "authors' UCB": "#D55E00", "Naive-UCB": "#E69F00", "greedy": "#009E73",
        "epsilon-greedy": "#56B4E9", "uniform, plain": "#9AA0A6",
    }  # fmt: skip
    for axes, entries in zip(panels, by_scenario.values(), strict=False):
        for name, colour in colours.items():
            curves = [e["contestants"][name]["regret"] for e in entries if name in e["contestants"]]
            if curves:
                mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
                pulls = range(MARK, MARK * len(mean) + 1, MARK)
                axes.plot(pulls, mean, color=colour, lw=2.4 if name == "default" else 1.3, label=name)
        axes.set_title(entries[0]["title"], fontsize=10, loc="left")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    for axes in panels[len(by_scenario) :]:
        axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.supxlabel("pulls", fontsize=9)
    figure.supylabel("average regret", fontsize=9)
    figure.savefig(path, dpi=140)
