"""A selection's outcome as one HTML page that needs nothing else: no network, no script, no image files."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from tm_bandit.__about__ import __version__
from tm_bandit.report.chart import GREY, PALETTE, Chart, make_chart
from tm_bandit.report.result import SelectionResult, number
from tm_bandit.report.svg import allocation_svg, colour_class, scores_svg

#: The palette and the grey on a dark page.
_DARK = ("#56aee6", "#f0a63c", "#35c99b", "#e78cbf", "#f07c62", "#8ccdf2", "#b09be6")
_DARK_GREY = "#6b7380"

#: The class that colours a status; the others are plain.
_TONES = {"won": "good", "target_met": "good", "likely": "fair", "tie": "fair"}


def _colours(palette: tuple[str, ...], grey: str) -> str:
    return "".join(f"--c{at}:{colour};" for at, colour in enumerate(palette)) + f"--other:{grey}"


_STYLE = (
    ":root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1d2129;--soft:#5c6470;--rule:#e3e5e8;"
    f"--track:#f0f1f3;--good:#0b7a55;--fair:#9a5b00;--plain:#525b68;{_colours(PALETTE, GREY)}}}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#14171c;--card:#1c2027;--ink:#e8eaed;--soft:#a0a8b4;--rule:#2f353e;"
    f"--track:#262b33;--good:#3cc796;--fair:#e9a94a;--plain:#a0a8b4;{_colours(_DARK, _DARK_GREY)}}}}}\n"
    + "".join(f".c{at}{{--c:var(--c{at})}}" for at in range(len(PALETTE)))
    + ".other{--c:var(--other)}"
    """
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
.tick,.axis{fill:var(--soft)}.label{fill:var(--c)}.c0 .label{font-weight:600}
.band{fill:var(--c);fill-opacity:.16}
.line{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round}.c0 .line{stroke-width:2.6}
.end{fill:none;stroke:var(--c);stroke-opacity:.7}.hopeful{stroke-dasharray:5 3}.doubtful{stroke-dasharray:1 3}
.leader{stroke:var(--c)}.track{fill:var(--track)}.fill{fill:var(--c);shape-rendering:crispEdges}
.other .line{stroke-width:1.1}.arm:hover .line{stroke-width:3.2}
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
)


def render_html(result: SelectionResult) -> str:
    """Return the page: the verdict, each arm's bounds over time, where the budget went, and the table.

    Args:
        result: the outcome of a selection.
    """
    chart = make_chart(result)
    headline = "No arm was evaluated" if result.best is None else f"{result.best}"
    tone = "plain" if result.unrivalled else _TONES.get(result.status, "plain")
    outcome = result.outcome()
    sentence = f"{outcome[:1].upper()}{outcome[1:]}."
    if result.tied:
        sentence = f"Not separable from it: {', '.join(result.tied)}."
    if result.stopped_by == "interrupt":
        sentence += " The run was interrupted."
    note = f"{chart.unit}. {chart.note[:1].upper()}{chart.note[1:]}."
    parts = [
        f'<h1>{escape(headline)} <span class="badge {tone}">{escape(result.word)}</span></h1>',
        f"<p>{escape(sentence)}</p>",
        _facts(result),
        _section("Bounds over time", note, scores_svg(chart)),
        _section("Where the budget went", "The stronger the colour, the more of the samples.", allocation_svg(chart)),
        _table(result, chart),
        _list("Taken out", "These arms failed or were withdrawn.", result.retired),
        _list("Settings", "", {**result.settings, "seed": result.seed}),
        f"<footer>tm-bandit {escape(__version__)}</footer>",
    ]
    title = escape(f"{headline}: model selection")
    return _PAGE.format(title=title, style=_STYLE, body="\n".join(filter(None, parts)))


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
        (_number(result.best_score), f"{result.metric.removeprefix('Optimistic')} of the best arm"),
        (f"{result.total_samples:,}", f"samples drawn from {len(result.arms)} arms"),
    ]
    if result.uniform_cost > 0:
        facts.append((f"{result.uniform_cost:,}", "samples if all arms were drawn equally, for the same certainty"))
    if result.budget > 0:
        facts.append((f"{result.budget:,}", "samples in the budget"))
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in facts)
    return f'<div class="facts">{cells}</div>'


def _table(result: SelectionResult, chart: Chart) -> str:
    head = ("arm", "samples", "pulls", "share", "estimate", "debiased", "lower", "upper", "verdict")
    lines = []
    for row, arm in zip(result.table(), chart.series, strict=True):
        scores = "".join(f"<td>{_number(row[name])}</td>" for name in ("estimate", "debiased", "lower", "upper"))
        mark = ' class="best"' if row["arm"] == result.best else ""
        lines.append(
            f'<tr{mark}><td><span class="dot {colour_class(arm)}"></span>{escape(row["arm"])}</td>'
            f"<td>{row['n']:,}</td><td>{row['pulls']:,}</td><td>{row['share']:.1%}</td>{scores}"
            f"<td>{escape(str(row['verdict']))}</td></tr>"
        )
    titles = "".join(f"<th>{name}</th>" for name in head)
    body = f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return _section("All arms", f"{chart.unit}. The estimate of an arm with few samples is biased.", body)


def _list(title: str, text: str, items: Mapping[str, Any]) -> str:
    """Return a section of names and what belongs to them; nothing if there are none."""
    if not items:
        return ""
    entries = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in items.items())
    return _section(title, text, f"<dl>{entries}</dl>")


def _section(title: str, text: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>" + (f"<p>{escape(text)}</p>" if text else "") + f"{body}</section>"


def _number(value: float) -> str:
    text = number(value)
    return "–" if text == "-" else text.replace("-", "−").replace("inf", "∞")
