"""Randomized smoothing against the exact radius of a linear model, and on the shipped model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import nn

import egc
from egc.api import EGC
from egc.codec import LatentCodec
from egc.config import CodecConfig, DataConfig
from egc.data import ImageSet, open_source
from egc.errors import ConfigError, EGCError, ModelError
from egc.metrics.certified import (
    Certified,
    Smoothed,
    certified_figure,
    evaluate_certified,
    lower_bound,
    nearest_level,
    noise_levels,
)
from egc.nn.network import Network
from egc.nn.readouts import Joint

SIDE = 4


class Named(Network):
    """A network that says which class an image is, at any noise level."""

    classifies = denoises = True

    def logits(self, x, t, cond=None) -> torch.Tensor:
        return self(x, t, cond).logits


class Linear(Named):
    """Class 1 where the mean of the image exceeds 0, the noise's scale undone."""

    def __init__(self, model: EGC, scaled: bool = True):
        super().__init__()
        self.scale = model.diffusion.alphas_cumprod.sqrt()
        self.scaled = scaled
        self.seen: list[tuple[torch.Tensor, int]] = []
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x, t, cond=None) -> Joint:
        self.seen.append((x, t))
        image = x / float(self.scale[t]) if self.scaled else x
        margin = image.flatten(1).mean(dim=1)
        return Joint(margin, torch.stack([-margin, margin], dim=1))


class Coin(Named):
    """A class that has nothing to do with the image."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x, t, cond=None) -> Joint:
        heads = (x.flatten(1).sum(dim=1) * 1e4).floor() % 2
        return Joint(heads, torch.stack([heads, 1 - heads], dim=1))


@pytest.fixture
def linear(tiny_config) -> EGC:
    config = tiny_config.replace(data={"image_size": SIDE})
    model = EGC.build(config, ["dark", "light"])
    model.net = Linear(model)
    return model


def grey(level: float) -> torch.Tensor:
    return torch.full((1, SIDE, SIDE), level)


def test_the_radius_of_a_linear_model_is_known(linear):
    """Its distance to the boundary is SIDE |x - 1/2|, and smoothing does not change that."""
    smoothed = Smoothed(linear, 300)
    exact = SIDE * 0.1
    label, radius = smoothed.certify(grey(0.6), n=20_000, seed=1)
    assert label == 1
    assert 0.9 * exact < radius < exact
    assert smoothed.certify(grey(0.4), n=2000)[0] == 0
    bounds = [smoothed.certify(grey(0.6), n=n, seed=1)[1] for n in (100, 1000, 10_000)]
    assert bounds == sorted(bounds)


def test_the_radius_is_too_large_as_seldom_as_is_said(linear):
    """At alpha = 0.1, a tenth of the radii may exceed the exact one."""
    smoothed = Smoothed(linear, 300)
    found = [smoothed.certify(grey(0.55), n=200, alpha=0.1, seed=s)[1] for s in range(200)]
    wrong = np.mean(np.array(found) > SIDE * 0.05)
    assert 0.02 < wrong < 0.17


def test_the_noise_is_that_of_the_level(linear):
    """sqrt(abar) (x + s eps) in model space: its deviation is sigma_t, its mean scaled."""
    t = 400
    Smoothed(linear, t).votes(grey(0.8), 2000, torch.Generator().manual_seed(0))
    x = torch.cat([x for x, _ in linear.net.seen])
    assert {level for _, level in linear.net.seen} == {t}
    abar = float(linear.diffusion.alphas_cumprod[t])
    assert float(x.mean()) == pytest.approx(0.6 * abar**0.5, abs=0.02)
    assert float(x.std()) == pytest.approx((1 - abar) ** 0.5, rel=0.02)
    assert Smoothed(linear, t).sigma == pytest.approx(((1 - abar) / abar) ** 0.5 / 2)


def test_a_network_without_time_sees_the_noise_unscaled(linear):
    linear.net = Linear(linear, scaled=False)
    linear.net.denoises = False
    smoothed = Smoothed(linear, 400)
    label, radius = smoothed.certify(grey(0.7), n=20_000)
    assert label == 1
    assert 0.9 * SIDE * 0.2 < radius < SIDE * 0.2
    x = torch.cat([x for x, _ in linear.net.seen])
    assert float(x.mean()) == pytest.approx(0.4, abs=0.02)
    assert float(x.std()) == pytest.approx(2 * smoothed.sigma, rel=0.02)


def test_it_abstains_when_it_must(linear):
    linear.net = Coin()
    smoothed = Smoothed(linear, 300)
    found = [smoothed.certify(grey(0.5), n=500, seed=seed) for seed in range(20)]
    assert found.count((-1, 0.0)) >= 19
    # Few draws prove nothing, however sure the model: 0.001 ** (1 / 9) < 1/2.
    linear.net = Linear(linear)
    assert smoothed.certify(grey(1.0), n=9) == (-1, 0.0)
    assert smoothed.certify(grey(1.0), n=11)[0] == 1


def test_the_bound_is_that_of_clopper_and_pearson():
    """The p at which so many hits or more have probability alpha."""
    for hits, draws in ((60, 100), (999, 1000), (100, 100)):
        bound = lower_bound(hits, draws, 0.001)
        assert binom.sf(hits - 1, draws, bound) == pytest.approx(0.001)
    assert lower_bound(0, 10, 0.001) == 0
    assert lower_bound(1000, 1000, 0.001) == pytest.approx(0.001 ** (1 / 1000))


def test_levels_and_deviations(linear):
    levels = noise_levels(linear)
    assert np.all(np.diff(levels) > 0)
    for t in (0, 150, 700):
        assert nearest_level(linear, levels[t]) == t
    with pytest.raises(ConfigError, match="sigma, the noise on pixels"):
        nearest_level(linear, 0)


def test_certified_accuracy_of_the_shipped_model():
    model, data = egc.load("digits"), open_source(DataConfig("digits")).validation
    options = {"sigma": 0.12, "n0": 20, "n": 200}
    result = evaluate_certified(model, data, count=12, **options)
    assert len(result.predictions) == 12
    assert result.accuracy_at(0) >= 0.75
    curve = result.summary()["certified_accuracy"]
    assert curve == sorted(curve, reverse=True)
    assert result.accuracy_at(result.largest * 1.001) == 0
    assert np.all(result.radii <= result.largest)
    assert json.loads(json.dumps(result.summary([0.0, 0.1])))["radii"] == [0, 0.1]
    assert result.sigma == pytest.approx(0.12, abs=0.01)
    # An image's radius does not depend on the others.
    position = np.linspace(0, len(data) - 1, 12).round().astype(int)[3]
    alone = np.full(len(data), -1)
    alone[position] = data.labels[position]
    again = evaluate_certified(model, replace(data, labels=alone), **options)
    assert again.radii.tolist() == [result.radii[3]]
    assert len(certified_figure({"digits": result}).axes) == 1


def test_figures_by_hand():
    result = Certified(
        predictions=np.array([0, 1, -1, 1]), radii=np.array([0.5, 0.2, 0.0, 0.9]),
        labels=np.array([0, 1, 1, 0]), t=3, sigma=0.5, n0=10, n=100, alpha=0.001,
    )  # fmt: skip
    assert [result.accuracy_at(r) for r in (0, 0.2, 0.3, 0.6)] == [0.5, 0.5, 0.25, 0]
    assert result.abstained == 0.25
    assert result.summary()["mean_radius"] == pytest.approx(0.7 / 4)
    assert result.largest == pytest.approx(0.5 * norm.ppf(0.001**0.01))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either t or sigma"),
        ({"t": 3, "sigma": 0.1}, "either t or sigma"),
        ({"t": 1000}, "must be 0 to 999; got 1000"),
        ({"t": 3, "n": 0}, "n >= 1"),
        ({"t": 3, "alpha": 0.7}, "alpha between"),
        ({"t": 3, "count": 0}, "at least 1"),
    ],
)
def test_calls_that_make_no_sense(linear, options, message):
    images = np.zeros((2, SIDE, SIDE, 1), np.uint8)
    data = ImageSet.from_arrays(images, [0, 1], linear.classes)
    with pytest.raises(EGCError, match=message):
        evaluate_certified(linear, data, **options)


def test_latents_are_refused(linear):
    linear.codec = LatentCodec(CodecConfig(kind="latent", channels=4, factor=2), 1, SIDE)
    with pytest.raises(ModelError, match="models of pixels only"):
        Smoothed(linear, 3)
