"""The public errors and how they are shown."""

import pickle

import pytest
import torch

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics, errors


@pytest.mark.parametrize("name", ["InputError", "NotReadyError", "WeightsError", "ArmError"])
def test_every_error_of_ours_can_be_caught_as_one(name):
    error = getattr(errors, name)
    assert issubclass(error, errors.BanditError)
    assert error.__doc__
    assert name in errors.__all__


def test_wrong_input_is_a_value_error_too():
    assert issubclass(errors.InputError, ValueError)


def test_a_long_message_is_cut_to_one_line():
    line = errors.brief(RuntimeError("first\n  second " + "x" * 400))
    assert line.startswith("RuntimeError: first second xxx")
    assert line.endswith("…")
    assert len(line) == len("RuntimeError: ") + 300


def test_torchs_advice_to_run_what_is_in_a_file_is_left_out():
    error = pickle.UnpicklingError("Weights only load failed. Re-running with `weights_only=False` will succeed.")
    assert errors.brief(error) == "UnpicklingError: Weights only load failed"


def test_what_was_got_may_be_long_but_the_message_is_not():
    error = errors.InputError(f"Expected a name, but got {'x' * 100_000!r}; rename\n  it.")
    assert len(str(error)) < 1100
    assert str(error).startswith("Expected a name, but got 'xxx")
    assert str(error).endswith("xxx'; rename it.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_warning_points_at_the_users_line_wherever_it_is_found():
    def sample(num_samples, generator):
        return torch.randn(num_samples, 8, generator=generator)

    few = ReferenceStatistics.from_features(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)))
    selector = ModelSelector(OptimisticFID("none", few), {"a": sample, "b": sample}, budget=60, samples="features")
    with pytest.warns(UserWarning, match="40 images for 8 features") as caught:
        selector.run(progress=False)
    assert {warning.filename for warning in caught} == {__file__}
