"""The books of a training run: which arms are out for failing, and which sidecars no checkpoint can ask for."""

from tm_bandit.callbacks._arms import TrainedArm
from tm_bandit.callbacks._books import Books
from tm_bandit.callbacks._sidecar import sidecar_name, validation_id


def test_one_failure_may_pass_and_two_do_not():
    books = Books()
    assert books.strike(["a", "b"], {"a"}, set()) == []
    assert books.failures == {"a": 1}
    assert books.strike(["a", "b"], {"b"}, set()) == []
    assert books.failures == {"b": 1}, "a validation without failure clears the count"
    assert books.strike(["a", "b"], {"b"}, set()) == ["b"]
    assert books.failures == {}


def test_what_is_known_of_an_arm_outlives_its_failures():
    books = Books()
    for count in (1, 2, 3):
        assert books.strike(["a", "b"], {"a"}, {"a"}) == []
        assert books.failures == {"a": count}


def filled(validations):
    books = Books()
    for step in range(1, validations + 1):
        books.admit(TrainedArm(step))
        books.admitted = {f"step{step}": str(step)}
        books.turn_page(step)
    return books


def test_a_page_is_named_after_the_one_before():
    books = filled(2)
    first = validation_id("", 1, {"step1": "1"})
    assert books.lineage == [first, validation_id(first, 2, {"step2": "2"})]
    assert (books.number, books.step, books.known) == (2, 2, ["step1", "step2"])


def test_sidecars_that_a_checkpoint_can_ask_for_stay():
    books = filled(2)
    books.note_checkpoint({"number": 2, "validation": books.validation}, step=2)
    for step in (3, 4, 5):
        books.turn_page(step)
    # Its own, the next one's (it may have been written just before that validation), and the newest.
    assert list(books.superseded()) == [sidecar_name(books.lineage[0]), sidecar_name(books.lineage[3])]
    books.note_checkpoint({"number": 5, "validation": books.validation}, step=5)
    books.close()
    assert list(books.superseded()) == [sidecar_name(name) for name in books.lineage[:4]]
    assert books.confirmed == (5, books.validation)
