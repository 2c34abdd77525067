"""The API reference builds without a warning and misses nothing that is public."""

import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.filterwarnings("ignore")  # what Sphinx and its themes deprecate is theirs
def test_reference_builds_without_warnings_and_is_complete(tmp_path):
    from sphinx.cmd.build import build_main

    assert build_main(["-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]) == 0
    pages = "".join(page.read_text() for page in tmp_path.glob("*.html"))
    for module in ("", ".callbacks", ".policies", ".functional", ".extractors", ".simulation"):
        package = importlib.import_module(f"tm_bandit{module}")
        for name in package.__all__:
            value = getattr(package, name)
            if callable(value):
                assert f'id="{value.__module__}.{name}"' in pages or f'id="tm_bandit{module}.{name}"' in pages, name
