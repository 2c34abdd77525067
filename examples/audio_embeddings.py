"""Which of my synthesisers sounds most like the recordings?
=========================================================

Audio: choose between synthesisers by a Frechet audio distance, with your own module as the feature network.

The "real" recordings are plucked strings (Karplus and Strong); the candidates are the same strings with one thing
wrong. The embedding is what FAD's VGGish starts with, the log-mel spectrogram, reduced to its mean and spread over
time. A pretrained network (VGGish, CLAP, or I3D for video) is used in the same way: a module that takes what the
samplers return, here waveforms of shape (n, samples), and returns one row of features per sample::

    python examples/audio_embeddings.py [--fast]
"""

import argparse

import torch
from torch import Tensor, nn

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics, SelectionResult

RATE, LENGTH = 8000, 4000


class LogMel(nn.Module):
    """Mean and standard deviation over time of a log-mel spectrogram: (n, samples) -> (n, 2 * bands)."""

    def __init__(self, bands: int = 16, window: int = 256):
        super().__init__()
        self.num_features, self.window = 2 * bands, window
        mel = torch.linspace(0, 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700)), bands + 2)
        edges = 700 * (10 ** (mel / 2595) - 1)
        hertz = torch.linspace(0, RATE / 2, window // 2 + 1)
        rising = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        falling = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
        self.register_buffer("filters", torch.minimum(rising, falling).clamp_min(0))

    def forward(self, waves: Tensor) -> Tensor:
        window = torch.hann_window(self.window)
        spectrum = torch.stft(waves, self.window, self.window // 2, window=window, return_complex=True).abs() ** 2
        mel = (self.filters @ spectrum + 1e-4).log()
        return torch.cat([mel.mean(dim=2), mel.std(dim=2)], dim=1)


class Strings:
    """Plucked strings of random pitch; the arguments are what a poor synthesiser gets wrong."""

    def __init__(self, decay: float = 0.996, noise: float = 0.0, detune: float = 1.0):
        self.decay, self.noise, self.detune = decay, noise, detune

    def __call__(self, num_samples: int, generator: torch.Generator) -> Tensor:
        waves = torch.zeros(num_samples, LENGTH)
        for wave in waves:
            pitch = self.detune * float(torch.empty(()).uniform_(110, 330, generator=generator))
            period = int(RATE / pitch)
            wave[:period] = 2 * torch.rand(period, generator=generator) - 1
            for start in range(period, LENGTH, period):
                last = wave[start - period : start]
                piece = self.decay * (last + last.roll(1)) / 2
                wave[start : start + period] = piece[: LENGTH - start]
        return waves + self.noise * torch.randn(waves.shape, generator=generator)


def main(fast: bool) -> SelectionResult:
    network = LogMel()
    generator = torch.Generator().manual_seed(0)
    recordings = [Strings()(50, generator) for _ in range(4 if fast else 40)]
    reference = ReferenceStatistics.from_images(recordings, network)  # "images" are whatever the network takes

    selector = ModelSelector(
        metric=OptimisticFID(network, reference=reference),
        arms={
            "dull": Strings(decay=0.95),
            "noisy": Strings(noise=0.03),
            "right": Strings(),
            "too high": Strings(detune=1.3),
        },
        batch_size=10,
        budget=160 if fast else 2000,
        stop="likely",
    )
    result = selector.run(progress=False)
    print(result)
    print(f"\n{result.best} ({result.status}), {result.total_samples} sounds made")
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    result = main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
