"""The loop with its bar; tests/execution/test_ranks.py and test_hand_out.py run it in several processes."""

from tm_bandit.execution.loop import show


class Steps:
    """Three pulls of five samples."""

    budget, best, unit = 15, None, "samples"

    def __init__(self, failing_at=None):
        self.spent, self.failing_at = 0, failing_at

    @property
    def used(self):
        return self.spent

    def step(self):
        if self.spent == self.failing_at:
            raise KeyboardInterrupt
        if self.spent == self.budget:
            return None
        self.spent += 5
        self.best = "a"
        return "a"


def shown(run, **kwargs):
    return show(run, iter(run.step, None), **kwargs)


def test_it_goes_on_until_there_is_nothing_left(capsys):
    run = Steps()
    assert shown(run, progress=False, plan="a plan") is False
    assert run.spent == 15
    assert capsys.readouterr() == ("", "")


def test_the_plan_comes_before_the_bar(capsys):
    assert shown(Steps(), progress=True, plan="a plan") is False
    output = capsys.readouterr()
    assert "a plan" in output.out
    assert "15/15" in output.err or "0/15" in output.err


def test_ctrl_c_ends_it():
    run = Steps(failing_at=10)
    assert shown(run, progress=False) is True
    assert run.spent == 10
