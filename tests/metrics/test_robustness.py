"""Attacks on models whose worst case is known, on the shipped model, and through the verb."""

import json
import logging
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.robust import FGSM, PGD

import egc
from egc.api import EGC
from egc.cli import main
from egc.config import DataConfig
from egc.data import ImageSet, open_source
from egc.errors import ConfigError, DataError, EGCError, ModelError
from egc.metrics.attacks import ATTACKS, RADIUS, Attack, Ball, ascent, judge
from egc.metrics.fitting import fitting, labelled
from egc.metrics.robustness import evaluate_robustness, robustness_figure
from egc.metrics.trial import attack_examples, examples_figure
from egc.nn.network import Network
from egc.tasks.predict import Predictor


def attack(name: str, epsilon: float, norm: str = "linf", **effort: int) -> Attack:
    """An attack whose epsilon is given in pixels of 0..1."""
    return Attack(name, epsilon / RADIUS[norm], norm, **effort)


class Linear:
    """log p(y|x) of logits W x + b."""

    is_random = False

    def __init__(self, classes=2, shape=(1, 4, 4), seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.weight = torch.randn(classes, int(np.prod(shape)), generator=generator)
        self.bias = -0.5 * self.weight.sum(dim=1)  # grey pixels are undecided

    def __call__(self, pixels, seeds):
        return (pixels.flatten(1) @ self.weight.T + self.bias).log_softmax(dim=1)

    def images(self, count, low=0.3, high=0.7, seed=1):
        """Images far from black and white, and the classes they are taken for."""
        generator = torch.Generator().manual_seed(seed)
        pixels = low + (high - low) * torch.rand(count, *self.shape, generator=generator)
        return pixels, self(pixels, []).argmax(dim=1)


@pytest.fixture(scope="module")
def digits() -> EGC:
    return egc.load("digits")


@pytest.fixture(scope="module")
def held_out() -> ImageSet:
    return open_source(DataConfig("digits")).validation


def as_pixels(data: ImageSet, count: int):
    images = torch.as_tensor(data.images(np.arange(count))).permute(0, 3, 1, 2) / 255
    return images, torch.as_tensor(data.labels[:count]), list(range(count))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_worst_case_of_a_linear_model_is_found(norm):
    """Two classes: the margin w x + b falls by epsilon |w|, in the dual norm."""
    asked = Linear()
    pixels, labels = asked.images(64)
    w = asked.weight[0] - asked.weight[1]
    margin = (pixels.flatten(1) @ w + asked.bias[0] - asked.bias[1]).abs()
    dual = w.abs().sum() if norm == "linf" else w.norm()
    epsilon = float(margin.median() / dual)
    assert epsilon < 0.3 or norm == "l2"  # so that the range of pixels does not bind
    expected = margin > epsilon * dual
    for name in ("fgsm", "pgd"):
        found = attack(name, 1.001 * epsilon, norm).run(asked, pixels, labels, range(64))
        right = judge(asked, found, range(64)) == labels
        undecided = (margin / (epsilon * dual) - 1).abs() < 0.01
        assert torch.equal(right[~undecided], expected[~undecided])
    weaker = attack("random", epsilon, norm).run(asked, pixels, labels, range(64))
    assert (judge(asked, weaker, range(64)) == labels).sum() >= expected.sum()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_stay_in_the_ball_and_in_the_range_of_pixels(name, norm):
    asked = Linear(classes=5)
    pixels, labels = asked.images(12, low=0, high=1)
    epsilon = 0.2 if norm == "linf" else 0.6
    found = attack(name, epsilon, norm).run(asked, pixels, labels, range(12))
    assert found.min() >= 0
    assert found.max() <= 1
    change = (found - pixels).flatten(1)
    length = change.abs().amax(dim=1) if norm == "linf" else change.norm(dim=1)
    assert length.max() <= epsilon * (1 + 1e-5)
    assert length.max() > 0.5 * epsilon
    assert not found.requires_grad


def test_random_starts_fill_the_ball():
    pixels = torch.full((400, 1, 3, 3), 0.5)
    generators = [torch.Generator().manual_seed(seed) for seed in range(400)]
    flat = (Ball("linf", 0.1).random(pixels, generators) - pixels).flatten(1)
    assert flat.std() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    radii = (Ball("l2", 0.1).random(pixels, generators) - pixels).flatten(1).norm(dim=1)
    assert radii.max() <= 0.1 * (1 + 1e-5)
    assert ((radii / 0.1) ** 9).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.filterwarnings("ignore:Input Tensor 0")
def test_steps_equal_those_of_captum(digits, held_out):
    """The same start and steps give the same pixels as an independent library."""
    asked = Predictor(digits)
    pixels, labels, seeds = as_pixels(held_out, 6)

    def forward(x):
        return asked(x, seeds)

    def loss(log_p, target):
        return -log_p.gather(1, target[:, None])[:, 0]

    ours = attack("fgsm", 0.1).run(asked, pixels, labels, seeds)
    oracle = FGSM(forward, loss, 0, 1)
    oracle.zero_thresh = (
        0  # it takes gradients below 1e-6 for none; where a model is sure, all are
    )
    assert torch.allclose(ours, oracle.perturb(pixels, 0.1, labels), atol=1e-6)
    oracle = PGD(forward, loss, 0, 1)
    oracle.fgsm.zero_thresh = 0
    expected = oracle.perturb(pixels, 0.1, 0.02, 7, labels)
    *_, (end, _) = ascent(
        asked, pixels, labels, Ball("linf", 0.1), steps=7, size=0.02, seeds=seeds
    )
    assert torch.allclose(end, expected, atol=1e-6)


def test_the_projection_equals_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    pixels = 0.4 + 0.2 * torch.rand(5, 1, 4, 4, generator=generator)
    change = 0.1 * torch.randn(5, 1, 4, 4, generator=generator)
    expected = pixels + torch.renorm(change, 2, 0, 0.3)
    assert torch.allclose(Ball("l2", 0.3).project(pixels + change, pixels), expected, atol=1e-6)


def test_an_attack_depends_on_the_seed_of_an_image_not_on_its_batch(tiny, held_out):
    """Of an unsure model: where one is sure, 1 - p is rounding, and so is a sign of a gradient."""
    pixels, _, seeds = as_pixels(held_out, 6)
    for asked in (Predictor(tiny), Predictor(tiny, ensemble=2)):
        labels = judge(asked, pixels, seeds)
        pgd = attack("pgd", 0.1, steps=3, draws=2)
        together = pgd.run(asked, pixels, labels, seeds)
        alone = pgd.run(asked, pixels[4:], labels[4:], seeds[4:])
        assert torch.allclose(together[4:], alone, atol=1e-4)
        other = pgd.run(asked, pixels[4:], labels[4:], [77, 78])
        assert not torch.allclose(alone, other, atol=1e-4)


def test_restarts_keep_what_was_found(digits, held_out):
    pixels, labels, seeds = as_pixels(held_out, 12)
    asked = Predictor(digits)
    right = [
        judge(
            asked,
            attack("pgd", 0.12, steps=4, restarts=n).run(asked, pixels, labels, seeds),
            seeds,
        )
        == labels
        for n in (1, 3)
    ]
    assert not (right[1] & ~right[0]).any()


def test_gradients_are_averaged_over_draws():
    """A model that answers at random about a linear one: many draws find its worst case."""

    class Noisy(Linear):
        is_random = True

        def __call__(self, pixels, seeds):
            noise = [
                torch.randn(self.shape, generator=torch.Generator().manual_seed(seed))
                for seed in seeds
            ]
            return super().__call__(pixels + 3 * torch.stack(noise), seeds)

    asked, fixed = Noisy(classes=3), Linear(classes=3)
    pixels, labels = fixed.images(32)

    def lead(found):
        log_p = fixed(found, [])
        return float(log_p.gather(1, labels[:, None]).mean())

    few, many = (
        lead(attack("pgd", 0.1, steps=5, draws=n).run(asked, pixels, labels, range(32)))
        for n in (1, 32)
    )
    best = lead(attack("pgd", 0.1, steps=5, draws=1).run(fixed, pixels, labels, range(32)))
    assert best <= many < few


def test_autoattack_is_at_least_as_strong_as_pgd(digits, held_out):
    some = held_out.subset(np.arange(4))
    result = evaluate_robustness(
        digits, some, epsilons=[64], attacks=("pgd", "autoattack"), attack_steps=1, checks=False
    )
    assert result.accuracy["autoattack"][0] <= result.accuracy["pgd"][0] < result.clean


@pytest.mark.parametrize(
    ("classes", "is_random", "suite"),
    [(2, False, "apgd-ce fab square"), (3, False, "apgd-ce apgd-dlr fab square"),
     (4, False, "apgd-ce apgd-t fab-t square"), (2, True, "apgd-ce"),
     (9, True, "apgd-ce apgd-dlr")],
)  # fmt: skip
def test_autoattack_with_few_classes(capsys, caplog, monkeypatch, classes, is_random, suite):
    seen = []
    import pyautoattack

    class Spy(pyautoattack.AutoAttack):
        def __init__(self, *args, attacks, **options):
            seen.append(attacks)
            super().__init__(*args, attacks=attacks, **options)

    monkeypatch.setattr(pyautoattack, "AutoAttack", Spy)
    asked = Linear(classes=classes)
    asked.is_random = is_random
    pixels, labels = asked.images(4)
    tracer, state = sys.gettrace(), torch.random.get_rng_state()
    with caplog.at_level(logging.WARNING, logger="egc"):
        found = attack("autoattack", 0.3).run(asked, pixels, labels, range(4))
    assert (judge(asked, found, range(4)) == labels).sum() == 0
    assert seen == [suite.split()]
    assert ("DLR" in caplog.text) == (classes < (3 if is_random else 4))
    assert capsys.readouterr().out == ""
    assert sys.gettrace() is tracer
    assert torch.equal(torch.random.get_rng_state(), state)


def test_autoattack_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    pixels, labels = Linear().images(2)
    with pytest.raises(ConfigError, match=r"pip install 'egc\[attack\]'"):
        attack("autoattack", 0.1).run(Linear(), pixels, labels, range(2))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_attacks_on_digits_pass_all_checks(digits, held_out, norm):
    epsilons = [16, 48] if norm == "linf" else [0.3, 1.0]
    result = evaluate_robustness(
        digits, held_out, epsilons=epsilons, norm=norm, attack_steps=6, images=16
    )
    assert result.clean > 0.9
    assert list(result.checks) == [
        "falls_at_large_epsilon", "pgd_at_least_fgsm", "more_steps_never_help",
        "random_search_weaker_than_pgd",
    ]  # fmt: skip
    assert all(check.passed for check in result.checks.values()), result.checks
    assert result.warnings == []
    for curve in result.accuracy.values():
        assert result.clean >= curve[0] >= curve[1]
    assert json.loads(json.dumps(result.summary()))["images"] == 16
    again = evaluate_robustness(
        digits, held_out, epsilons=epsilons, norm=norm, attack_steps=6, images=16, checks=False
    )
    assert again.accuracy == result.accuracy


class Steps(Network):
    """A network that sees pixels in few levels, so its gradient is zero everywhere."""

    classifies = True

    def __init__(self, net):
        super().__init__()
        self.net = net

    def logits(self, x, t, cond=None) -> torch.Tensor:
        return self.net.logits(x + ((x * 4).round() / 4 - x).detach() - (x - x.detach()), t)


def test_masked_gradients_are_caught(digits, held_out, caplog):
    masked = EGC(digits.config, digits.classes, Steps(digits.net), digits.diffusion, digits.codec)
    result = evaluate_robustness(
        masked, held_out, epsilons=[48], attacks=("pgd",), attack_steps=10, images=24
    )
    assert not result.checks["random_search_weaker_than_pgd"].passed
    assert not result.checks["falls_at_large_epsilon"].passed
    assert any("gradients may be masked" in warning for warning in result.warnings)
    assert "gradients may be masked" in caplog.text


def test_purification_has_both_figures(digits, held_out):
    result = evaluate_robustness(
        digits, held_out, epsilons=[40], attacks=("pgd",), attack_steps=3, attack_draws=1,
        images=8, purify=60, checks=False,
    )  # fmt: skip
    summary = result.summary()["purify"]
    assert summary["level"] == 60
    (adaptive,), (transfer,) = summary["adaptive"]["pgd"], summary["transfer"]["pgd"]
    (worst,), (bare,) = summary["worst"]["pgd"], summary["undefended"]["pgd"]
    assert worst <= min(adaptive, transfer)
    assert bare <= transfer
    assert summary["adaptive"] == result.accuracy
    plain = evaluate_robustness(
        digits, held_out, epsilons=[40], attacks=("pgd",), attack_steps=3, images=8, checks=False
    )
    assert plain.accuracy["pgd"] == [bare]
    assert "purify" not in plain.summary()
    for results in ({"a": result}, {"a": result, "b": plain}):
        assert len(robustness_figure(results).axes) == 1


def test_examples_are_those_of_the_evaluation(digits, held_out):
    examples = attack_examples(Predictor(digits), held_out, Attack("pgd", 64), count=5)
    assert examples.images.shape == (5, 8, 8, 1)
    assert np.abs(examples.attacked - examples.images).max() <= 64 / 255 + 1e-6
    assert (examples.taken_for != examples.labels).any()
    assert len(examples_figure(examples).axes) == 15


def test_images_are_taken_from_all_over_the_set():
    images = np.zeros((6, 2, 2, 1), np.uint8)
    data = ImageSet.from_arrays(images, [0, -1, 0, 1, 1, 1])
    assert labelled(data).tolist() == [0, 2, 3, 4, 5]
    assert labelled(data, 3).tolist() == [0, 3, 5]
    assert labelled(data, 9).tolist() == [0, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match="at least 1"):
        labelled(data, 0)


# --- what does not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 3}, "has colour images, but the model takes grey ones; open the data with "
         r"data.channels = 1"),
        ({"image_size": 16}, r"images of 16x16 pixels, but the model takes 8x8; .*image_size = 8"),
        ({"classes": ["a", "b"]}, "has 2 classes, but the model has 10; choose data"),
        ({"classes": [*"0123456798"]}, "Class 8 is '9' in digits, but '8' in the model; name"),
        ({"labels": np.full(144, -1)}, "no labelled images; choose data with labels"),
        ({"indices": np.arange(0)}, "has no images; choose another"),
        ({"autoencoder": "vae"}, "has latents, not pictures; give the images"),
    ],
)  # fmt: skip
def test_data_that_does_not_fit(digits, held_out, changes, message):
    fitting(digits, held_out)
    with pytest.raises(DataError, match=message):
        fitting(digits, replace(held_out, **changes))


def test_a_model_without_labels_cannot_be_attacked(digits, held_out):
    unlabelled = replace(digits, classes=[])
    with pytest.raises(ModelError, match="without labels"):
        evaluate_robustness(unlabelled, held_out, epsilons=[25])
    fitting(unlabelled, held_out, labels=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilons": []}, "at least one epsilon"),
        ({"epsilons": [-1.0]}, "epsilons must be larger than 0; got -1"),
        ({"norm": "l1"}, "norm = 'l1' is not a choice. Did you mean 'l2'"),
        ({"attacks": ["pdg"]}, "attacks = 'pdg' is not a choice. Did you mean 'pgd'"),
        ({"attack_steps": 0}, "attack_steps must be larger than 0"),
        ({"images": 0}, "images must be at least 1"),
        ({"purify": 5000}, "must be 0 to 999"),
    ],
)
def test_calls_that_make_no_sense(digits, held_out, options, message):
    with pytest.raises(EGCError, match=message):
        evaluate_robustness(digits, held_out, **options)


# --- the verb ------------------------------------------------------------------------------------


def test_the_verb(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["evaluate", "digits", "--metrics", "robustness", "--images", "6",
              "--attack-steps", "3", "--split", "validation"]  # fmt: skip
    assert main([*common, "--epsilons", "64", "16", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    figures = found["models"]["digits"]["robustness"]
    assert figures["epsilons"] == [16, 64]
    assert figures["unit"] == "1/255"
    assert figures["checks"]["pgd_at_least_fgsm"]["epsilon"] in (16, 64)
    assert figures["accuracy"]["pgd"][0] >= figures["accuracy"]["pgd"][1]
    page = (tmp_path / "evaluation.html").read_text()
    assert "Under attack" in page
    assert "Attacked images" in page
    assert "next: egc evaluate digits" in err
    assert main([*common, "--norm", "l2", "--epsilons", "0.5", "--attacks", "pgd"]) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines()[0] == "robustness"
    assert out.splitlines()[1].split()[:2] == ["without", "attack"]
    assert out.splitlines()[2].split()[:3] == ["pgd", "at", "0.5"]
    assert "random search weaker than pgd" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--epsilons", "0"], "epsilons must be larger than 0"),
        (["digits", "--attacks", "fgms"], "Did you mean 'fgsm'"),
        (["digits", "digits"], "only once"),
        (["digits", "--out", "attack.pdf"], ".html"),
        (["nothing-like-it"], "nothing-like-it"),
    ],
)
def test_mistakes_are_one_sentence(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    command = ["evaluate", *arguments, "--metrics", "robustness", "--images", "2"]
    assert main([*command, "--attack-steps", "1"]) == 2
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert message in line
    assert out == ""


def test_data_of_other_classes_is_refused(capsys, photo_folder):
    command = ["evaluate", "digits", "--metrics", "robustness"]
    assert main([*command, "--data", f"folder:{photo_folder}"]) == 2
    assert "has 2 classes, but the model has 10" in capsys.readouterr().err
