"""Copies measured figures into the README: between its markers stands nothing that was typed by hand.

``python -m benchmarks.readme`` fills in the README from ``benchmarks/results``; with the folder of a demo run as its
argument it first takes over the figures and the picture of that run.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"

#: Sections that are too long for the README; it names the file.
LEFT_OUT = ("Coverage", "Debiased distance")

#: The parts of the benchmark that the README shows, and what each is about.
PARTS = {
    "selection": "Selection: regret, pick ratio, identification and stopping, all policies side by side",
    "witness": "Witness bounds: how tight they are, and their cost (coverage and the debiased FID are in the file too)",
    "metrics": "Speed and memory of the metrics against torchmetrics and the authors' algorithm",
    "callback": "What the callback costs in a training",
}


def demo(figures: dict) -> str:
    """Put the figures of a demo run into words."""
    f = figures
    best = "the best of all"
    if f["chosen_by_fid"] != f["best_by_fid"]:
        best = f"the best one, `{f['best_by_fid']}`, has {f['best_fid']:.2f}"
    ways = dict.fromkeys(name.split("/")[1].removesuffix(" steps") for name in f["truth"])
    need = f"and with {f['uniform_most']:,} samples still below {f['bandit_share']:.0%}"
    if f["uniform_need"]:
        ratio = f["uniform_need"] / f["samples_fid"]
        need = f"and needs {f['uniform_need']:,} samples, {ratio:.1f} times as many, to be right as often"
    return (
        f"The picture is what `make demo` draws: {f['arms']} candidates, the checkpoints of a flow-matching model, raw "
        f"and averaged, sampled in {' or '.join(ways)} steps, and {f['samples_fid']:,} samples in all. "
        f"It chose `{f['chosen_by_fid']}`, true FID {f['chosen_fid']:.2f} "
        f"({best}; the last weights of the run have {f['last_fid']:.2f}). After training, with all "
        f"candidates at hand and as many samples, {f['repeats']} selections with other "
        f"samples were within {f['tolerance']:.0%} of the best FID in {f['bandit_share']:.0%} of the runs; "
        f"uniform evaluation by the plain FID was in {f['uniform_share']:.0%}, {need}."
    )


def results() -> str:
    """Return the tables of all parts that were measured, each folded away under its title."""
    texts = []
    for name, title in PARTS.items():
        found = [path for path in (RESULTS / f"{name}.md", RESULTS / "short" / f"{name}.md") if path.exists()]
        if found:
            sections = re.split(r"^(?=## )", found[0].read_text().strip(), flags=re.MULTILINE)
            kept = "".join(text for text in sections if not text.startswith(tuple(f"## {name}" for name in LEFT_OUT)))
            table = re.sub(r"^#+ (.*)$", r"**\1**", kept.strip(), flags=re.MULTILINE)
            where = found[0].relative_to(ROOT).as_posix()
            reduced = found[0].parent.name == "short" or "reduced run" in table
            command = "make bench" if reduced else "make bench-full"
            head = f"<details><summary>{title}</summary>\n\nFrom [`{where}`]({where}); `{command}` measures it anew."
            texts.append(f"{head}\n\n{table}\n\n</details>")
    return "\n\n".join(texts) or "Nothing has been measured yet."


def render(text: str) -> str:
    """Return the README with fresh figures between its markers."""
    sections = {"results": results()}
    if (RESULTS / "demo.json").exists():
        sections["demo"] = demo(json.loads((RESULTS / "demo.json").read_text()))
    for name, body in sections.items():
        fresh = f"<!-- {name}:begin -->\n{body}\n<!-- {name}:end -->"
        text = re.sub(rf"<!-- {name}:begin -->.*?<!-- {name}:end -->", lambda _, new=fresh: new, text, flags=re.DOTALL)
    return text


def main() -> None:
    """Fill in the README."""
    if len(sys.argv) > 1:
        made = Path(sys.argv[1])
        RESULTS.mkdir(exist_ok=True)
        shutil.copy(made / "figures.json", RESULTS / "demo.json")
        shutil.copy(made / "demo.png", ROOT / "docs" / "images" / "demo.png")
    readme = ROOT / "README.md"
    readme.write_text(render(readme.read_text()))


if __name__ == "__main__":
    main()
