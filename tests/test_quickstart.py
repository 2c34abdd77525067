"""The notebook runs from top to bottom, shows a table and a picture, and is stored without outputs."""

import copy
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_stored_without_outputs(stored):
    assert all(not cell.outputs and cell.execution_count is None for cell in stored.cells if cell.cell_type == "code")
    assert NOTEBOOK.stat().st_size < 10_000
    assert stored.cells[0].source.splitlines()[0].endswith("?")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what Jupyter's own packages deprecate is theirs
def test_it_runs_and_shows_a_table_and_a_picture(stored, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    # The kernel is a process of its own, and would otherwise look for the package where it is installed.
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parent.parent))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    done = NotebookClient(copy.deepcopy(stored), timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output["data"] for output in outputs if "data" in output]
    table = next(data for data in shown if "noise 0.05" in data.get("text/html", ""))
    assert table["text/plain"].startswith("SelectionResult(best='noise 0.05'")
    assert len(table["text/plain"]) < 200
    assert sum("image/png" in data for data in shown) == 1, "plot() shows one picture, once"
    assert any("behind" in data.get("text/html", "") for data in shown if data is not table), "a data frame"
    texts = [output for output in outputs if output.output_type == "stream"]
    assert not any("Traceback" in output.text for output in texts)
