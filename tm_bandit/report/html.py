"""A selection's outcome as one HTML page that needs nothing else: no network, no other files."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from tm_bandit.__about__ import __version__
from tm_bandit.errors import printable
from tm_bandit.report.chart import GREY, PALETTE, Chart, make_chart
from tm_bandit.report.result import SelectionResult, central_score, number, spoken, with_interval
from tm_bandit.report.svg import arms_svg, colour_class, scores_svg

#: The palette and the grey on a dark page.
_DARK = ("#56aee6", "#f0a63c", "#35c99b", "#e78cbf", "#f07c62", "#8ccdf2", "#b09be6")
_DARK_GREY = "#6b7380"

#: The class that colours a status; the others are plain.
_TONES = {"won": "good", "target_met": "good", "likely": "fair", "tie": "fair"}


#: The page around the sections. Its policy forbids it to load anything at all, and to run any script but its own (which
#: sorts the table), so that a browser enforces what the title promises.
_PAGE = files("tm_bandit.report").joinpath("page.html").read_text(encoding="utf-8")
_SCRIPT = _PAGE.partition("<script>")[2].partition("</script>")[0]
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()


def _colours(palette: tuple[str, ...], grey: str) -> str:
    return "".join(f"--c{at}:{colour};" for at, colour in enumerate(palette)) + f"--other:{grey}"


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
    light, dark = _colours(PALETTE, GREY), _colours(_DARK, _DARK_GREY)
    classes = "".join(f".c{at}{{--c:var(--c{at})}}" for at in range(len(PALETTE)))
    values = {"again": again, "title": title, "light": light, "dark": dark, "classes": classes, "hash": _HASH}
    return printable(Template(_PAGE).substitute(values, body="\n".join(filter(None, parts))))


def _facts(result: SelectionResult) -> str:
    facts = [
        (_typeset(number(result.best_score)), f"{result.score_name} of the best arm"),
        (
            f"{result.total_samples:,}",
            f"samples drawn from {len(result.arms)} arm{'' if len(result.arms) == 1 else 's'}",
        ),
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
            "correlation": (row["correlation"], "-" if math.isnan(row["correlation"]) else f"{row['correlation']:.2f}"),
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
    return _section("All arms", f"{chart.unit}.", body)


def _cell(value: float, text: str) -> str:
    """Return a cell with the number by which it is sorted."""
    key = "" if math.isnan(value) else f"{value:.6g}".replace("inf", "1e999")
    return f'<td data-v="{key}">{_typeset(text).replace(", ", ",&nbsp;")}</td>'


def _pictures(result: SelectionResult) -> str:
    """Return the samples of the arms that have some, one under the other."""
    shown = result.pictures
    if not shown:
        return ""
    paired = len(shown) > 1 and result.settings.get("pairing") == "common"
    same = "Samples in a column come from the same noise." if paired else ""
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
