"""A selection's outcome as one HTML page that needs nothing else: no network, no other files."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from tm_bandit.__about__ import __version__
from tm_bandit.report.chart import GREY, PALETTE, Chart, make_chart
from tm_bandit.report.result import SelectionResult, central_score, number, spoken, with_interval
from tm_bandit.report.svg import arms_svg, colour_class, scores_svg

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
    "@media screen and (prefers-color-scheme:dark){:root{"
    "--bg:#14171c;--card:#1c2027;--ink:#e8eaed;--soft:#a0a8b4;--rule:#2f353e;"
    f"--track:#262b33;--good:#3cc796;--fair:#e9a94a;--plain:#a0a8b4;{_colours(_DARK, _DARK_GREY)}}}}}\n"
    + "".join(f".c{at}{{--c:var(--c{at})}}" for at in range(len(PALETTE)))
    + ".other{--c:var(--other)}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 20px 48px}
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
.grid{stroke:var(--rule)}.base,.zero{stroke:var(--soft)}
.hit{fill:transparent}.arm:hover .hit{fill:var(--track)}
.span{stroke:var(--c);stroke-width:1.6;fill:none}.dot{fill:var(--c)}
.ring{fill:var(--card);stroke:var(--c);stroke-width:1.8}
.tick,.axis{fill:var(--soft)}.label{fill:var(--c)}.other .label{fill:var(--soft)}.c0 .label{font-weight:600}
.band{fill:var(--c);fill-opacity:.16}
.line{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round}.c0 .line{stroke-width:2.6}
.end{fill:none;stroke:var(--c);stroke-opacity:.7}.hopeful{stroke-dasharray:5 3}.doubtful{stroke-dasharray:1 3}
.leader{stroke:var(--c)}.track{fill:var(--track)}.fill{fill:var(--c);shape-rendering:crispEdges}
.other .line{stroke-width:1.1}.arm:hover .line{stroke-width:3.2}
table{border-collapse:collapse;width:100%;margin-top:10px;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:6px 9px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:600;font-size:13px;cursor:pointer;white-space:normal;vertical-align:bottom}
th:hover,th:focus{color:var(--ink)}
th[aria-sort=ascending]::after{content:" ↑"}
th[aria-sort=descending]::after{content:" ↓"}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
td:first-child,td:nth-child(2){white-space:normal;overflow-wrap:break-word;min-width:9em;max-width:22em}
td:nth-child(2){min-width:7em;max-width:14em}
tbody tr:last-child td{border-bottom:0}
.chip{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px;background:var(--c)}
.pair{display:grid;grid-template-columns:repeat(var(--n),minmax(0,64px));gap:4px;margin-top:10px;justify-content:start}
.pair b{grid-column:1/-1;font-size:13px}.pair img{width:100%;height:auto;display:block;border-radius:3px}
.best td{font-weight:650}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:10px 0 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
@media (max-width:960px){th,td{padding:6px 5px}table{font-size:13px}td:nth-child(7){white-space:normal;min-width:9em}}
footer{margin-top:20px;color:var(--soft);font-size:13px}
@media print{:root{--bg:#fff}main{max-width:none;padding:1px}section,.facts div{border-color:#ccc}
section{overflow:visible}section:has(.chart,.pair),.facts,tr{break-inside:avoid}h2,h2+p{break-after:avoid}
.chart{min-width:0;max-height:150mm}
tbody tr:is(:nth-child(-n+3),:nth-last-child(-n+3)):not(:last-child){break-after:avoid}
dl{grid-template-columns:repeat(2,max-content 1fr);font-size:13px}
table,th{font-size:9px}th,td{padding:3px 4px}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
)

# Sorts the table by the column whose heading is clicked; unknown values stay at the end.
_SCRIPT = """
document.querySelectorAll("th").forEach((head, at) => {
  const sort = () => {
    const down = head.getAttribute("aria-sort") === "ascending", body = head.closest("table").tBodies[0];
    const value = row => row.cells[at].dataset.v ?? row.cells[at].textContent.toLowerCase();
    const order = (a, b) => a === "" || b === "" ? (a === "") - (b === "")
      : (down ? -1 : 1) * (isNaN(a) || isNaN(b) ? a.localeCompare(b, undefined, {numeric: true}) : a - b);
    [...body.rows].sort((a, b) => order(value(a), value(b))).forEach(row => body.append(row));
    document.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  head.tabIndex = 0;
  head.onclick = sort;
  head.onkeydown = event => { if (event.key === "Enter") sort(); };
});
"""
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()


def render_html(result: SelectionResult, refresh: int | None = None) -> str:
    """Return the page: the verdict, how far each arm is behind the best, the scores over time, samples, the table.

    Args:
        result: the outcome of a selection.
        refresh: seconds after which a browser reloads the page.
    """
    chart = make_chart(result)
    headline = "No arm was evaluated" if result.best is None else f"{result.best}"
    tone = "plain" if result.unrivalled else _TONES.get(result.status, "plain")
    sentence = _sentence(result.outcome())
    if result.tied:
        sentence = f"Cannot be told apart from it: {', '.join(result.tied)}."
        others = len(result.undecided)
        sentence += f" {others} more {'is' if others == 1 else 'are'} undecided." if others else ""
    if result.stopped_by == "interrupt":
        sentence += " The run was interrupted."
    how = f"{_sentence(chart.marks_note)} Right: when each arm was sampled, and its share of all samples."
    parts = [
        f'<h1>{escape(headline)} <span class="badge {tone}">{escape(result.word)}</span></h1>',
        f"<p>{escape(sentence)}</p>",
        _facts(result),
        _section("How the arms compare", how, arms_svg(chart)),
        _pictures(result),
        _table(result, chart),
        _section("Scores over time", _sentence(chart.note), scores_svg(chart)),
        _list("Retired", "These arms failed or were withdrawn.", result.retired),
        _list("Settings", "", {**result.settings, "seed": result.seed}),
        f"<footer>tm-bandit {escape(__version__)}</footer>",
    ]
    title = escape(f"{headline}: model selection")
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">\n'
    body = "\n".join(filter(None, parts))
    return _PAGE.format(again=again, title=title, style=_STYLE, body=body, script=_SCRIPT, hash=_HASH)


# The policy forbids the page to load anything at all, and to run any other script, so that a browser enforces what the
# title promises.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{hash}'">
{again}<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def _facts(result: SelectionResult) -> str:
    facts = [
        (_typeset(number(result.best_score)), f"{result.score_name} of the best arm"),
        (f"{result.total_samples:,}", f"samples drawn from {len(result.arms)} arms"),
    ]
    if result.saving:
        facts.append((f"{result.uniform_cost:,}", "samples if every arm were drawn as often as the closest rival"))
    if result.cost:
        facts.append((spoken(result.total_cost, result.unit), f"of a budget of {spoken(result.budget, result.unit)}"))
    elif result.budget > 0:
        facts.append((f"{result.budget:,}", "samples in the budget"))
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in facts)
    return f'<div class="facts">{cells}</div>'


def _table(result: SelectionResult, chart: Chart) -> str:
    rows = result.table()
    columns = {
        "samples": "samples drawn from the arm",
        "cost": "what they cost" + (", in seconds" if result.unit == "seconds" else ""),
        "score": f"{chart.unit}, debiased: arms with different numbers of samples can be compared",
        "interval": "interval of the score",
        "estimate": "the plain score, which is biased for an arm with few samples",
        "behind the best by": "difference to the best on the same draws, with its interval",
        "correlation": "of the arm's and the best one's scores on the same draws: 1 if all error cancels",
    }
    if not result.cost:
        del columns["cost"]
    if all(math.isnan(row["behind"]) for row in rows):
        del columns["behind the best by"], columns["correlation"]
    lines = []
    for row, arm in zip(rows, chart.series, strict=True):
        score = central_score(row)
        interval = with_interval(score, row["lower"], row["upper"]).partition(" ")[2]
        behind = with_interval(row["behind"], row["behind_lower"], row["behind_upper"])
        cells = {
            "samples": (row["n"], f"{row['n']:,}"),
            "cost": (row.get("cost", math.nan), number(row.get("cost", math.nan))),
            "score": (score, number(score)),
            "interval": (row["upper"] - row["lower"], interval or "-"),
            "estimate": (row["estimate"], number(row["estimate"])),
            "behind the best by": (row["behind"], behind),
            "correlation": (row["correlation"], number(round(row["correlation"], 2))),
        }
        mark = ' class="best"' if row["arm"] == result.best else ""
        lines.append(
            f'<tr{mark} title="{escape(arm.detail)}">'
            f'<td><span class="chip {colour_class(arm)}"></span>{_breakable(row["arm"])}</td>'
            f"<td>{_breakable(str(row['verdict']))}</td>" + "".join(_cell(*cells[name]) for name in columns) + "</tr>"
        )
    inner = "".join(f'<th title="{escape(text)}">{name}</th>' for name, text in columns.items())
    titles = f"<th>arm</th><th>verdict</th>{inner}"
    body = f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return _section("All arms", f"{chart.unit}. Click on a heading to sort.", body)


def _cell(value: float, text: str) -> str:
    """Return a cell with the number by which it is sorted."""
    key = "" if math.isnan(value) else f"{value:.6g}".replace("inf", "1e999")
    return f'<td data-v="{key}">{_typeset(text).replace(", ", ",&nbsp;")}</td>'


def _pictures(result: SelectionResult) -> str:
    """Return the samples of the arms that have some, one under the other."""
    shown = result.pictures
    if not shown:
        return ""
    same = "Samples in a column come from the same noise." if result.settings.get("pairing") == "common" else ""
    rows = []
    for name, uris in shown.items():
        images = "".join(f'<img src="{uri}" alt="sample {at}">' for at, uri in enumerate(uris))
        rows.append(f'<div class="pair" style="--n:{len(uris)}"><b>{escape(name)}</b>{images}</div>')
    return _section("Samples", same, "".join(rows))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _list(title: str, text: str, items: Mapping[str, Any]) -> str:
    """Return a section of names and what belongs to them; nothing if there are none."""
    if not items:
        return ""
    entries = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in items.items())
    return _section(title, text, f"<dl>{entries}</dl>")


def _section(title: str, text: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>" + (f"<p>{escape(text)}</p>" if text else "") + f"{body}</section>"


def _breakable(text: str) -> str:
    """Return text whose long words may be broken after a punctuation mark: names of arms are often paths."""
    return "<wbr>".join(escape(part) for part in re.split(r"(?<=[/_,=-])(?=\w)", text))


def _typeset(text: str) -> str:
    return "–" if text == "-" else text.replace("-", "−").replace("inf", "∞")
