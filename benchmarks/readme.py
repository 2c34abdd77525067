"""Copies measured figures into the README and the docs: between their markers stands nothing that was typed by hand.

``python -m benchmarks.readme`` fills them in from ``benchmarks/results`` and ``benchmarks/history``; with the folder of
a demo run as its argument it first takes over the figures and the picture of that run.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from benchmarks.release import table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"

#: What has markers.
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")


def table_of(text: str, section: str) -> list[dict[str, str]]:
    r"""Return the first table of a section of a Markdown text, one dictionary per row.

    Args:
        text: the text.
        section: title of the section.

    Example:
        >>> table_of("## race\n\nWhy.\n\n| runs | right |\n|---|---|\n| 100 | 98 |\n", "race")
        [{'runs': '100', 'right': '98'}]
    """
    found = re.search(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in (found[1] if found else "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def demo(figures: dict) -> str:
    """Put the figures of a demo run into words."""
    f = figures
    ways = dict.fromkeys(name.split("/")[1].removesuffix(" steps") for name in f["truth"])
    return (
        f"**{f['headline']}** The candidates are checkpoints of one training run, raw and averaged, sampled in "
        f"{' or '.join(ways)} steps; the best two differ by {f['second_fid'] / f['best_fid'] - 1:.1%}."
    )


def results(paired: str, figures: dict) -> str:
    """Return the table of measured results.

    Args:
        paired: the text of ``paired.md``.
        figures: the figures of a demo run.
    """
    (race,) = table_of(paired, "race")
    likely = table_of(paired, "likely")
    blind = [row for row in likely if row["scenario"] == "blind spot 2"]
    others = [row for row in likely if row not in blind]
    stopped, wrong, runs = (sum(int(row[name]) for row in others) for name in ("stopped", "wrong", "runs"))
    pairs = table_of(paired, "shared")
    ended, worse, races = (sum(int(row[name]) for row in pairs) for name in ("stopped", "wrong", "runs"))
    equal = [f"{row['right']} of {figures['repeats']} with {row['samples']:,}" for row in figures["uniform"]]
    rows = {
        "Best of 28 near-tied checkpoints: when the race stops by itself": f"after {race['median']} samples (median)",
        "... and names the best, or one within 2% of its FID": f"{race['right']} of {race['runs']} runs",
        "The same with 2,500 samples": f"{race['right at 2500']} of {race['runs']} runs",
        "Evaluating all 28 equally by the plain FID instead": f"{equal[0]} samples, {equal[-1]}",
        f"Early stopping in {len(others)} other scenarios": f"{stopped:,} of {runs:,} stop, {wrong} name a wrong arm",
    }
    if pairs:
        rows[f"... in {len(pairs)} with common noise"] = f"{ended} of {races} stop, {worse} name a wrong arm"
    for row in blind:
        rows["... and in one made to mislead it"] = (
            f"{row['stopped']} of {row['runs']} stop, {row['wrong']} name a wrong arm"
        )
    lines = [f"| {question} | {answer} |" for question, answer in rows.items()]
    return "\n".join(["| | measured |", "|---|---|", *lines])


def render(text: str) -> str:
    """Return one of the pages with fresh figures between its markers."""
    figures = json.loads((RESULTS / "demo.json").read_text())
    sections = {
        "demo": demo(figures),
        "results": results((RESULTS / "paired.md").read_text(), figures),
        "history": f"\n{table()}",
    }
    for name, body in sections.items():
        fresh = f"<!-- {name}:begin -->\n{body}\n<!-- {name}:end -->"
        text = re.sub(rf"<!-- {name}:begin -->.*?<!-- {name}:end -->", lambda _, new=fresh: new, text, flags=re.DOTALL)
    return text


def main() -> None:
    """Fill in the pages."""
    if len(sys.argv) > 1:
        made = Path(sys.argv[1])
        RESULTS.mkdir(exist_ok=True)
        shutil.copy(made / "figures.json", RESULTS / "demo.json")
        shutil.copy(made / "demo.png", ROOT / "docs" / "images" / "demo.png")
    for page in PAGES:
        page.write_text(render(page.read_text()))


if __name__ == "__main__":
    main()
