"""Tiny diffusers pipelines and a tiny CLIP with random weights, made without any download."""

import json

import torch
from diffusers import (
    AutoencoderKL,
    CMStochasticIterativeScheduler,
    ConsistencyModelPipeline,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UNet2DModel,
)
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
)

TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
BLOCKS = {"block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}


def tokenizer(folder):
    """Characters as words."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters)]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16)


def text_config():
    return {**TEXT, "vocab_size": 54, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1}


def ddpm():
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        **BLOCKS,
    )
    return DDPMPipeline(unet.eval(), DDPMScheduler(num_train_timesteps=10))


def consistency():
    """Its call takes class labels and, besides, how many there are."""
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8,
        num_class_embeds=10,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        **BLOCKS,
    )
    return ConsistencyModelPipeline(unet.eval(), CMStochasticIterativeScheduler(num_train_timesteps=40))


def scheduler():
    return DDIMScheduler(num_train_timesteps=10, clip_sample=False, steps_offset=1)


def vae(channels=4):
    return AutoencoderKL(
        block_out_channels=(8,), norm_num_groups=4, latent_channels=channels, down_block_types=("DownEncoderBlock2D",)
    ).eval()


def dit():
    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
        sample_size=8, num_layers=1, num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4
    )
    return DiTPipeline(
        transformer.eval(), vae(), DDIMScheduler(num_train_timesteps=10, clip_sample=False, steps_offset=1)
    )


def stable_diffusion(folder, safety_checker=None, feature_extractor=None):
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        **BLOCKS,
    )
    return StableDiffusionPipeline(
        vae=vae(),
        text_encoder=CLIPTextModel(CLIPTextConfig(**text_config())).eval(),
        tokenizer=tokenizer(folder),
        unet=unet.eval(),
        scheduler=scheduler(),
        safety_checker=safety_checker,
        feature_extractor=feature_extractor,
        requires_safety_checker=safety_checker is not None,
    )


def clip(folder):
    """A CLIP model and its processor."""
    torch.manual_seed(0)
    vision = {**TEXT, "image_size": 16, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text_config(), vision_config=vision, projection_dim=8)).eval()
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return model, CLIPProcessor(images, tokenizer(folder))
