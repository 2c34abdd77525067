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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version")
    print(write(parser.parse_args().version))
