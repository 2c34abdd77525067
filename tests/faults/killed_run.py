"""Trains, or resumes training, until its moment comes, and kills itself there with SIGKILL.

Usage: python -m tests.faults.killed_run FOLDER VARIANT MOMENT [DEVICES]. A moment is ``never``, ``op:17`` (before the
17th operation on files) or ``call:5`` (before the fifth call of the sampler); ``op:17@1`` is one of rank 1.
"""

import os
import re
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from tests.callbacks.models import Calm, bandit, calm_loaders, fid, trainer

#: How each variant writes checkpoints, and what else is different.
VARIANTS = {
    "after": "ModelCheckpoint writes after the validation, as it does by default",
    "before": "ModelCheckpoint(every_n_train_steps=8) writes before the validation of the same step",
    "averaged": "averaged weights are arms too, and the reference comes from the first validation",
    "memory": 'store="memory"',
}

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

#: What is random in the name of a file: the run, the validation, a temporary name.
_RANDOM = ((r"[0-9a-f]{16}", "RUN"), (r"(?<=stats-)[0-9a-f]{12}", "ID"), (r"\.[0-9a-f]{8}(?=\.tmp)", ".X"))


def plain(name: str) -> str:
    """Return the name of a file without what is random in it."""
    for pattern, text in _RANDOM:
        name = re.sub(pattern, text, name)
    return re.sub(r"\btmp\w{8}$", "tmpX", name)


class Watch:
    """Counts what a training does to the files in a folder, notes it in a log, and kills the process in time.

    Python tells of every file that it opens, renames or deletes (an audit hook cannot miss one). What torch writes
    by itself is seen at its beginning and just before its end, where half of the file is there.
    """

    def __init__(self, folder: Path, moment: str, rank: int = 0) -> None:
        self.folder = os.path.abspath(folder)
        moment, _, chosen = moment.partition("@")
        self.kind, _, count = moment.partition(":")
        self.left = int(count or 0) if rank == int(chosen or 0) else 0
        self.phase = "start"
        self.log = os.open(f"{self.folder}.rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def install(self) -> None:
        """Watch this process, which cannot be undone."""
        sys.addaudithook(self._audit)
        fsync, writer = os.fsync, torch.serialization._open_zipfile_writer_file
        begin, end = writer.__init__, writer.__exit__

        def watched_fsync(file):
            self._note("op", "sync the file that was opened last")  # nobody else syncs files in these processes
            return fsync(file)

        def watched_begin(opener, name):
            self.happens("write", name)
            begin(opener, name)

        def watched_end(opener, *args):
            self.happens("finish", opener.name)
            end(opener, *args)

        os.fsync, writer.__init__, writer.__exit__ = watched_fsync, watched_begin, watched_end

    def _audit(self, event, args):
        if event == "open" and isinstance(args[2], int) and args[2] & _WRITING:
            self.happens("open", args[0])
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink"):
            self.happens(event[3:], *args[: 2 if event in ("os.rename", "os.link") else 1])

    def happens(self, what: str, *paths) -> None:
        """Take notice of an operation that is about to happen."""
        if any(isinstance(path, int) for path in paths):
            return
        names = [os.path.abspath(os.fsdecode(path)) for path in paths]
        # Python asks for the deletion of files that are gone, and for folders that are there: nothing happens then.
        idle = (what == "remove" and not os.path.lexists(names[0])) or (what == "mkdir" and os.path.isdir(names[0]))
        if not idle and any(name.startswith(self.folder + os.sep) for name in names):
            short = [plain(os.path.relpath(name, self.folder)) for name in names]
            self._note("op", f"{what} {' -> '.join(short)}")

    def called(self) -> None:
        """Take notice of a call of the sampler that is about to happen."""
        self._note("call", "sample")

    def _note(self, kind: str, text: str) -> None:
        os.write(self.log, f"{kind}\t{self.phase}\t{text}\n".encode())
        if kind == self.kind and self.left:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


class Phases(pl.Callback):
    """Tells the watch which validation is under way; the first of the callbacks."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.watch.phase = f"step {trainer.global_step}"

    def on_train_end(self, trainer, pl_module):
        self.watch.phase = "end"


class Watched(Calm):
    """Tells the watch of each call of its sampler."""

    watch: Watch

    def sample(self, num_samples, scale=1.0):
        self.watch.called()
        return super().sample(num_samples, scale)


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint to resume from, if there is one."""
    path = folder / "last" / "last.ckpt"
    return path if path.exists() else None


def train(folder: Path, variant: str, watch: Watch, devices: int = 1) -> None:
    """Train to the end, from the last checkpoint on if there is one."""
    settings = {"max_arms": 3, "chunk_size": 5}
    every = {"every_n_train_steps": 8} if variant == "before" else {}
    extra = []
    if variant == "averaged":
        settings = {**settings, "metric": fid(with_reference=False), "max_arms": 4}
        extra = [EMAWeightAveraging(decay=0.7)]
    if variant == "memory":
        settings["store"] = "memory"
    callbacks = [
        Phases(watch),
        bandit(folder / "arms", **settings),
        ModelCheckpoint(folder / "last", save_last=True, **every),
        *extra,
    ]
    parallel = {"devices": devices, "strategy": "ddp"} if devices > 1 else {}
    pl.seed_everything(7, verbose=False)
    run = trainer(folder, *callbacks, max_epochs=5, use_distributed_sampler=False, **parallel)
    module = Watched()
    module.watch = watch
    run.fit(module, *calm_loaders(), ckpt_path=last_checkpoint(folder))


def start(folder: Path, variant: str, moment: str, devices: int = 1) -> None:
    """Train under watch."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Lightning puts a file under way into the folder for temporary files; ours must not litter the machine's.
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(scratch)
    watch = Watch(folder, moment, int(os.environ.get("LOCAL_RANK", "0")))
    watch.install()
    train(folder, variant, watch, devices)


if __name__ == "__main__":
    start(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 1)
