"""The docs site builds without a warning and misses nothing that is public; its code and figures run."""

import importlib
import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from tm_bandit.cli import main

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts and "gallery" not in page.parts)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what Sphinx and its themes deprecate is theirs
def test_site_builds_without_warnings_and_the_reference_is_complete(tmp_path):
    from sphinx.cmd.build import build_main

    one = "sphinx_gallery_conf.filename_pattern=/tune_sampler"  # the other examples have tests of their own
    assert build_main(["-q", "-W", "--keep-going", "-b", "html", "-D", one, str(DOCS), str(tmp_path)]) == 0
    pages = "".join(page.read_text() for page in (tmp_path / "api").glob("*.html"))
    assert " – " in pages
    assert "</strong> -- " not in pages, "an argument and its description are divided by a dash"
    for module in ("", ".callbacks", ".policies", ".functional", ".extractors", ".simulation"):
        package = importlib.import_module(f"tm_bandit{module}")
        for name in package.__all__:
            value = getattr(package, name)
            if callable(value):
                assert f'id="{value.__module__}.{name}"' in pages or f'id="tm_bandit{module}.{name}"' in pages, name


def prepared(page, folder):
    """What a page says that the reader brings along."""
    if page.stem != "prompts_and_diffusers":
        return {}
    from tests.samplers import tiny
    from tm_bandit.extractors import Clip

    return {"pipe": tiny.stable_diffusion(folder), "clip": Clip(*tiny.clip(folder))}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.relative_to(DOCS).as_posix()
)
@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers' schedulers
def test_code_of_a_page_runs_from_top_to_bottom(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "docs", **prepared(page, tmp_path)}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), namespace)
    for line in "".join(blocks(page, "bash")).splitlines():
        if line.startswith("tm-bandit"):
            assert main(shlex.split(line)[1:]) == 0, line
    said = re.findall(r"print\(result\.best, result\.status\)  # (\w+) (\w+)", page.read_text())
    assert all((namespace["result"].best, namespace["result"].status) == pair for pair in said)


def test_every_block_is_one_that_the_tests_know():
    known = {"python", "bash"}
    for page in PAGES:
        opened = re.findall(r"^```(\S+)", page.read_text(), flags=re.MULTILINE)
        assert {kind for kind in opened if not kind.startswith("{")} <= known, page
        for line in "".join(blocks(page, "bash")).splitlines():
            assert line.startswith(("tm-bandit ", "pip install ")), f"{page}: {line} is run by nobody"


def test_the_times_in_the_guide_are_those_of_the_table():
    table = (DOCS.parent / "benchmarks" / "results" / "folders.md").read_text()
    ours, theirs = re.findall(r"\| ([\d.]+) (?:s|h) \|", table)
    guide = (DOCS / "guides" / "after_training.md").read_text()
    assert f"took {ours} seconds of processor time; pytorch-fid over all of them takes {theirs} hours" in guide


def test_every_figure_is_drawn_by_a_file_that_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["figures.py", "--fast", "--out", str(tmp_path)])
    runpy.run_path(str(DOCS / "figures.py"), run_name="__main__")
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert all(path.stat().st_size > 10_000 for path in tmp_path.glob("*.png"))
    text = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"images/(\w+\.png)", text)) == drawn | {"demo.png"}
    assert {path.name for path in (DOCS / "images").glob("*.png")} == drawn | {"demo.png"}


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_table_of_the_benchmarks_is_on_a_page_and_its_command_exists():
    text = "".join(page.read_text() for page in PAGES)
    shown = set(re.findall(r"\{include\} \S*/benchmarks/results/(\S+\.md)", text))
    results = DOCS.parent / "benchmarks" / "results"
    kept = {path.relative_to(results).as_posix() for path in results.rglob("*.md")}
    assert kept == shown
    commands = set(re.findall(r"`python -m (benchmarks(?:\.\w+)?)[ `]", (DOCS / "benchmarks.md").read_text()))
    assert {"benchmarks.paired", "benchmarks.cost", "benchmarks.kid"} <= commands
    assert all(importlib.util.find_spec(name) for name in commands)


def test_files_of_the_benchmarks_that_are_named_exist():
    root = DOCS.parent
    texts = [*PAGES, *(root / "tm_bandit").rglob("*.py"), *(root / "callbacks").rglob("*.py"), *root.glob("*.md")]
    named = {name for path in texts for name in re.findall(r"benchmarks/[\w/]+\.(?:md|json|py)", path.read_text())}
    assert "benchmarks/results/cures.md" in named
    assert not [name for name in named if not (root / name).exists()]
