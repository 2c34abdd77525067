"""An arm that fails leaves a warning with its traceback in the log, wherever it failed, or ends the run."""

import logging
import pickle

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector
from tm_bandit._failures import keep_trace, trace_of
from tm_bandit.errors import ArmError, InputError


def deep_inside():
    raise OSError("the disk is gone")


def failing(num_samples, generator):
    deep_inside()


def few(num_samples, generator):
    return torch.zeros(1, 1)


def near(num_samples, generator):
    return torch.randn(num_samples, 1, generator=generator)


def selector(broken=failing, **kwargs):
    arms = {"near": near, "far": gaussian(5.0), "broken": broken}
    return ModelSelector(MeanMetric(), arms, budget=120, batch_size=10, samples="features", **kwargs)


def test_a_failing_sampler_is_retired_with_a_warning_and_its_traceback(caplog):
    result = selector().run(progress=False)
    assert result.best == "near"
    assert result.retired == {"broken": "the sampler raised OSError: the disk is gone"}
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("tm_bandit", logging.WARNING)
    assert record.getMessage().startswith(
        "The arm 'broken' is retired: the sampler raised OSError: the disk is gone.\n"
    )
    assert "in deep_inside" in record.getMessage()


def test_an_answer_that_is_refused_has_no_traceback_of_ours(caplog):
    selector(few).run(progress=False)
    (record,) = caplog.records
    assert record.getMessage().startswith("The arm 'broken' is retired: Expected 10 samples, but got 1")
    assert record.getMessage().endswith("were asked for.")  # one full stop
    assert "Traceback" not in record.getMessage()


@pytest.mark.parametrize("how", [{}, {"chunk_size": 5}])
def test_for_debugging_the_error_ends_the_run(how, caplog):
    run = selector(on_error="raise")
    with pytest.raises(ArmError, match="The arm 'broken' failed: the sampler raised OSError") as caught:
        run.run(progress=False, **how)
    assert isinstance(caught.value.__cause__, OSError)
    assert run.arms == ["near", "far", "broken"]
    assert not caplog.records
    assert run.draws("broken") == 0  # its pull was given back


def test_what_was_told_is_raised_too():
    run = selector(on_error="raise")
    pull = next(pull for pull in run.ask(3) if pull.arm == "far")
    with pytest.raises(ArmError, match="The arm 'far' failed: TimeoutError: no answer") as caught:
        run.tell(pull, TimeoutError("no answer"))
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_another_word_is_refused():
    with pytest.raises(InputError, match="on_error"):
        selector(on_error="ignore")


def test_a_traceback_survives_the_way_to_another_process():
    try:
        try:
            deep_inside()
        except OSError as error:
            raise ArmError("the sampler raised it") from error
    except ArmError as error:
        sent = error
    assert trace_of(pickle.loads(pickle.dumps(sent))) == ""
    keep_trace(sent)
    assert "in deep_inside" in trace_of(pickle.loads(pickle.dumps(sent)))


def test_workers_send_the_traceback(caplog):
    run = ModelSelector(MeanMetric(), {"near": near, "broken": failing}, budget=80, batch_size=10, samples="features")
    result = run.run(progress=False, workers=1)
    assert list(result.retired) == ["broken"]
    assert sum("in deep_inside" in record.getMessage() for record in caplog.records) == 1
