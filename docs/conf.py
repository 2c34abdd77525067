"""Sphinx configuration: pages in Markdown, and the API reference from the docstrings."""

import sys
from pathlib import Path

from docutils import nodes

from tm_bandit.__about__ import __version__

sys.path.insert(0, str(Path(__file__).parent))  # for _gallery.py

project = "tm_bandit"
author = copyright = "the tm_bandit contributors"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py"]
html_theme = "furo"
html_title = f"tm_bandit {version}"

# Two hyphens are an option of a command, not a dash.
smartquotes_action = "qe"

# Links between pages lead to headings too, on the site as on GitHub.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
# A class is documented by its docstring, which has the arguments too; Metric's own machinery is torchmetrics' subject.
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    # All but the one that starts further processes.
    "filename_pattern": r"/(?!two_processes)\w+\.py$",
    "reset_argv": "_gallery.short_mode",
    "image_scrapers": ("_gallery.draw_result", "matplotlib"),
    "download_all_examples": False,
    "show_memory": False,
}


def dashes(app, doctree):
    """Put a dash between an argument and its description, where Sphinx has two hyphens."""
    for text in [text for text in doctree.findall(nodes.Text) if text == " -- "]:
        text.parent.replace(text, nodes.Text(" – "))


def setup(app):
    """Register what is done beside Sphinx's own work."""
    app.connect("doctree-read", dashes)
