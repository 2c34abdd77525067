"""Diffusers pipelines as samplers: DDPM, DiT and StableDiffusion with random weights."""

import copy
import pickle
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, EulerDiscreteScheduler
from PIL import Image

from tests.samplers import tiny
from tm_bandit import ModelSelector, OptimisticFID, OptimisticMean, ReferenceStatistics
from tm_bandit.errors import InputError
from tm_bandit.samplers import PipelineSampler, grid

PROMPTS = ["a cat", "two dogs", "sea", "a red car", "nothing"]


@pytest.fixture(scope="module")
def pipes(tmp_path_factory):
    return {
        "ddpm": tiny.ddpm(),
        "dit": tiny.dit(),
        "consistency": tiny.consistency(),
        "sd": tiny.stable_diffusion(tmp_path_factory.mktemp("sd")),
    }


CONDITIONS = {"ddpm": None, "dit": [3, 1, 4, 1, 5], "consistency": [3, 1, 4, 1, 5], "sd": PROMPTS}
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers' schedulers


def two(kind):
    """The first two conditions."""
    return CONDITIONS[kind] and CONDITIONS[kind][:2]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", CONDITIONS)
def test_batches_do_not_matter_and_seeds_do(pipes, kind):
    draws = [
        PipelineSampler(pipes[kind], batch_size=size, num_inference_steps=2)(5, seeded(seed), CONDITIONS[kind])
        for size, seed in ((None, 0), (2, 0), (None, 1))
    ]
    assert draws[0].shape == (5, 3, 8, 8)
    assert draws[0].dtype == torch.uint8
    assert int((draws[0].int() - draws[1].int()).abs().max()) <= 1  # rounding
    assert (draws[0] != draws[2]).flatten(1).any(1).all()
    shorter = PipelineSampler(pipes[kind], num_inference_steps=2)(
        2, seeded(), CONDITIONS[kind] and CONDITIONS[kind][:2]
    )
    assert int((draws[0][:2].int() - shorter.int()).abs().max()) <= 1


@pytest.mark.parametrize("kind", ["dit", "sd"])
def test_conditions_reach_the_images(pipes, kind):
    sampler = PipelineSampler(pipes[kind], num_inference_steps=2, guidance_scale=4.0)
    images = sampler(5, seeded(), CONDITIONS[kind])
    others = sampler(5, seeded(), [CONDITIONS[kind][0]] * 5)
    assert torch.equal(images[0], others[0])
    assert (images[1] != others[1]).any()
    named = sampler(5, seeded(), [{sampler.condition: value} for value in CONDITIONS[kind]])
    assert torch.equal(named, images)
    always = PipelineSampler(
        pipes[kind], num_inference_steps=2, guidance_scale=4.0, **{sampler.condition: others_value(kind)}
    )
    assert torch.equal(always(5, seeded()), others)


def others_value(kind):
    return CONDITIONS[kind][0]


@pytest.mark.parametrize("output_type", ["pt", "np", "pil"])
def test_outputs_of_all_kinds_are_the_same_images(pipes, output_type):
    for kind in CONDITIONS:
        expected = PipelineSampler(pipes[kind], num_inference_steps=2)(
            2, seeded(), CONDITIONS[kind] and CONDITIONS[kind][:2]
        )
        sampler = PipelineSampler(pipes[kind], num_inference_steps=2, output_type=output_type)
        images = sampler(2, seeded(), two(kind))
        assert torch.equal(images, expected), kind


def test_floats_on_request(pipes):
    shared = {"num_inference_steps": 2}
    floats = PipelineSampler(pipes["ddpm"], output="float", **shared)(3, seeded())
    assert floats.dtype == torch.float32
    assert torch.equal((floats * 255).round().byte(), PipelineSampler(pipes["ddpm"], **shared)(3, seeded()))


def test_schedulers_are_lent_and_given_back(pipes):
    pipe = pipes["sd"]
    own, bar = pipe.scheduler, dict(getattr(pipe, "_progress_bar_config", {}))
    draws = {
        name: sampler(2, seeded(), PROMPTS[:2])
        for name, sampler in PipelineSampler(pipe, num_inference_steps=2)
        .arms(grid(scheduler=[DDIMScheduler, EulerDiscreteScheduler]))
        .items()
    }
    assert pipe.scheduler is own
    assert pipe._progress_bar_config == bar
    assert (draws["scheduler DDIMScheduler"] != draws["scheduler EulerDiscreteScheduler"]).any()
    assert torch.equal(
        draws["scheduler DDIMScheduler"], PipelineSampler(pipe, num_inference_steps=2)(2, seeded(), PROMPTS[:2])
    )


def test_autocast_of_the_caller_is_respected(pipes):
    sampler = PipelineSampler(pipes["ddpm"], num_inference_steps=2, output="float")
    plain = sampler(2, seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = sampler(2, seeded())
    assert mixed.dtype == torch.float32
    assert not torch.equal(plain, mixed)
    assert torch.allclose(plain, mixed, atol=0.1)


def test_blanks_of_a_safety_checker_are_counted_and_said():
    def pipe(prompt, generator):
        images = torch.rand(len(prompt), 3, 4, 4)
        flags = [text == "bad" for text in prompt]
        return types.SimpleNamespace(images=images, nsfw_content_detected=flags)

    sampler = PipelineSampler(pipe)
    sampler(2, seeded(), ["fine", "fine"])
    with pytest.warns(UserWarning, match="safety checker of function has made 1 of 2 images black"):
        sampler(2, seeded(), ["fine", "bad"])
    sampler(2, seeded(), ["bad", "bad"])  # said once
    assert sampler.blanked == 3


@pytest.mark.parametrize("form", [lambda found: vars(found), lambda found: found])
def test_blanks_are_counted_in_dictionaries_too_and_tuples_are_not_asked_for(form):
    def pipe(prompt, generator, return_dict=True):
        images, flags = torch.zeros(len(prompt), 3, 4, 4), [True] * len(prompt)
        return (
            form(types.SimpleNamespace(images=images, nsfw_content_detected=flags)) if return_dict else (images, flags)
        )

    sampler = PipelineSampler(pipe, return_dict=False)
    with pytest.warns(UserWarning, match="made 2 of 2 images black"):
        sampler(2, seeded(), ["bad", "bad"])
    assert sampler.blanked == 2


def test_one_negative_prompt_is_that_of_every_image(pipes):
    shared = {"num_inference_steps": 2, "guidance_scale": 4.0}
    always = PipelineSampler(pipes["sd"], batch_size=2, negative_prompt="ugly", **shared)(5, seeded(), PROMPTS)
    each = [{"prompt": prompt, "negative_prompt": "ugly"} for prompt in PROMPTS]
    expected = PipelineSampler(pipes["sd"], batch_size=2, **shared)(5, seeded(), each)
    assert torch.equal(always, expected)
    assert (always != PipelineSampler(pipes["sd"], batch_size=2, **shared)(5, seeded(), PROMPTS)).any()


def test_pictures_of_any_form():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    forms = [
        [Image.fromarray(picture) for picture in pixels],
        pixels,
        list(pixels),
        (pixels / 255.0, None),
        {"images": expected},
        expected / 255,
    ]
    for form in forms:
        images = PipelineSampler(lambda batch_size, form=form: form)(2)
        assert torch.equal(images, expected)


def test_sounds_are_left_as_they_are():
    waves = 2 * torch.rand(3, 2, 50, generator=seeded()) - 1
    for form in ({"audios": waves}, {"audios": waves.numpy()}, types.SimpleNamespace(audios=list(waves))):
        assert torch.equal(PipelineSampler(lambda batch_size, form=form: form)(3), waves)


def test_a_video_of_any_form():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 4, 5, 3), dtype=np.uint8)
    expected = torch.from_numpy(pixels).permute(0, 1, 4, 2, 3)
    forms = [pixels, expected, pixels / 255.0, [[Image.fromarray(frame) for frame in video] for video in pixels]]
    for form in forms:
        videos = PipelineSampler(lambda batch_size, form=form: {"frames": form})(2)
        assert torch.equal(videos, expected)


def test_what_is_cut_off_is_said_once():
    sampler = PipelineSampler(lambda batch_size: torch.linspace(-1, 1, 3 * batch_size).reshape(-1, 3, 1, 1))
    with pytest.warns(UserWarning, match=r"function has returned pictures with values from -1 to 1, .*cut off"):
        assert sampler(2).flatten().tolist() == [0, 0, 0, 51, 153, 255]
    sampler(2)
    rounded = PipelineSampler(lambda batch_size: torch.full((batch_size, 3, 1, 1), 1.0005))
    assert rounded(2).unique().tolist() == [255]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["images", "audios"])
def test_what_is_not_finite_does_not_become_black(value, name):
    sampler = PipelineSampler(lambda batch_size: {name: torch.full((batch_size, 3, 2, 2), value)})
    with pytest.raises(InputError, match="Expected finite values of function, but got NaN or infinite ones"):
        sampler(2)


@pytest.mark.parametrize(
    ("pipe", "conditions", "text"),
    [
        (lambda prompt: torch.rand(1, 3, 4, 4), ["a", "b"], "Expected 2 images of function, but got 1"),
        (lambda prompt: torch.rand(2, 3, 4, 4), None, "Expected conditions for the argument 'prompt' of function"),
        (lambda batch_size: torch.rand(2, 3, 4, 4), ["a", "b"], "takes prompts or class labels, because there are"),
        (lambda prompt: torch.rand(2, 3, 4, 4), ["a"], "one condition per image, but got 1 for 2 images"),
        (lambda prompt: "no", ["a", "b"], "images .tensors, arrays or PIL images., but got a str"),
        (
            lambda prompt: [torch.rand(3, 4, 4), torch.rand(3, 5, 4)],
            ["a", "b"],
            r"samples of one shape, but got \(3, 4, 4\)",
        ),
        (lambda prompt, steps: None, [{"prompt": "a", "steps": 1}, {"prompt": "b"}], "all name the same arguments"),
    ],
)
def test_what_does_not_fit(pipe, conditions, text):
    with pytest.raises(InputError, match=text):
        PipelineSampler(pipe)(2, seeded(), conditions)


def test_threads_take_turns_at_a_pipeline(pipes):
    sampler = PipelineSampler(pipes["sd"], num_inference_steps=4)
    arms = sampler.arms(grid(guidance_scale=[1.0, 4.0], scheduler=[DDIMScheduler, EulerDiscreteScheduler]))
    expected = {name: arm(2, seeded(), PROMPTS[:2]) for name, arm in arms.items()}
    copied = copy.copy(arms["guidance_scale 1 scheduler DDIMScheduler"])
    with ThreadPoolExecutor(4) as threads:
        made = {name: threads.submit(arm, 2, seeded(), PROMPTS[:2]) for name, arm in (arms | {"copy": copied}).items()}
        found = {name: future.result() for name, future in made.items()}
    assert torch.equal(found.pop("copy"), expected["guidance_scale 1 scheduler DDIMScheduler"])
    for name, images in found.items():
        assert torch.equal(images, expected[name]), name


def test_threads_do_not_wait_for_each_other_at_a_server():
    both = threading.Barrier(2, timeout=30)

    def server(batch_size):
        both.wait()
        return torch.zeros(batch_size, 3, 2, 2)

    sampler = PipelineSampler(server)
    with ThreadPoolExecutor(2) as threads:
        assert [len(made) for made in threads.map(sampler, [1, 2])] == [1, 2]


def test_a_pipeline_goes_to_another_process_as_one_piece(pipes):
    arms = PipelineSampler(pipes["ddpm"], num_inference_steps=2).arms(grid(output_type=["pt", "np"]))
    copied = pickle.loads(pickle.dumps(arms))
    assert copied["output_type pt"].pipe is copied["output_type np"].pipe
    assert copied["output_type pt"]._turn is copied["output_type np"]._turn is not arms["output_type pt"]._turn
    assert torch.equal(copied["output_type pt"](2, seeded()), arms["output_type pt"](2, seeded()))


def test_wrong_arguments(pipes):
    with pytest.raises(InputError, match="arguments of DDPMPipeline, but got guidance_scale; it takes batch_size"):
        PipelineSampler(pipes["ddpm"], guidance_scale=3.0)
    with pytest.raises(InputError, match="Expected a diffusers pipeline or a callable"):
        PipelineSampler(3)
    with pytest.raises(InputError, match="a callable with named arguments, but got <class 'dict'>"):
        PipelineSampler(dict)
    with pytest.raises(InputError, match="Expected num_images_per_prompt=1, because every image has its own noise"):
        PipelineSampler(pipes["sd"], num_images_per_prompt=2)
    assert PipelineSampler(pipes["sd"], num_images_per_prompt=1)
    with pytest.raises(InputError, match="`output` to be one of uint8, float"):
        PipelineSampler(pipes["ddpm"], output="pil")
    with pytest.raises(InputError, match="arguments of function, but got scheduler; it takes prompt"):
        PipelineSampler(lambda prompt: None, scheduler=DDIMScheduler)
    for scheduler in ("euler", int):
        with pytest.raises(InputError, match="`scheduler` to be a scheduler of diffusers or the class of one"):
            PipelineSampler(pipes["sd"], scheduler=scheduler)


def test_prompts_that_are_not_one_for_all_are_conditions(pipes):
    sampler = PipelineSampler(pipes["sd"], prompt=PROMPTS, num_inference_steps=1)
    with pytest.raises(InputError, match="one 'prompt' for all images, but got 5 for 2 images; give them as cond"):
        sampler(2, seeded())


def test_arms_of_a_selector_share_noise(pipes):
    arms = PipelineSampler(pipes["ddpm"]).arms(grid(num_inference_steps=[1, 2, 3]))
    brightness = OptimisticMean(lambda images: images.float().mean((1, 2, 3)), bounded=(0, 255))
    result = ModelSelector(brightness, arms, budget=60, batch_size=5).run(progress=False)
    assert result.best in arms
    rows = torch.rand(40, 192, generator=seeded())
    fid = OptimisticFID(lambda images: images.flatten(1).float() / 255, ReferenceStatistics.from_features(rows))
    assert ModelSelector(fid, arms, budget=60, batch_size=10).run(progress=False).best in arms
