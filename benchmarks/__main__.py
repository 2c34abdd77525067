"""``python -m benchmarks``: every benchmark of the package; ``--full`` is the paper's setting and takes hours."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
from pathlib import Path

PARTS = ("metrics", "kid", "witness", "cures", "selection", "cost", "intervals", "callback", "workers")


def main() -> None:
    """Run the parts that are asked for and leave their tables in a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all trials of the paper's setting (hours)")
    parser.add_argument("--render-only", action="store_true", help="tables of what an interrupted selection run left")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only (may be repeated)")
    default = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=None, help=f"folder for tables and plots (default: {default.name})")
    arguments = parser.parse_args()
    out = arguments.out or (default if arguments.full else default / "short")
    out.mkdir(parents=True, exist_ok=True)
    if arguments.render_only:
        importlib.import_module("benchmarks.selection").main(full=arguments.full, out=out, render_only=True)
        return
    for part in arguments.only or PARTS:
        name = f"benchmarks.{part}"
        if importlib.util.find_spec(name) is None:
            continue
        start = time.perf_counter()
        print(f"== {part}", flush=True)
        importlib.import_module(name).main(full=arguments.full, out=out)
        print(f"== {part}: {time.perf_counter() - start:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
