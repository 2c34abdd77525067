"""The local loop: one pull after the other, with a progress bar."""

from __future__ import annotations

from typing import Protocol


class Run(Protocol):
    """What the loop needs of a selector."""

    budget: int

    @property
    def spent(self) -> int:
        """Samples drawn so far."""

    @property
    def best(self) -> str | None:
        """The arm that is recommended now."""

    def step(self) -> str | None:
        """Make one pull and return the arm's name, or ``None`` at the end."""


def run_to_the_end(run: Run, progress: bool, plan: str = "") -> bool:
    """Make pulls until there are none left; return whether Ctrl-C ended it.

    Args:
        run: the selector.
        progress: show a bar.
        plan: what to print before.
    """
    from tqdm.auto import tqdm

    if progress and plan:
        tqdm.write(plan)
    try:
        with tqdm(total=run.budget, initial=run.spent, unit="sample", disable=not progress, leave=False) as bar:
            while (name := run.step()) is not None:
                bar.set_postfix_str(f"{name} | best {run.best or '-'}", refresh=False)
                bar.update(run.spent - bar.n)
    except KeyboardInterrupt:
        return True
    return False
