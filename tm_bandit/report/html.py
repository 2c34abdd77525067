"""A selection's outcome as one HTML page that needs nothing else: no network, no script, no image files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tm_bandit.__about__ import __version__
from tm_bandit.report.svg import Series, allocation_chart, interval_chart

if TYPE_CHECKING:
    from tm_bandit.report.result import SelectionResult

_NUM_COLOURS = 7  # more hues than that are not told apart; further arms are drawn in grey
_NUM_BINS = 120

#: For each status: the word on the badge, and the class that colours it.
_BADGES = {
    "won": ("certified", "good"),
    "likely": ("likely", "fair"),
    "tie": ("tie", "fair"),
    "target_met": ("target met", "good"),
    "budget_exhausted": ("budget spent", "plain"),
    "unfinished": ("unfinished", "plain"),
}

_STYLE = (
    """
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1d2129;--soft:#5c6470;--rule:#e3e5e8;--track:#f0f1f3;
--good:#0b7a55;--fair:#9a5b00;--plain:#525b68;
--c0:#0072b2;--c1:#d97f00;--c2:#009e73;--c3:#c2558f;--c4:#c8452d;--c5:#3a9fd6;--c6:#7a5fb5;--other:#a5abb4}
@media (prefers-color-scheme:dark){:root{--bg:#14171c;--card:#1c2027;--ink:#e8eaed;--soft:#a0a8b4;--rule:#2f353e;
--track:#262b33;--good:#3cc796;--fair:#e9a94a;--plain:#a0a8b4;
--c0:#56aee6;--c1:#f0a63c;--c2:#35c99b;--c3:#e78cbf;--c4:#f07c62;--c5:#8ccdf2;--c6:#b09be6;--other:#6b7380}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1040px;margin:0 auto;padding:32px 20px 48px}
h1{font-size:28px;line-height:1.25;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 2px}
p{margin:0;color:var(--soft)}
.badge{display:inline-block;vertical-align:middle;margin-left:10px;padding:2px 10px;border:1px solid;border-radius:99px;
font-size:13px;font-weight:600;white-space:nowrap}
.good{color:var(--good)}.fair{color:var(--fair)}.plain{color:var(--plain)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin:22px 0}
.facts div,section{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.facts div{padding:12px 16px}
.facts b{display:block;font-size:22px;line-height:1.3;font-variant-numeric:tabular-nums}
.facts span{color:var(--soft);font-size:13px}
section{padding:18px 20px;margin-top:16px;overflow-x:auto}
.chart{display:block;width:100%;min-width:640px;height:auto;margin-top:10px;font:12px system-ui,sans-serif}
.grid{stroke:var(--rule)}.base{stroke:var(--soft)}
.tick,.axis{fill:var(--soft)}.label{fill:var(--c);font-weight:600}
.band{fill:var(--c);fill-opacity:.07}.c0 .band{fill-opacity:.2}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.leader{stroke:var(--c)}.track{fill:var(--track)}.fill{fill:var(--c)}
.other .band{fill-opacity:0}.other .line{stroke-width:1.2}
.arm:hover .band{fill-opacity:.32}.arm:hover .line{stroke-width:3}
table{border-collapse:collapse;width:100%;margin-top:10px;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:600;font-size:13px}
th:first-child,td:first-child,th:last-child,td:last-child{text-align:left}
td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:120px}
tbody tr:last-child td{border-bottom:0}
.dot{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px;background:var(--c)}
.best td{font-weight:650}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:10px 0 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
footer{margin-top:20px;color:var(--soft);font-size:13px}
"""
    + "".join(f".c{index}{{--c:var(--c{index})}}" for index in range(_NUM_COLOURS))
    + ".other{--c:var(--other)}"
)


def render_html(result: SelectionResult, title: str | None = None) -> str:
    """Return the page: the verdict, each arm's bounds over time, where the budget went, and the table.

    Args:
        result: the outcome of a selection.
        title: the page's title; by default it names the winner.
    """
    rows = result.table()
    styles = {row["arm"]: f"c{at}" if at < _NUM_COLOURS else "other" for at, row in enumerate(rows)}
    headline = "No arm was evaluated" if result.best is None else f"{result.best}"
    word, tone = ("only arm", "plain") if result.unrivalled else _BADGES.get(result.status, (result.status, "plain"))
    outcome = result.outcome()
    sentence = f"{outcome[:1].upper()}{outcome[1:]}."
    if result.tied:
        sentence = f"Not separable from it: {', '.join(result.tied)}."
    if result.stopped_by == "interrupt":
        sentence += " The run was interrupted."
    parts = [
        f'<h1>{escape(headline)} <span class="badge {tone}">{escape(word)}</span></h1>',
        f"<p>{escape(sentence)}</p>",
        _facts(result),
        _bounds(result, rows, styles),
        _allocation(result, rows, styles),
        _table(result, rows, styles),
        _retired(result),
        _settings(result),
        f"<footer>tm-bandit {escape(__version__)}</footer>",
    ]
    return _PAGE.format(
        title=escape(title or f"{headline}: model selection"), style=_STYLE, body="\n".join(filter(None, parts))
    )


# The policy forbids the page to load anything at all, so that a browser enforces what the title promises.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _facts(result: SelectionResult) -> str:
    facts = [
        (_number(result.best_score), f"{_unit(result)} of the best arm"),
        (f"{result.total_samples:,}", f"samples drawn from {len(result.arms)} arms"),
    ]
    if result.uniform_cost > 0:
        facts.append((f"{result.uniform_cost:,}", "samples if all arms were drawn equally, for the same certainty"))
    if result.budget > 0:
        facts.append((f"{result.budget:,}", "samples in the budget"))
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in facts)
    return f'<div class="facts">{cells}</div>'


def _bounds(result: SelectionResult, rows: Sequence[dict[str, Any]], styles: dict[str, str]) -> str:
    series = [_series(result.history, row["arm"], styles[row["arm"]]) for row in rows]
    chart = interval_chart(series, result.total_samples, _unit(result))
    better = "higher" if result.higher_is_better else "lower"
    return _section(
        "Bounds over time", f"Debiased {_unit(result)} and its interval per arm; {better} is better.", chart
    )


def _series(history: dict[str, list[Any]], name: str, style: str) -> Series:
    """Pick one arm's pulls out of the history."""
    pulls = [at for at, pulled in enumerate(history["arm"]) if pulled == name]
    x, debiased, estimate, lower, upper = (
        [history[column][at] for at in pulls] for column in ("samples", "debiased", "estimate", "lower", "upper")
    )
    centre = [plain if math.isnan(value) else value for value, plain in zip(debiased, estimate, strict=True)]
    return Series(name, style, x, centre, lower, upper)


def _allocation(result: SelectionResult, rows: Sequence[dict[str, Any]], styles: dict[str, str]) -> str:
    names = [row["arm"] for row in rows]
    bins = _share_over_time(result.history, names, result.total_samples)
    figures = [f"{row['share']:.1%}" for row in rows]
    chart = allocation_chart(names, [styles[name] for name in names], bins, result.total_samples, figures)
    return _section(
        "Where the budget went", "The stronger the colour, the larger its part of the samples of that moment.", chart
    )


def _share_over_time(history: dict[str, list[Any]], names: Sequence[str], total: int) -> list[list[float]]:
    """Spread each pull's samples over the stretches of the run that they fall into."""
    count = min(_NUM_BINS, max(1, len(history["arm"])))
    width = total / count if total else 1.0
    bins = {name: [0.0] * count for name in names}
    start = 0.0
    for name, end in zip(history["arm"], history["samples"], strict=True):
        first, last = int(start / width), min(count - 1, int(end / width))
        for index in range(first, last + 1):
            part = min(end, (index + 1) * width) - max(start, index * width)
            if name in bins and part > 0:
                bins[name][index] += part / width
        start = float(end)
    return [[min(1.0, share) for share in bins[name]] for name in names]


def _table(result: SelectionResult, rows: Sequence[dict[str, Any]], styles: dict[str, str]) -> str:
    head = ("arm", "samples", "pulls", "share", "estimate", "debiased", "lower", "upper", "verdict")
    lines = []
    for row in rows:
        scores = "".join(f"<td>{_number(row[name])}</td>" for name in ("estimate", "debiased", "lower", "upper"))
        name = f'<span class="dot {styles[row["arm"]]}"></span>{escape(row["arm"])}'
        mark = ' class="best"' if row["arm"] == result.best else ""
        lines.append(
            f"<tr{mark}><td>{name}</td><td>{row['n']:,}</td><td>{row['pulls']:,}</td><td>{row['share']:.1%}</td>{scores}"
            f"<td>{escape(str(row['verdict']))}</td></tr>"
        )
    titles = "".join(f"<th>{name}</th>" for name in head)
    body = f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return _section("All arms", f"Scores are {_unit(result)}; estimates of arms with few samples are biased.", body)


def _retired(result: SelectionResult) -> str:
    if not result.retired:
        return ""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(reason)}</dd>" for name, reason in result.retired.items())
    return _section("Taken out", "These arms failed or were withdrawn.", f"<dl>{items}</dl>")


def _settings(result: SelectionResult) -> str:
    settings = {**result.settings, "seed": result.seed}
    items = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in settings.items())
    return _section("Settings", "", f"<dl>{items}</dl>")


def _section(title: str, text: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>" + (f"<p>{escape(text)}</p>" if text else "") + f"{body}</section>"


def _unit(result: SelectionResult) -> str:
    """Name the score as people know it: the metric's class without its adjective."""
    return result.metric.removeprefix("Optimistic")


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}".replace("-", "−")
