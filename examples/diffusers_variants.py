"""Which guidance scale, steps and scheduler suit my pipeline and my prompts?
==========================================================================

CLIPScore and FID decide. The pipeline and CLIP are tiny and untrained, so this runs offline; use your own instead.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers as hf
from diffusers import AutoencoderKL, DDIMScheduler, DPMSolverMultistepScheduler, StableDiffusionPipeline
from diffusers import UNet2DConditionModel as UNet

from tm_bandit import ModelSelector, OptimisticFID, OptimisticMean, ReferenceStatistics
from tm_bandit.extractors import Clip
from tm_bandit.samplers import PipelineSampler, grid

PROMPTS = [f"{size} {what}" for size in ("a small", "a large", "no") for what in ("cat", "dog", "car", "tree", "sea")]


def tiny_networks():
    torch.manual_seed(0)
    folder, letters = Path(tempfile.mkdtemp()), "abcdefghijklmnopqrstuvwxyz"
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters)]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokens = hf.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    text = {**size, "vocab_size": 54, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1}
    vision = {**size, "image_size": 16, "patch_size": 4}
    blocks = {"block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 4}
    down, up = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
    unet = UNet(sample_size=8, down_block_types=down, up_block_types=up, cross_attention_dim=16, **blocks).eval()
    vae = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4).eval()
    parts = vae, hf.CLIPTextModel(hf.CLIPTextConfig(**text)).eval(), tokens, unet
    scheduler = DDIMScheduler(clip_sample=False, steps_offset=1)
    pipe = StableDiffusionPipeline(*parts, scheduler, None, None, requires_safety_checker=False)
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).eval()
    pixels = hf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return pipe, Clip(model, hf.CLIPProcessor(pixels, tokens))


torch.set_num_threads(1)  # small networks: on a busy machine, threads would wait for each other
pipe, clip = tiny_networks()
budget = 240 if "--fast" in sys.argv else 2000
schedulers = [DDIMScheduler, DPMSolverMultistepScheduler]
arms = PipelineSampler(pipe).arms(grid(guidance_scale=[1.0, 4.0], num_inference_steps=[2, 8], scheduler=schedulers))
photos = PipelineSampler(pipe, num_inference_steps=20)(90, torch.Generator().manual_seed(1), PROMPTS * 6)
reference = ReferenceStatistics.from_images([photos], clip)
for metric in (OptimisticMean(clip.score, bounded=(-100, 100)), OptimisticFID(clip, reference)):
    selector = ModelSelector(metric, arms, batch_size=10, budget=budget, conditions=PROMPTS, goal="identify")
    result = selector.run(progress=False)
    print(f"{type(metric).__name__}: {result.best} ({result.status}) after {result.total_samples} images")

draws = [clip.score(arm(60, torch.Generator().manual_seed(2), PROMPTS * 4), PROMPTS * 4) for arm in arms.values()]
gains = [float((a.var() + b.var()) / (a - b).var()) for i, a in enumerate(draws) for b in draws[:i]]
print(f"pairing makes the variance of differences in CLIPScore {min(gains):.0f} to {max(gains):.0f} times smaller")
