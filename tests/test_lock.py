"""A lock that ends with its process."""

import os
import signal
import time

from tm_bandit._lock import FileLock


def test_one_at_a_time(tmp_path):
    path = tmp_path / "lock"
    path.write_text("untouched")
    one, two = FileLock(path), FileLock(path)
    assert one.acquire()
    assert one.acquire(), "it has it already"
    assert not two.acquire()
    one.release()
    assert two.acquire()
    two.release()
    assert path.read_text() == "untouched"


def test_a_killed_process_leaves_no_lock(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    child = os.fork()
    if child == 0:
        FileLock(path).acquire()
        (tmp_path / "locked").touch()
        time.sleep(60)
        os._exit(0)
    while not (tmp_path / "locked").exists():
        time.sleep(0.01)
    assert not FileLock(path).acquire()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    lock = FileLock(path)
    assert lock.acquire()
    lock.release()
