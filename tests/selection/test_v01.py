"""What version 0.1 wrote can be read."""

from pathlib import Path

import pytest
import torch

from tests.selection.golden import fid, fid_samplers
from tm_bandit import ModelSelector, SelectionResult
from tm_bandit.errors import InputError

FOLDER = Path(__file__).parents[1] / "data" / "v01"


def test_a_result_loads():
    result = SelectionResult.from_json(FOLDER / "result.json")
    assert (result.best, result.status) == ("fid0", "tie")
    assert result.total_samples == 600
    assert result.retired == {"fid4": "taken out"}
    assert len(result.history["arm"]) == 120
    assert "fid0" in result.to_markdown()


def test_a_state_loads_and_the_run_goes_on():
    state = torch.load(FOLDER / "selector.pt", weights_only=True)
    selector = ModelSelector(
        fid("witness"), fid_samplers(), batch_size=5, budget=600, seed=5, samples="features", pairing="independent"
    )
    selector.load_state_dict(state)
    assert selector.spent == 200
    assert selector.retired == {"fid4": "taken out"}
    pulls = {saved["name"]: saved["stats"]["pulls"] for saved in state["arms"]}
    assert {name: selector.draws(name) for name in pulls} == pulls
    result = selector.run(progress=False)
    assert result.total_samples == 600
    assert result.stopped_by == "budget"
    first = SelectionResult.from_json(FOLDER / "result.json").history
    assert result.history["arm"][:40] == first["arm"][:40]
    assert result.history["estimate"][:40] == pytest.approx(first["estimate"][:40])


def test_a_state_had_independent_noise():
    state = torch.load(FOLDER / "selector.pt", weights_only=True)
    selector = ModelSelector(fid("witness"), fid_samplers(), batch_size=5, budget=600, seed=5, samples="features")
    with pytest.raises(InputError, match="pairing='common', but got one with 'independent'; use the same value"):
        selector.load_state_dict(state)
    assert selector.spent == 0
