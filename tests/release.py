"""A release without publishing: build it, install the wheel where the source is not, and test what was installed.

``make release-check`` runs it. The environment is new and holds the wheel alone; what the wheel needs is borrowed from
the environment that runs this, so that nothing is downloaded. ``--final`` also wants the papers in order.
"""

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: A few tests of each room that are fast and need nothing but the package and ``tests``.
TESTS = (
    "tests/functional/test_frechet.py",
    "tests/metrics/test_base.py",
    "tests/selection/test_v01.py",
    "tests/report/test_result.py",
    "tests/callbacks/test_bandit_checkpoint.py",
)

SMOKE = """
import pathlib, sys
import torch
import tm_bandit, tm_bandit.callbacks
from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics

for module in (tm_bandit, tm_bandit.callbacks):
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), f"not the wheel: {module.__file__}"
reference = ReferenceStatistics(torch.zeros(4), torch.eye(4), 10_000)
metric = OptimisticFID(feature=torch.nn.Identity(), reference=reference)
def arm(shift):
    return lambda num_samples, generator: shift + torch.randn(num_samples, 4, generator=generator)
result = ModelSelector(metric, {"far": arm(1.0), "near": arm(0.1)}, budget=400, samples="features").run(progress=False)
assert result.best == "near", result
result.to_html("report.html")
"""


def version(root: Path = ROOT) -> str:
    """Return the version that the source says it is."""
    return re.search(r'__version__ = "(.+)"', (root / "tm_bandit" / "__about__.py").read_text())[1]


def open_points(root: Path = ROOT) -> list[str]:
    """Return what still has to be written before this version is published."""
    number = version(root)
    heading = re.search(r"^## \[(.+?)\] - (.+)$", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    found = []
    if heading[1] != number:
        found.append(f"tm_bandit/__about__.py says {number}, and the newest entry of CHANGELOG.md is {heading[1]}.")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        found.append(f"CHANGELOG.md says {heading[2]!r} where version {heading[1]} needs its date.")
    if not (root / "benchmarks" / "history" / f"{heading[1]}.json").exists():
        found.append(f"benchmarks/history has no {heading[1]}.json; see the README there.")
    return found


def call(*command: object, folder: Path) -> str:
    """Run a command in a folder and return what it printed; end with its output if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\nfailed: {' '.join(map(str, command))}")
    return done.stdout


def environment(folder: Path, wheel: Path) -> Path:
    """Make an environment that holds the wheel, and return the folder of its programs."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    call(programs / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel, folder=folder)
    # A path in a .pth file comes after the wheel, and the .pth files there, an editable install's, are not looked at.
    site = call(programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder)
    (Path(site.strip()) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def main(final: bool) -> int:
    missing = open_points()
    for point in missing:
        print(f"open: {point}")
    if final and missing:
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # From a copy, so that no `build` folder of earlier times gets into the wheel.
        source = shutil.copytree(
            ROOT, folder / "source", symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info")
        )
        call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", source, folder=folder)
        shutil.rmtree(source)
        (sdist,), (wheel,) = (list((folder / "dist").glob(kind)) for kind in ("*.tar.gz", "*.whl"))
        print(f"built: {sdist.name} ({sdist.stat().st_size >> 10} kB), {wheel.name} ({wheel.stat().st_size >> 10} kB)")
        programs = environment(folder / "venv", wheel)
        empty = folder / "empty"
        empty.mkdir()
        call(programs / "python", "-c", SMOKE, folder=empty)
        assert version() in call(programs / "tm-bandit", "--version", folder=empty)
        print("installed: a selection and the command line work")
        run = folder / "run"
        shutil.copytree(ROOT / "tests", run / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", run)
        said = call(programs / "python", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS, folder=run)
        print(f"tested: {said.strip().splitlines()[-1]}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--final", action="store_true", help="fail if changelog, version or history are not ready")
    sys.exit(main(parser.parse_args().final))
