"""Break the core in one place after the other, in a copy, and see whether the tests notice: ``make mutants``.

``python -m tests.mutants`` tries all, ``python -m tests.mutants 3 17`` or ``python -m tests.mutants 0:15`` a few,
``python -m tests.mutants missing`` those without a row, and ``python -m tests.mutants since COMMIT`` those in files
that differ from that commit. The table goes to ``results.md`` row by row; rows of places that were not tried this time
stay as long as the catalogue still has the very change they tell of.
"""

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn, TextIO

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = Path(__file__).with_name("results.md")
PARTS = ("tm_bandit", "callbacks", "tests", "benchmarks", "examples", "README.md", "pyproject.toml")
HEAD = """# Places in which the core was broken on purpose

`make mutants` writes this: each place is changed in a copy of the repository, and the tests of that place must fail.
The test that noticed is run once more without the change, where it must pass. The next time it is asked first.

| | file | instead of | stands | noticed by |
|---|---|---|---|---|
"""

LIMIT = 600  # seconds for the tests of a place
#: What takes seconds to load, and is loaded once.
SLOW = ("torch", "torchmetrics", "lightning.pytorch", "scipy.stats", "hypothesis", "matplotlib.figure", "PIL.Image")

NOBODY, ENDLESS = "**nobody**", "a test that does not end"


def run(tests: list[str], copy: Path) -> str:
    """Return the first test that fails; empty if all pass."""
    with tempfile.TemporaryFile("w+") as output:
        process = os.fork()
        if process == 0:
            run_here(tests, copy, output)
        code, deadline = None, time.monotonic() + LIMIT
        while code is None and time.monotonic() < deadline:
            time.sleep(0.05)
            ended, status = os.waitpid(process, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
        if code is None:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return ENDLESS
        output.seek(0)
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output.read(), re.MULTILINE)
    return "" if code == 0 else found.group(1) if found else f"exit code {code}"


def run_here(tests: list[str], copy: Path, output: TextIO) -> NoReturn:
    """Run tests in this process, which was forked: it has loaded torch already, but nothing of this repository."""
    try:
        os.setsid()
        sys.stdout = sys.stderr = output
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.chdir(copy)
        os.environ.update(PYTHONPATH=str(copy), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        sys.dont_write_bytecode = True  # a file that is changed twice in a second looks the same
        sys.path[:] = [str(copy), *(place for place in sys.path if Path(place).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "tm_bandit")]:
            del sys.modules[name]
        code = int(pytest.main(["-p", "no:cacheprovider", "-x", "-q", *tests]))
        output.flush()
        os._exit(code)
    finally:
        os._exit(1)


def noticed(mutant: Mutant, copy: Path, last: str = "") -> str:
    """Return the test that fails with the mutant and passes without it; empty if the mutant survives.

    Args:
        mutant: what is changed.
        copy: of the repository.
        last: the test that noticed before. It is asked first, and the others only if it notices nothing now.

    Raises:
        RuntimeError: that test fails without the mutant too, so it says nothing.
    """
    file = copy / mutant.file
    plain = file.read_text()
    file.write_text(plain.replace(mutant.old, mutant.new))
    try:
        again = ".py" in last and run([last], copy) == last
        test = last if again else run(mutant.tests.split(), copy)
    finally:
        file.write_text(plain)
    # A file that cannot even be collected, or a run that breaks off, may have nothing to do with the mutant.
    if test and test != ENDLESS and run([test] if ".py" in test else mutant.tests.split(), copy):
        raise RuntimeError(f"{test} fails without any mutant.")
    return test


def change(mutant: Mutant) -> str:
    """Return the cells of a mutant's row that say what is changed."""
    texts = [" ".join(text.split()).replace("|", "\\|") for text in mutant[1:3]]
    cells = [f"`{text}`" if text else "" for text in texts]
    return f"| {mutant.file} | {cells[0]} | {cells[1]} | "


def known_rows(table: Path = TABLE) -> dict[int, str]:
    """Return who noticed which mutant, as far as the table tells it of the very same change."""
    lines = table.read_text().splitlines() if table.exists() else []
    told = [line.partition(" ")[2].lstrip("0123456789 ") for line in lines]
    rows = {at: row for at, mutant in enumerate(MUTANTS) for row in told if row.startswith(change(mutant))}
    return {at: row.removeprefix(change(MUTANTS[at])).removesuffix(" |") for at, row in rows.items()}


def changed(commit: str, root: Path = ROOT) -> set[str]:
    """Return the files that differ from those of a commit."""
    command = ["git", "diff", "--name-only", "--relative", commit, "--"]
    return set(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines())


def numbers(words: list[str], known: Collection[int] = ()) -> list[int]:
    """Return which mutants are meant: all without words."""
    if words[:1] == ["since"]:
        files = set().union(*map(changed, words[1:]))
        return [at for at, mutant in enumerate(MUTANTS) if mutant.file in files]
    if words in ([], ["missing"]):
        return [at for at in range(len(MUTANTS)) if not words or at not in known]
    spans = [word.partition(":") for word in words]
    return [at for first, colon, last in spans for at in range(int(first), int(last) if colon else int(first) + 1)]


def main(words: list[str]) -> int:
    """Try mutants, write the table and return how many survived."""
    os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="Agg")
    for name in SLOW:
        importlib.import_module(name)
    found, survivors = known_rows(), 0
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            place = ROOT / part
            if place.is_dir():
                shutil.copytree(place, Path(folder) / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(place, folder)
        for at in numbers(words, found):
            found[at] = noticed(MUTANTS[at], Path(folder), found.get(at, "")) or NOBODY
            survivors += found[at] == NOBODY
            rows = {key: f"| {key} {change(MUTANTS[key])}{test} |" for key, test in sorted(found.items())}
            print(rows[at], flush=True)
            TABLE.write_text(HEAD + "\n".join(rows.values()) + "\n")
    return survivors


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
