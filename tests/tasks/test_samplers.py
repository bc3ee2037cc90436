"""Whatever draws honours `sampler`, also one of the user's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from egc.api import EGC, load
from egc.codec import unit_pixels
from egc.errors import ConfigError
from egc.registry import samplers
from egc.samplers import ddim
from egc.tasks.predict import Predictor

STEPS = 6


def _pictures():
    return np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), dtype=np.uint8)


def _purified(model: EGC, sampler: str) -> np.ndarray:
    config = model.config.replace(sample={"sampler": sampler, "steps": STEPS})
    predictor = Predictor(replace(model, config=config), purify=600)
    return predictor(unit_pixels(_pictures()), [0, 1]).detach().numpy()


TASKS = {
    "sample": lambda model, **how: model.sample(3, **how).images,
    "compose": lambda model, **how: model.compose([3, 5], corrector_steps=0, **how).images,
    "edit": lambda model, **how: model.edit(_pictures(), 3, 0.8, **how).after,
    "interpolate": lambda model, **how: model.interpolate((0, 1), frames=3, **how).images,
    "between images": lambda model, **how: (
        model.interpolate(images=_pictures(), frames=3, **how).images
    ),
    "watch": lambda model, **how: model.watch(3, **how).frames,
    "sweep": lambda model, **how: model.sweep_guidance(3, [1], 2, **how).images,
}


@pytest.fixture(scope="module")
def digits() -> EGC:
    return load("digits")


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """The steps that a sampler of the user's own was asked for."""
    asked: list[int] = []

    def own(betas, steps):
        asked.append(steps)
        return ddim(betas, steps)

    monkeypatch.setitem(samplers._entries, "own", own)
    return asked


@pytest.mark.parametrize("task", TASKS)
def test_every_task_honours_the_sampler(digits, calls, task):
    how = {"steps": STEPS, "progress": False}
    by_name = {name: TASKS[task](digits, sampler=name, **how) for name in ("ddim", "dpm++", "own")}
    assert (by_name["ddim"] != by_name["dpm++"]).any()
    np.testing.assert_array_equal(by_name["own"], by_name["ddim"])
    assert calls
    assert set(calls) == {STEPS}


def test_purification_honours_the_model_s_sampler(digits, calls):
    by_name = {name: _purified(digits, name) for name in ("ddim", "dpm++", "own")}
    assert (by_name["ddim"] != by_name["dpm++"]).any()
    np.testing.assert_array_equal(by_name["own"], by_name["ddim"])
    assert set(calls) == {STEPS}


def test_a_composition_with_correctors_honours_it_too(digits, calls):
    digits.compose([3, 5], steps=3, corrector_steps=1, sampler="own", progress=False)
    assert set(calls) == {3}


def test_inpainting_has_a_sampler_of_its_own(tiny):
    with pytest.raises(ConfigError, match="RePaint"):
        tiny.inpaint(_pictures()[0], "left", sampler="ddim")
    filled = tiny.inpaint(_pictures()[0], "left", steps=3, jumps=1, progress=False)
    assert filled.settings()["sampler"] == "repaint"


# --- what cannot be used is refused in one sentence ----------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.sample(guidance=float("nan")), "guidance must be a finite number; got nan"),
        (lambda m: m.sample(guidance=float("inf")), "guidance must be a finite number"),
        (lambda m: m.sample(guidance=-1), "guidance must be at least 0; got -1"),
        (lambda m: m.sample(guidance="much"), "guidance is a number; got 'much'"),
        (lambda m: m.sample(count=2.0), "number of images must be a whole number; got 2.0"),
        (lambda m: m.sample(count=0), "number of images must be at least 1; got 0"),
        (lambda m: m.sample(count=True), "number of images must be a whole number; got True"),
        (lambda m: m.sample(seed=-1), "seed must be at least 0; got -1"),
        (lambda m: m.sample(seed=1.5), "seed must be a whole number; got 1.5"),
        (lambda m: m.sample(seed="1"), "seed must be a whole number; got '1'"),
        (lambda m: m.sample(steps=5.0), "steps is a whole number; got 5.0"),
        (lambda m: m.sample(steps=1001), "must be 1 to 1000; got 1001"),
        (lambda m: m.sample(sampler="dimm"), "Did you mean 'ddim'"),
        (lambda m: m.sample(sampler=3), "sampler is text; got 3"),
        (lambda m: m.sample(cfg=2.0), "label-conditioned"),
        (lambda m: m.sample(batch_size=0), "batch size must be at least 1; got 0"),
        (lambda m: m.compose([3, 5], count=2.5), "whole number; got 2.5"),
        (lambda m: m.interpolate(seeds=(0, "b")), "seed must be a whole number; got 'b'"),
        (lambda m: m.interpolate(seeds=(0, 1), frames=2.0), "frames must be a whole number"),
        (lambda m: m.sweep_guidance(3, [float("nan")]), "finite number"),
        (lambda m: m.sweep_guidance(3, [1], count=1), "at least 2; got 1"),
        (lambda m: m.eps(torch.zeros(1, 1, 8, 8), 5, labels="3"), "tensor of class indices"),
        (lambda m: m.eps(torch.zeros(1, 1, 8, 8), 5, labels=3), "got int"),
        (lambda m: m.energy(_pictures(), t=0.5), "t must be a whole number; got 0.5"),
    ],
)
def test_arguments_that_cannot_be_used_get_one_sentence(tiny, call, words):
    with pytest.raises(ConfigError) as error:
        call(tiny)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_of_numpy_and_torch_are_numbers(tiny):
    plain = tiny.sample(3, count=2, steps=3, guidance=2.0, seed=4, progress=False)
    other = tiny.sample(
        np.int64(3),
        count=np.int64(2),
        steps=np.int64(3),
        guidance=np.float32(2),
        seed=np.int64(4),
        progress=False,
    )
    np.testing.assert_array_equal(plain.images, other.images)
