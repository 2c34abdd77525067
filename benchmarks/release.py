"""The headline numbers of a release in one small file, taken from the tables of the benchmarks.

``python -m benchmarks.release 0.2.0`` writes ``benchmarks/history/0.2.0.json``; every number names the file it is from.
"""

import argparse
import json
from pathlib import Path

from tm_bandit._files import atomic_write

RESULTS = Path(__file__).parent / "results"
HISTORY = Path(__file__).parent / "history"


def numbers(results: Path = RESULTS) -> list[dict]:
    """Return the headline numbers that stand in the results: what is measured, the value, and the file."""
    demo = json.loads((results / "demo.json").read_text())
    race = json.loads((results / "paired.json").read_text())["race"]
    task = f"the demo's {demo['arms']} arms, {demo['samples']:,} samples, within {demo['tolerance']:.0%} of the best"
    found = [
        ("demo.json", f"{task}: share of {demo['repeats']} runs, race", demo["race_right"] / demo["repeats"]),
        (
            "demo.json",
            f"{task}: share of {demo['repeats']} runs, uniform evaluation",
            demo["uniform"][0]["right"] / demo["repeats"],
        ),
        ("paired.json", "the same arms, fresh trainings: median samples until the race is decided", race["median"]),
        ("paired.json", f"the same: share of {race['runs']} runs that name the best", race["right"] / race["runs"]),
    ]
    return [{"what": what, "value": value, "from": f"benchmarks/results/{name}"} for name, what, value in found]


def write(version: str, results: Path = RESULTS, history: Path = HISTORY) -> Path:
    """Write the file of a release and return its path."""
    target = history / f"{version}.json"
    with atomic_write(target) as path:
        path.write_text(json.dumps({"version": version, "numbers": numbers(results)}, indent=2) + "\n")
    return target


def table(history: Path = HISTORY) -> str:
    """Return the numbers of all releases as a table in Markdown: one row for each number, one column for each release.

    Args:
        history: the folder of the files.
    """
    files = [json.loads(path.read_text()) for path in history.glob("*.json")]
    files.sort(key=lambda file: [int(part) for part in file["version"].split(".")])
    versions = [file["version"] for file in files]
    values: dict[str, dict[str, float]] = {}
    for file in files:
        for entry in file["numbers"]:
            values.setdefault(entry["what"], {})[file["version"]] = entry["value"]
    lines = [f"| measured | {' | '.join(versions)} |", "|---" * (len(versions) + 1) + "|"]
    for what, known in values.items():
        cells = [f"{known[version]:,g}" if version in known else "-" for version in versions]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", help="write the file of this release; without it, print all as a table")
    version = parser.parse_args().version
    print(table() if version is None else write(version))
