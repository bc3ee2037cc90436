"""Schedules and samplers, against diffusers and against Gaussians whose answer is known."""

import math

import numpy as np
import pytest
import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import nn

from egc.config import DiffusionConfig, SampleConfig
from egc.diffusion import Diffusion
from egc.energy import EnergyModel
from egc.errors import ConfigError
from egc.nn.readouts import DenseReadout
from egc.registry import samplers

COSINE = DiffusionConfig("cosine")
LINEAR = DiffusionConfig("linear")


@pytest.mark.parametrize(
    ("config", "name", "extra"),
    [
        (COSINE, "squaredcos_cap_v2", {}),
        (LINEAR, "linear", {}),
        (
            DiffusionConfig("linear", beta_start=0.00085, beta_end=0.012),
            "linear",
            {"beta_start": 0.00085, "beta_end": 0.012},
        ),
    ],
)
def test_schedule_equals_diffusers(config, name, extra):
    oracle = DDPMScheduler(beta_schedule=name, **extra)
    diffusion = Diffusion(config)
    torch.testing.assert_close(diffusion.betas.float(), oracle.betas, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(
        diffusion.alphas_cumprod.float(), oracle.alphas_cumprod, rtol=1e-3, atol=1e-8
    )


def test_noise_equals_diffusers_and_is_undone_by_predict_x0():
    diffusion, oracle = Diffusion(LINEAR), DDPMScheduler(beta_schedule="linear")
    x0, eps = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    t = torch.tensor([0, 10, 500, 999])
    x_t = diffusion.noise(x0, t, eps)
    torch.testing.assert_close(x_t, oracle.add_noise(x0, eps, t), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(diffusion.predict_x0(x_t, t, eps), x0, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(diffusion.implied_eps(x_t, t, x0), eps, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("config", [COSINE, LINEAR])
def test_posterior_is_bayes_rule(config):
    """q(x_{t-1}|x_t, x_0) from the product of two Gaussians, done here by precision weighting."""
    diffusion = Diffusion(config)
    x0, x = torch.tensor([[0.3]], dtype=torch.float64), torch.tensor([[-0.8]], dtype=torch.float64)
    for t in (1, 50, 400, 900):
        beta, before = diffusion.betas[t], diffusion.alphas_cumprod[t - 1]
        # prior x_{t-1} ~ N(sqrt(before) x0, 1 - before); likelihood x_t ~ N(sqrt(1-beta) x, beta)
        precision = 1 / (1 - before) + (1 - beta) / beta
        mean = (before.sqrt() * x0 / (1 - before) + (1 - beta).sqrt() * x / beta) / precision
        got_mean, got_variance = diffusion.posterior(x0, x, torch.tensor([t]))
        torch.testing.assert_close(got_mean, mean)
        torch.testing.assert_close(got_variance.squeeze(), 1 / precision)
    mean, variance = diffusion.posterior(x0, x, 0)
    torch.testing.assert_close(mean, x0)
    assert variance == 0


class GaussianMap(nn.Module):
    """A map whose sum is sigma_t log N(x; sqrt(abar) mean, abar std^2 + sigma^2), exactly."""

    def __init__(self, diffusion: Diffusion, mean: float, std: float):
        super().__init__()
        self.diffusion, self.mean, self.std = diffusion, mean, std

    def forward(self, x, t, cond=None):
        abar = self.diffusion.alphas_cumprod[t].to(x.dtype)[:, None, None, None]
        variance = abar * self.std**2 + 1 - abar
        return -(1 - abar).sqrt() * (x - abar.sqrt() * self.mean) ** 2 / (2 * variance)


@pytest.mark.parametrize("config", [COSINE, LINEAR], ids=["cosine", "linear"])
@pytest.mark.parametrize(
    ("sampler", "steps", "tolerance"),
    [("ddpm", 1000, 0.03), ("ddpm", 250, 0.06), ("ddim", 100, 0.04), ("dpm++", 30, 0.03),
     ("unipc", 30, 0.03)],
)  # fmt: skip
def test_exact_gaussian_energy_gives_gaussian_samples(config, sampler, steps, tolerance):
    """One-channel dense readout: its log-density is the sum of the map, a Gaussian's."""
    mean, std, pixels = 0.4, 0.5, (1, 64, 64)
    diffusion = Diffusion(config)
    net = EnergyModel(GaussianMap(diffusion, mean, std), DenseReadout(1), diffusion.sigmas)
    *_, last = diffusion.reverse(net.eps, range(4), pixels, SampleConfig(sampler, steps))
    error_of_mean = std / math.sqrt(last.x.numel())
    assert abs(last.x.mean() - mean) < 4 * error_of_mean + 0.01
    assert abs(last.x.std() / std - 1) < tolerance


class Dummy(ModelMixin, ConfigMixin):
    """A noise predictor with the face of a diffusers U-Net and a function anyone can write."""

    @register_to_config
    def __init__(self, sample_size=6, in_channels=2):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, sample, timestep, **_):
        class Output:
            pass

        output = Output()
        output.sample = dummy_eps(sample, int(timestep))
        return output


def dummy_eps(x, t):
    return torch.tanh(x + x.flip(-1) * math.cos(t)) * 0.9


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
def test_loop_equals_diffusers_pipeline(sampler, clip):
    """The same seed through diffusers' own pipeline gives the same pictures."""
    steps = 1000 if sampler == "ddpm" else 50
    common = {"trained_betas": Diffusion(LINEAR).betas.numpy(), "clip_sample": clip is not None}
    if sampler == "ddpm":
        scheduler = DDPMScheduler(**common, variance_type="fixed_large")
        pipeline = DDPMPipeline(Dummy(), scheduler)
        options = {}
    else:
        scheduler = DDIMScheduler(**common, timestep_spacing="trailing")
        pipeline = DDIMPipeline(Dummy(), scheduler)
        options = {"use_clipped_model_output": clip is not None}
    pipeline.set_progress_bar_config(disable=True)
    expected = pipeline(
        batch_size=1,
        generator=torch.Generator().manual_seed(7),
        num_inference_steps=steps,
        output_type="np",
        **options,
    ).images
    *_, last = Diffusion(LINEAR).reverse(
        dummy_eps, [7], (2, 6, 6), SampleConfig(sampler, steps), clip=clip
    )
    got = (last.x / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(got, expected, atol=2e-4)
    assert expected.std() > 0.05


def test_ddpm_with_all_steps_is_algorithm_2():
    """x_{t-1} = (x_t + (1 - alpha_t) score) / sqrt(alpha_t) + sqrt(beta_t) eps, written out."""
    diffusion = Diffusion(DiffusionConfig("linear", steps=50, beta_end=0.2))
    *_, last = diffusion.reverse(dummy_eps, [3], (1, 4, 4), SampleConfig("ddpm", 50))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 1, 4, 4, generator=generator)
    for t in reversed(range(50)):
        beta, sigma = diffusion.betas[t].float(), diffusion.sigmas[t].float()
        score = -dummy_eps(x, t) / sigma
        x = (x + beta * score) / (1 - beta).sqrt()
        if t > 0:
            x = x + beta.sqrt() * torch.randn(x.shape, generator=generator)
    torch.testing.assert_close(last.x, x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sampler", samplers.names())
def test_an_image_depends_only_on_its_own_seed(tiny, sampler):
    """A batch of eight equals eight batches of one, guided, for every sampler."""
    labels = [3, 1, 4, 1, 5, 9, 2, 6]
    options = {"sampler": sampler, "steps": 12, "guidance": 2.0}
    together = tiny.sample(labels, seed=20, **options)
    for index, label in enumerate(labels):
        alone = tiny.sample(label, seed=20 + index, **options)
        difference = alone.images[0].astype(int) - together.images[index].astype(int)
        assert abs(difference).max() <= 1  # a value on the edge may round the other way
    in_parts = tiny.sample(labels, seed=20, batch_size=3, **options)
    assert abs(in_parts.images.astype(int) - together.images.astype(int)).max() <= 1
    assert len(np.unique(together.images.reshape(8, -1), axis=0)) == 8


def test_reverse_yields_every_step():
    five = SampleConfig(steps=5)
    steps = list(Diffusion(COSINE).reverse(dummy_eps, [0, 1], (1, 4, 4), five, clip=1.0))
    assert [s.index for s in steps] == [0, 1, 2, 3, 4]
    assert [s.t for s in steps] == sorted((s.t for s in steps), reverse=True)
    assert all(s.count == 5 and s.x.shape == (2, 1, 4, 4) for s in steps)
    assert all(s.x0.abs().max() <= 1 for s in steps)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "dimm"}, "Did you mean 'ddim'"),
        ({"steps": 0}, "1 to 1000; got 0"),
        ({"steps": 1001}, "1 to 1000; got 1001"),
    ],
)
def test_reverse_refuses(options, words):
    with pytest.raises(ConfigError, match=words):
        next(Diffusion(COSINE).reverse(dummy_eps, [0], (1, 4, 4), SampleConfig(**options)))
