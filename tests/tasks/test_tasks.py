"""What one energy can do: fill, interpolate, edit, compose, sweep, watch, and show itself."""

import json
import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from PIL import Image

from egc.api import EGC, load
from egc.cli import main
from egc.config import Config, DataConfig, DiffusionConfig, SampleConfig
from egc.data import open_source
from egc.diffusion import Diffusion
from egc.energy import EnergyModel
from egc.errors import ConfigError, DataError, ModelError
from egc.nn.readouts import Joint
from egc.tasks.compose import Langevin, value_and_gradient
from egc.tasks.guidance import mean_distance
from egc.tasks.interpolate import slerp
from egc.tasks.landscape import along_noise, goodness, over_plane
from egc.tasks.masks import SHAPES, make_mask
from tests.conftest import TINY, shaken


@pytest.fixture(scope="module")
def digits() -> EGC:
    return load("digits")


@pytest.fixture(scope="module")
def test_images():
    return open_source(DataConfig("digits")).test


@pytest.fixture
def unlabelled() -> EGC:
    return shaken(EGC.build(Config.from_dict(TINY), []))


# --- inpainting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_known_pixels_come_back_exactly(digits, test_images, shape):
    image = test_images.images(np.array([5]))[0]
    mask = make_mask(shape, 8, seed=1)
    filled = digits.inpaint(image, shape, count=2, steps=10, jumps=2, seed=1, progress=False)
    assert filled.images.shape == (2, 8, 8, 1)
    for one in filled.images:
        np.testing.assert_array_equal(one[~mask], image[~mask])
        assert (one[mask] != image[mask]).any()
    assert (filled.images[0] != filled.images[1]).any()  # several ways


def test_filling_makes_digits_again(digits, test_images):
    """Half a digit and its label are enough to be recognised."""
    named = []
    for index in range(6):
        image, label = test_images.images(np.array([index]))[0], int(test_images.labels[index])
        filled = digits.inpaint(image, "left", label, count=3, steps=10, jumps=2, progress=False)
        named += (digits.predict_proba(filled.images).argmax(axis=1) == label).tolist()
    assert np.mean(named) > 0.8


def test_a_fill_is_a_function_of_its_seed(digits, test_images):
    image = test_images.images(np.array([0]))[0]
    both = digits.inpaint(image, "center", count=2, seed=4, steps=10, progress=False)
    second = digits.inpaint(image, "center", count=1, seed=5, steps=10, progress=False)
    difference = both.images[1].astype(int) - second.images[0]
    assert abs(difference).max() <= 1


def test_masks_in_all_forms(digits, test_images, tmp_path):
    image = test_images.images(np.array([0]))[0]
    mask = make_mask("center", 8)
    white = np.where(mask, 255, 0).astype(np.uint8)
    Image.fromarray(white).save(tmp_path / "mask.png")
    options = {"steps": 4, "jumps": 1, "progress": False}
    expected = digits.inpaint(image, mask, **options).images
    for form in (white, Image.fromarray(white), tmp_path / "mask.png", str(tmp_path / "mask.png")):
        np.testing.assert_array_equal(digits.inpaint(image, form, **options).images, expected)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.zeros((8, 8), bool), "all black"),
        (np.ones((8, 8), bool), "all white"),
        (np.ones((4, 8), bool), "mask is 4x8, but the model's images are 8x8"),
    ],
)
def test_masks_refused(digits, mask, words):
    with pytest.raises(DataError, match=words):
        digits.inpaint(np.zeros((8, 8), np.uint8), mask, progress=False)


def test_strokes_cover_about_a_third():
    for seed in range(5):
        assert 0.3 <= make_mask("random-strokes", 64, seed).mean() < 0.45


# --- interpolation -------------------------------------------------------------------------------


def test_ends_between_seeds_are_the_samples(digits):
    way = digits.interpolate(seeds=(3, 8), frames=5, steps=20, progress=False)
    for place, seed in ((0, 3), (-1, 8)):
        sample = digits.sample(seed=seed, steps=20, sampler="ddim", progress=False).images[0]
        assert abs(way.images[place].astype(int) - sample).max() <= 1
        assert abs(way.blended[place].astype(int) - sample).max() <= 1
    middle = (way.images[0].astype(float) + way.images[-1]) / 2
    assert abs(way.blended[2] - middle).max() <= 2
    assert abs(way.images[2] - middle).mean() > 5  # not a blend


def test_inversion_returns_the_images(digits, test_images):
    images = test_images.images(np.array([4, 9]))
    way = digits.interpolate(images=images, frames=3, steps=20, progress=False)
    for place, image in ((0, images[0]), (-1, images[1])):
        assert abs(way.images[place].astype(int) - image).mean() < 1


def test_slerp_keeps_the_length_of_noise():
    a, b = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    for share in (0.0, 0.3, 0.5, 1.0):
        point = slerp(a, b, share)
        length = (1 - share) * a.norm() + share * b.norm()
        assert float(point.norm() / length) == pytest.approx(1, abs=0.02)
    torch.testing.assert_close(slerp(a, b, 0.0), a)
    torch.testing.assert_close(slerp(a, a.clone(), 0.4), a)


def test_interpolation_refused(digits):
    with pytest.raises(ConfigError, match="two seeds or two images"):
        digits.interpolate()
    with pytest.raises(ConfigError, match="at least 2"):
        digits.interpolate(seeds=(0, 1), frames=1)


# --- edits ---------------------------------------------------------------------------------------


def test_no_strength_changes_nothing(digits, test_images):
    images = test_images.images(np.arange(3))
    done = digits.edit(images, to=8, strength=0.0, progress=False)
    np.testing.assert_array_equal(done.after, images)
    assert (done.difference == 128).all()


def test_the_found_strength_flips_most_digits_and_changes_little(digits, test_images):
    images, labels = test_images.images(np.arange(12)), test_images.labels[:12]
    others = labels != 3
    done = digits.edit(images[others], to=3, steps=20, progress=False)
    assert done.flipped.mean() > 0.8
    assert (done.probabilities_before.argmax(axis=1) != 3).mean() > 0.9
    full = digits.edit(images[others], to=3, strength=1.0, steps=20, progress=False)
    change = np.abs(done.after.astype(int) - done.before).mean()
    assert change < np.abs(full.after.astype(int) - full.before).mean()
    assert (done.strengths[done.flipped] < 1).all()


@pytest.mark.parametrize("strength", [-0.1, 1.5, "much"])
def test_strengths_refused(digits, strength):
    with pytest.raises(ConfigError, match="strength"):
        digits.edit(np.zeros((8, 8), np.uint8), to=3, strength=strength, progress=False)


# --- composition ---------------------------------------------------------------------------------


def gaussian(mean, deviation):
    return lambda x, t: -((x - mean) ** 2).sum(dim=1) / (2 * deviation**2)


def test_metropolis_keeps_a_known_mixture():
    """Long runs at one level have the moments of the mixture, with a coarse step too."""
    means, weights, deviation = torch.tensor([[-1.0, 0.0], [1.0, 0.5]]), (0.3, 0.7), 0.6

    pairs = list(zip(means, weights, strict=True))

    def log_density(x, t):
        parts = [math.log(w) + gaussian(m, deviation)(x, t) for m, w in pairs]
        return torch.logsumexp(torch.stack(parts), dim=0)

    count = 3000
    generators = [torch.Generator().manual_seed(i) for i in range(count)]
    corrector = Langevin(log_density, torch.ones(1), steps=50, scale=1.0)
    x = corrector(torch.zeros(count, 2), 0, generators)
    w = torch.tensor(weights)[:, None]
    mean = (w * means).sum(0)
    variance = (w * means**2).sum(0) - mean**2 + deviation**2
    torch.testing.assert_close(x.mean(dim=0), mean, atol=0.06, rtol=0)
    torch.testing.assert_close(x.var(dim=0), variance, atol=0.08, rtol=0)
    assert np.mean(corrector.accepted[-20:]) == pytest.approx(0.57, abs=0.08)


def test_correctors_make_composition_right():
    """The product of two mixtures is a mixture that can be written down."""
    diffusion = Diffusion(DiffusionConfig(schedule="cosine"))
    deviation = 0.3
    a = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.4, 0.3, 0.3])
    b = torch.tensor([[1.0, 0.1], [0.0, 1.0], [0.6, -1.0]]), torch.tensor([0.5, 0.2, 0.3])

    def mixture(x, t, means, weights):
        abar = float(diffusion.alphas_cumprod[t])
        variance = abar * deviation**2 + 1 - abar
        distance = ((x[:, None] - abar**0.5 * means) ** 2).sum(dim=2)
        return torch.logsumexp(weights.log() - distance / (2 * variance), dim=1)

    def log_density(x, t):
        return mixture(x, t, *a) + mixture(x, t, *b)

    means, weights = [], []
    for (m, p), (n, q) in product(zip(*a, strict=True), zip(*b, strict=True)):
        means.append((m + n) / 2)
        weights.append(p * q * torch.exp(-((m - n) ** 2).sum() / (4 * deviation**2)))
    means, weights = torch.stack(means), torch.stack(weights)
    weights = (weights / weights.sum())[:, None]
    mean = (weights * means).sum(0)
    covariance = (weights * means).T @ means - torch.outer(mean, mean)
    covariance += torch.eye(2) * deviation**2 / 2

    def error(steps: int) -> float:
        corrector = Langevin(log_density, diffusion.sigmas, steps) if steps else None

        def eps(x, t):
            return -float(diffusion.sigmas[t]) * value_and_gradient(log_density, x, t)[1]

        for step in diffusion.reverse(
            eps, range(1000), (2,), SampleConfig("ddpm", 30), corrector=corrector
        ):
            x = step.x
        return float((x.mean(0) - mean).norm() + (torch.cov(x.T) - covariance).norm())

    assert error(3) < 0.05
    assert error(0) > 0.08


def test_composed_digits_are_of_both_classes(digits):
    both = digits.compose([3, 5], "and", 4, guidance=2.0, steps=20, progress=False)
    p = digits.predict_proba(both.images)
    assert (p[:, 3] + p[:, 5]).mean() > 0.8
    one = digits.compose([3, 5], "not", 4, steps=10, progress=False)
    assert (digits.predict_proba(one.images).argmax(axis=1) == 3).mean() > 0.8


def test_compositions_refused(digits):
    with pytest.raises(ConfigError, match="at least two labels; got 1"):
        digits.compose([3])
    with pytest.raises(ConfigError, match="and or not; got 'or'"):
        digits.compose([3, 5], "or")


# --- guidance, the way, evidence -----------------------------------------------------------------


def test_more_guidance_means_less_diversity_and_more_agreement(digits):
    rows = digits.sweep_guidance(3, [0, 2, 20], count=12, steps=10, progress=False).rows
    for first, second in pairwise(rows):
        assert second.pixel_diversity < first.pixel_diversity
        assert second.feature_diversity < first.feature_diversity
        assert second.agreement >= first.agreement
    assert rows[0].agreement < 0.5 < rows[-1].agreement


def test_mean_distance_by_hand():
    assert mean_distance(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])) == pytest.approx(10 / 3)


def test_watching_ends_with_the_sample(digits, tmp_path):
    watched = digits.watch(3, steps=12, seed=7, progress=False)
    sample = digits.sample(3, steps=12, seed=7, progress=False).images[0]
    assert abs(watched.frames[-1].astype(int) - sample).max() <= 1
    assert watched.probabilities.shape == (12, 10)
    assert watched.probabilities[-1].argmax() == 3
    assert watched.probabilities[0].max() < watched.probabilities[-1].max()
    for name in ("a.gif", "a.webp"):
        with Image.open(watched.save(tmp_path / name)) as animation:
            assert animation.n_frames > 6  # equal frames may be merged
    with pytest.raises(ConfigError, match=r"\.gif or \.webp"):
        watched.save(tmp_path / "a.png")


def test_evidence_is_of_positions(digits, test_images):
    images = test_images.images(np.arange(20))
    maps = digits.evidence(images).maps
    assert maps.shape == (20, 10, 8, 8)
    np.testing.assert_allclose(maps.sum(axis=1), 1, rtol=1e-5)
    pooled = EGC.build(Config.from_dict(TINY).replace(network={"readout": "pooled"}), ["a"])
    with pytest.raises(ModelError, match="dense"):
        pooled.evidence(images)


# --- the energy ----------------------------------------------------------------------------------


class GaussianNet(EnergyModel):
    """f of standard normal data, for which q_t is N(0, I) at every t: f = -sigma_t |x|^2 / 2."""

    def __init__(self, sigmas):
        super().__init__(torch.nn.Identity(), torch.nn.Identity(), sigmas)
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, t, cond=None):
        f = -self.sigmas[t] * x.square().flatten(1).sum(dim=1) / 2
        return Joint(f, x.new_zeros(len(x), 2))


def test_energy_figures_of_a_known_density(tiny):
    """Around x_0 = 0, log q_t / d is -sigma_t^2 r^2 / 2: the Gaussian, times sigma_t^2."""
    model = replace(tiny, net=GaussianNet(tiny.diffusion.sigmas))
    middle = np.full((4, 8, 8, 1), 128, np.uint8)
    along = along_noise(model, middle, [200, 999])
    sigma2 = 1 - float(tiny.diffusion.alphas_cumprod[200])
    scale = along.log_density[0][-1] / along.gaussian[-1]
    assert scale == pytest.approx(sigma2, rel=0.15)  # by the noise drawn: |eps|^2 is not exactly d
    assert along.fit[1] > 0.98
    plane = over_plane(model, middle[0], 999)
    np.testing.assert_allclose(plane.log_density, plane.gaussian, atol=0.02)
    assert plane.fit > 0.999


def test_goodness_of_fit():
    g = np.linspace(-2, 0, 20)
    assert goodness(g + 5, g) == pytest.approx(1)
    assert goodness(np.zeros(20), g) == pytest.approx(0)


def test_the_shipped_model_has_learned_a_gaussian_around_its_images(digits, test_images):
    along = along_noise(digits, test_images.images(np.arange(8)), [350, 500, 700])
    assert min(along.fit) > 0.9


# --- without labels, and the command line --------------------------------------------------------


def test_models_without_labels_do_what_needs_none(unlabelled, tmp_path):
    image = np.zeros((8, 8), np.uint8)
    assert len(unlabelled.inpaint(image, "left", steps=3, jumps=1, progress=False)) == 1
    assert len(unlabelled.interpolate(seeds=(0, 1), frames=2, steps=3, progress=False).images) == 2
    assert unlabelled.watch(steps=3, progress=False).probabilities is None
    assert np.isfinite(along_noise(unlabelled, image[None, ..., None], [500]).log_density).all()
    for refused in (
        lambda: unlabelled.edit(image, to="3"),
        lambda: unlabelled.sweep_guidance("3", [1]),
        lambda: unlabelled.compose(["3", "5"]),
        lambda: unlabelled.inpaint(image, "left", label="3"),
        lambda: unlabelled.evidence(image),
    ):
        with pytest.raises(ModelError, match="trained without labels"):
            refused()


@pytest.fixture
def seven(digits, test_images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index = int(np.flatnonzero(test_images.labels == 7)[0])
    Image.fromarray(test_images.images(np.array([index]))[0, ..., 0]).save("seven.png")
    return "seven.png"


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ("show sweep-guidance digits --label 3 --scales 0 2 --count 3 --steps 3", "rows"),
        ("inpaint digits seven.png --mask center --count 2 --steps 3", "seeds"),
        ("interpolate digits --seeds 3 8 --frames 3 --steps 3", "frames"),
        ("interpolate digits seven.png seven.png --frames 3 --steps 10", "frames"),
        ("edit digits seven.png --to 1 --strength 0.5 --steps 6", "images"),
        ("show watch digits --label 3 --steps 4", "probabilities"),
        ("show evidence digits seven.png", "images"),
        ("show landscape digits --data digits --images 2", "over_plane"),
        ("sample digits --label 3 5 --compose and --steps 3", "seeds"),
    ],
)
def test_verbs_write_what_they_say(seven, call, key, capsys, tmp_path):
    assert main([*call.split(), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert key in data
    assert (tmp_path / data["out"]).stat().st_size > 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("inpaint digits seven.png", "Say what to fill"),
        ("inpaint digits seven.png --mask centre", "Did you mean 'center'"),
        ("inpaint digits seven.png nowhere.png", "no image 'nowhere.png'"),
        ("inpaint digits seven.png --mask left --label 12", "no class '12'"),
        ("inpaint digits seven.png --mask left --steps 0", "--steps must be larger than 0"),
        ("edit digits seven.png --to 1 --strength 2", "must be 0 to 1, or auto; got '2'"),
        ("edit digits seven.png --to 1 --strength lots", "or auto; got 'lots'"),
        ("interpolate digits", "Give two images, or --seeds"),
        ("interpolate digits seven.png", "Two images are needed"),
        ("show sweep_guidance digits --label 3 --scales 1 nan", "must be a finite number"),
        ("sample digits --label 3 --compose and", "at least two labels"),
        ("show watch digits --out a.mp4 --steps 2", ".gif or .webp"),
        ("show landscape digits --out a.jpg --images 1", "written as .png"),
    ],
)
def test_mistakes_are_one_sentence(seven, call, words, capsys):
    assert main(call.split()) == 2
    (error,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert words in error


@pytest.mark.usefixtures("small_gallery")
def test_a_report_has_every_figure_that_fits(tiny, unlabelled, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for model, name, count in ((tiny, "all", 10), (unlabelled, "few", 5)):
        quick = model.config.replace(sample={"steps": 4})
        EGC(quick, model.classes, model.net, model.diffusion, model.codec).save(name)
        call = ["report", name, "--figures", f"{name}-figures", "--out", f"{name}.html", "--json"]
        assert main(call) == 0
        assert len(json.loads(capsys.readouterr().out)["figures"]) == count
        assert len(list((tmp_path / f"{name}-figures").glob("*.png"))) == count
        assert (tmp_path / f"{name}.html").read_text().count("<img") == count
