"""The variational bound, beside a model whose exact likelihood is known."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

import egc
from egc.codec import PixelCodec
from egc.config import DataConfig, DiffusionConfig
from egc.data import ImageSet, open_source
from egc.diffusion import Diffusion
from egc.errors import ConfigError, DataError, ModelError
from egc.metrics import fitting
from egc.metrics.likelihood import (
    decoder_log_prob,
    evaluate_likelihood,
    fixed_variance,
    gaussian_kl,
    posterior_kl,
    prior_kl,
    strata,
    variational_bound,
)

STEPS = 200
SPREAD = 0.25
"""of the pixels of Gaussian images, in -1..1"""


@pytest.fixture(scope="module")
def diffusion():
    return Diffusion(DiffusionConfig(steps=STEPS))


def gaussian_model(diffusion: Diffusion, off: float = 0.0):
    """The exact noise prediction for images of independent N(0, SPREAD^2) pixels, plus `off`."""
    abar, sigmas = diffusion.alphas_cumprod, diffusion.sigmas

    def eps(x, t):
        variance = abar[t] * SPREAD**2 + sigmas[t] ** 2
        return ((sigmas[t] / variance).reshape(-1, 1, 1, 1) * x + off).to(x)

    codec = PixelCodec(1, 8)
    net = SimpleNamespace(eps=eps)
    can = {"needs": lambda ability: None}
    return SimpleNamespace(net=net, codec=codec, diffusion=diffusion, device="cpu", **can)


def gaussian_images(count: int) -> np.ndarray:
    pixels = SPREAD * np.random.default_rng(0).standard_normal((count, 8, 8, 1))
    return ((pixels + 1) * 127.5).round().clip(0, 255).astype(np.uint8)


def exact_bits(images: np.ndarray) -> np.ndarray:
    """-log2 of the Gaussian's mass around each level, mean over the pixels of each image."""
    x = torch.as_tensor(images.reshape(len(images), -1) / 127.5 - 1)
    return (-decoder_log_prob(x, torch.zeros(()), SPREAD**2).mean(dim=1) / math.log(2)).numpy()


@pytest.mark.parametrize("variance", ["posterior", "beta"])
def test_the_bound_of_a_gaussian_is_its_likelihood_and_a_known_gap(diffusion, variance):
    """The exact model's only flaw is its fixed variance, whose cost has a closed form."""
    images = gaussian_images(500)
    bound = variational_bound(
        gaussian_model(diffusion), images, range(500), terms=STEPS, variance=variance
    )
    abar = diffusion.alphas_cumprod
    spread = abar * SPREAD**2 + 1 - abar  # variance of x_t
    before = torch.cat([torch.tensor([SPREAD**2]), spread[:-1]])
    true = diffusion.betas * before / spread  # of q(x_t-1 | x_t), and of q(x_0 | x_t=0)
    zero = torch.zeros(())
    gap = gaussian_kl(zero, true, zero, fixed_variance(diffusion, variance)).sum() / math.log(2)
    beyond = bound.total - exact_bits(images)
    error = beyond.std() / math.sqrt(500)
    assert beyond.mean() == pytest.approx(float(gap), abs=3 * error)
    assert beyond.mean() > 3 * error
    assert error < 0.015


def test_a_worse_prediction_has_a_larger_bound(diffusion):
    images = gaussian_images(50)
    right, wrong = (
        variational_bound(gaussian_model(diffusion, off), images, range(50)).total.mean()
        for off in (0, 0.1)
    )
    assert wrong > right > exact_bits(images).mean()


def test_a_finer_process_comes_closer():
    images = gaussian_images(100)
    gaps = []
    for steps in (20, 100, 500):
        model = gaussian_model(Diffusion(DiffusionConfig(steps=steps)))
        total = variational_bound(model, images, range(100), terms=40, variance="beta").total
        gaps.append((total - exact_bits(images)).mean())
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] < 0.15


def test_few_terms_estimate_the_sum_of_all(diffusion):
    images = gaussian_images(400)
    model = gaussian_model(diffusion)
    every = variational_bound(model, images, range(400), terms=STEPS).terms
    few = variational_bound(model, images, range(1000, 1400), terms=6).terms
    error = math.hypot(every.std() / 20, few.std() / 20)
    assert abs(every.mean() - few.mean()) < 4 * error
    assert few.std() > every.std()


@pytest.mark.parametrize("steps", [2, 3, 10, 1000])
@pytest.mark.parametrize("count", [1, 2, 7, 500, 5000])
def test_strata_cut_all_levels_but_the_first(steps, count):
    edges = strata(steps, count)
    assert edges[0] == 1
    assert edges[-1] == steps
    assert (np.diff(edges) >= 1).all()
    assert len(edges) - 1 == min(count, steps - 1)


@pytest.mark.parametrize("variance", ["posterior", "beta"])
def test_each_term_is_the_divergence_of_two_gaussians(diffusion, variance):
    generator = torch.Generator().manual_seed(0)
    x0, x, guess = (
        torch.randn(5, 1, 4, 4, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    t = torch.tensor([1, 2, 50, 150, STEPS - 1])
    found = posterior_kl(diffusion, x0, x, guess, t, variance)
    for i, level in enumerate(t.tolist()):
        mean, own = diffusion.posterior(x0[i], x[i], level)
        guessed, _ = diffusion.posterior(guess[i], x[i], level)
        fixed = own if variance == "posterior" else diffusion.betas[level]
        q, p = Normal(mean, own.sqrt()), Normal(guessed, fixed.sqrt())
        assert float(found[i]) == pytest.approx(float(kl_divergence(q, p).mean()), rel=1e-9)
    last = diffusion.alphas_cumprod[-1]
    q = Normal(last.sqrt() * x0, (1 - last).sqrt())
    expected = kl_divergence(q, Normal(0.0, 1.0)).flatten(1).mean(dim=1)
    torch.testing.assert_close(prior_kl(diffusion, x0), expected)


@pytest.mark.parametrize("mean", [-1.5, -1.0, -0.3, 0.0, 0.9999, 2.0])
@pytest.mark.parametrize("variance", [1e-6, 1e-4, 0.1, 10.0])
def test_the_decoder_shares_out_all_its_mass(mean, variance):
    levels = torch.linspace(-1, 1, 256, dtype=torch.float64)
    log_p = decoder_log_prob(levels, torch.full_like(levels, mean), variance)
    assert torch.isfinite(log_p).all()
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-12)
    inner = levels[1:-1]
    normal = Normal(torch.tensor(mean, dtype=torch.float64), math.sqrt(variance))
    mass = normal.cdf(inner + 1 / 255) - normal.cdf(inner - 1 / 255)
    torch.testing.assert_close(log_p[1:-1].exp(), mass, rtol=1e-6, atol=1e-12)


def test_bits_of_digits_are_fewer_than_of_noise():
    digits = egc.load("digits")
    test = open_source(DataConfig("digits")).test
    found = evaluate_likelihood(digits, test, count=40, terms=8)
    assert 2 < found.bits < 7
    assert found.error < 0.5
    noise = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    assert evaluate_likelihood(digits, ImageSet.from_arrays(noise), terms=8).bits > 8
    summary = json.loads(json.dumps(found.summary()))
    parts = summary["prior"] + summary["terms"] + summary["decoder"]
    assert summary["bits_per_dim"] == pytest.approx(parts)
    assert summary["images"] == 40
    again = evaluate_likelihood(digits, test, count=40, terms=8)
    assert again.bits == found.bits


def test_processes_share_the_images(tiny, monkeypatch):
    """Whoever bounds an image, its seed is its position."""
    data = ImageSet.from_arrays(np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8))
    one = evaluate_likelihood(tiny, data, terms=2).bound.total
    monkeypatch.setattr(fitting, "share", lambda items: items[::-1])
    monkeypatch.setattr(fitting, "gather", lambda rows: rows[::-1])
    np.testing.assert_allclose(
        evaluate_likelihood(tiny, data, terms=2).bound.total, one, rtol=1e-3
    )


@pytest.mark.parametrize("kind", ["classifier", "jem"])
def test_a_network_without_noise_levels_has_no_bound(tiny_config, kind):
    model = egc.EGC.build(tiny_config.replace(objective={"kind": kind}), ["a", "b"])
    with pytest.raises(ModelError, match="noise levels"):
        variational_bound(model, np.zeros((1, 8, 8, 1), dtype=np.uint8), [0])


def test_what_has_no_bound_is_refused(tiny):
    images = np.zeros((1, 8, 8, 1), dtype=np.uint8)
    with pytest.raises(ConfigError, match="At least 1 term"):
        variational_bound(tiny, images, [0], terms=0)
    with pytest.raises(ConfigError, match="'posterior'"):
        variational_bound(tiny, images, [0], variance="posteriour")
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate_likelihood(tiny, ImageSet.from_arrays(images), count=0)
    with pytest.raises(DataError, match="16x16"):
        evaluate_likelihood(tiny, ImageSet.from_arrays(np.zeros((1, 16, 16), dtype=np.uint8)))
    tiny.codec.clip = None  # as latents are
    with pytest.raises(ModelError, match="latents"):
        variational_bound(tiny, images, [0])
