"""What the gallery needs: the short mode of the examples, and the picture of the result that one leaves behind."""

from pathlib import Path
from tempfile import gettempdir

from tm_bandit import SelectionResult


def short_mode(gallery_conf, script_vars):
    """Return the arguments that every example is run with."""
    if Path(script_vars["src_file"]).stem == "paper_experiments":  # it writes files, and not among the examples
        return ["--fast", "--out", str(Path(gettempdir()) / "tm_bandit_gallery")]
    return ["--fast"]


def draw_result(block, block_vars, gallery_conf):
    """Draw the variable ``result`` of an example, and return the text that shows the picture."""
    from sphinx_gallery.scrapers import figure_rst

    result = block_vars["example_globals"].get("result")
    if not isinstance(result, SelectionResult) or block_vars.get("drawn") is result:
        return ""
    block_vars["drawn"] = result
    path = next(block_vars["image_path_iterator"])
    result.plot(path)
    return figure_rst([path], gallery_conf["src_dir"])
