"""Sphinx configuration: the API reference is made from the docstrings."""

from tm_bandit.__about__ import __version__

project = "tm_bandit"
author = "the tm_bandit contributors"
version = release = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"tm_bandit {version}"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
# A class is documented by its docstring, which has the arguments too; Metric's own machinery is torchmetrics' subject.
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
