"""What is installed: the wheel's and the sdist's contents, and what an import costs."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tm_bandit

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it along there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Build an sdist, and a wheel from that sdist, as an installer without a checkout would."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def sources():
    """All modules on disk, under the names they are installed as."""
    folders = {"tm_bandit": ROOT / "tm_bandit", "tm_bandit/callbacks": ROOT / "callbacks"}
    return {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in folders.items()
        for path in folder.rglob("*.py")
        if "callbacks" not in path.relative_to(folder).parts
    }


def test_package_list_equals_the_disk(project):
    on_disk = {name.rpartition("/")[0].replace("/", ".") for name in sources()}
    assert set(project["tool"]["setuptools"]["packages"]) == on_disk


def test_wheel_holds_every_module_and_no_stray_package(archives):
    with zipfile.ZipFile(archives[1]) as wheel:
        names = set(wheel.namelist())
        top_level = next(wheel.read(name).decode().split() for name in names if name.endswith("top_level.txt"))
    assert top_level == ["tm_bandit"]
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"tm_bandit"}
    assert sources() <= names
    assert {name for name in names if name.endswith(".py")} == sources()
    assert {"tm_bandit/py.typed", "tm_bandit/report/page.html"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_sdist_can_be_built_from(archives):
    with tarfile.open(archives[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "callbacks/__init__.py", "tm_bandit/__init__.py"} <= names


def test_wheel_imports_without_the_checkout_and_loads_nothing_heavy(archives, tmp_path):
    """One fresh interpreter; what counts is what comes on top of torchmetrics, which loads optional packages itself."""
    with zipfile.ZipFile(archives[1]) as wheel:
        wheel.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import tm_bandit.cli.parser\n"
        "assert 'torch' not in sys.modules  # `tm-bandit --help` does not wait for it\n"
        "import torchmetrics; before = set(sys.modules) - {'tm_bandit'}\n"
        "from tm_bandit import *\n"
        "print(' '.join({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
        "import tm_bandit.callbacks\n"
        "assert tm_bandit.__file__.startswith(sys.argv[1]), tm_bandit.__file__\n"
        "assert tm_bandit.callbacks.__file__.startswith(sys.argv[1])\n"
        "assert 'callbacks' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "tm_bandit" in loaded
    heavy = {"lightning", "pytorch_lightning", "lightning_fabric", "torch_fidelity", "torchvision", "matplotlib"}
    heavy |= {"sklearn", "pandas", "PIL", "tqdm", "jsonargparse", "numba", "onnx"}
    assert loaded & heavy == set()


def test_version_is_the_projects(project, archives):
    assert f"-{tm_bandit.__version__}-" in archives[1].name
    assert f"## [{tm_bandit.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
