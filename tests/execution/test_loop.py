"""The local loop with its bar."""

from tm_bandit.execution.loop import run_to_the_end


class Steps:
    """Three pulls of five samples."""

    budget, best = 15, None

    def __init__(self, failing_at=None):
        self.spent, self.failing_at = 0, failing_at

    def step(self):
        if self.spent == self.failing_at:
            raise KeyboardInterrupt
        if self.spent == self.budget:
            return None
        self.spent += 5
        self.best = "a"
        return "a"


def test_it_goes_on_until_there_is_nothing_left(capsys):
    run = Steps()
    assert run_to_the_end(run, progress=False, plan="a plan") is False
    assert run.spent == 15
    assert capsys.readouterr() == ("", "")


def test_the_plan_comes_before_the_bar(capsys):
    assert run_to_the_end(Steps(), progress=True, plan="a plan") is False
    shown = capsys.readouterr()
    assert "a plan" in shown.out
    assert "15/15" in shown.err or "0/15" in shown.err


def test_ctrl_c_ends_it():
    run = Steps(failing_at=10)
    assert run_to_the_end(run, progress=False) is True
    assert run.spent == 10
