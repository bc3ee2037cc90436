"""Figures of classification on hand-made cases, and beside torchmetrics and scikit-learn."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score
from torchmetrics.functional.classification import multiclass_calibration_error

import egc
from egc.config import DataConfig
from egc.data import ImageSet, open_source
from egc.errors import ConfigError, DataError, ModelError
from egc.metrics import fitting
from egc.metrics.classification import (
    Classification,
    accuracy_against_t,
    against_t_figure,
    evaluate_classification,
    reliability,
    reliability_figure,
)
from egc.report.figures import png


@pytest.fixture(scope="module")
def random_case():
    """500 images, 8 classes: probabilities and labels that have something to do with them."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(8, 0.3), 500)
    labels = np.array([rng.choice(8, p=0.5 * p + 0.5 / 8) for p in probabilities])
    return probabilities, labels


def test_two_classes_by_hand():
    result = Classification(np.array([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1]]), np.array([0, 0, 1]))
    assert result.accuracy == pytest.approx(1 / 3)
    assert result.confusion.tolist() == [[1, 1], [1, 0]]
    assert result.nll == pytest.approx(-np.log([0.8, 0.4, 0.1]).mean())
    assert result.brier == pytest.approx(2 * np.mean([0.2**2, 0.6**2, 0.9**2]))
    assert result.ece == pytest.approx((abs(1 - 0.8) + abs(0 - 0.6) + abs(0 - 0.9)) / 3)
    assert result.confidence == pytest.approx((0.8 + 0.6 + 0.9) / 3)
    assert result.top5 is None


def test_calibrated_bins_have_no_error():
    """Of 10 images at confidence 0.7, 7 right; of 10 at 0.9, 9 right."""
    probabilities = np.repeat([[0.7, 0.3], [0.9, 0.1]], 10, axis=0)
    labels = np.array([0] * 7 + [1] * 3 + [0] * 9 + [1])
    bins = reliability(probabilities, labels)
    assert bins.error == pytest.approx(0, abs=1e-12)
    assert bins.count.sum() == 20
    assert bins.count[10] == 10  # 0.7 is in 10/15..11/15
    assert bins.count[13] == 10
    assert bins.accuracy[10] == pytest.approx(0.7)
    assert bins.confidence[13] == pytest.approx(0.9)


def test_certainty_is_in_the_last_bin():
    bins = reliability(np.array([[1.0, 0.0], [0.97, 0.03]]), np.array([0, 1]))
    assert bins.count.tolist() == [0] * 14 + [2]
    assert bins.error == pytest.approx(abs(0.5 - 0.985))


def test_a_certain_mistake_has_a_finite_loss():
    result = Classification(np.array([[1.0, 0.0]]), np.array([1]))
    assert np.isfinite(result.nll)
    assert result.nll > 80
    assert result.brier == pytest.approx(2)


def test_beside_torchmetrics(random_case):
    probabilities, labels = random_case
    result = Classification(probabilities, labels)
    expected = multiclass_calibration_error(
        torch.tensor(probabilities), torch.tensor(labels), num_classes=8, n_bins=15
    )
    assert result.ece == pytest.approx(float(expected), abs=1e-6)
    assert result.reliability.error == pytest.approx(result.ece, abs=1e-6)


def test_certainty_is_not_a_bin_of_its_own():
    """The figure and the diagram agree also where the network is certain."""
    result = Classification(np.array([[1.0, 0.0], [0.97, 0.03]]), np.array([0, 1]))
    assert result.ece == pytest.approx(abs(0.5 - 0.985), abs=1e-5)


def test_beside_sklearn(random_case):
    probabilities, labels = random_case
    result = Classification(probabilities, labels)
    assert result.nll == pytest.approx(log_loss(labels, probabilities, labels=range(8)), rel=1e-6)
    top5 = top_k_accuracy_score(labels, probabilities, k=5, labels=range(8))
    assert result.top5 == pytest.approx(top5)
    brier = sum(brier_score_loss(labels == c, probabilities[:, c]) for c in range(8))
    assert result.brier == pytest.approx(brier)


def test_the_summary_is_json(random_case):
    result = Classification(*random_case)
    summary = json.loads(json.dumps(result.summary()))
    assert summary["images"] == 500
    assert summary["accuracy"] == result.accuracy
    assert sum(summary["reliability"]["count"]) == 500
    assert np.sum(summary["confusion"]) == 500


@pytest.fixture(scope="module")
def digits():
    return egc.load("digits")


@pytest.fixture(scope="module")
def held_out():
    test = open_source(DataConfig("digits")).test
    return test.subset(np.arange(120))


def test_digits_are_named_well_in_every_way(digits, held_out):
    plain = evaluate_classification(digits, held_out)
    assert plain.accuracy > 0.95
    assert plain.top5 > 0.99
    assert plain.ece < 0.05
    averaged = evaluate_classification(digits, held_out, ensemble=4)
    assert averaged.accuracy > 0.95
    assert not np.array_equal(averaged.probabilities, plain.probabilities)
    np.testing.assert_allclose(averaged.probabilities.sum(axis=1), 1, rtol=1e-5)
    again = evaluate_classification(digits, held_out, ensemble=4)
    np.testing.assert_array_equal(again.probabilities, averaged.probabilities)
    purified = evaluate_classification(digits, held_out.subset(np.arange(8)), purify=100)
    assert purified.accuracy > 0.5


def test_an_image_keeps_its_noise_whoever_classifies_it(digits, held_out, monkeypatch):
    """Of several processes each takes a share; an image's seed is its position in the set."""
    every = evaluate_classification(digits, held_out, ensemble=2).probabilities
    monkeypatch.setattr(fitting, "share", lambda items: items[::-1])
    monkeypatch.setattr(fitting, "gather", lambda rows: rows[::-1])
    other_way = evaluate_classification(digits, held_out, ensemble=2).probabilities
    np.testing.assert_allclose(other_way, every, atol=1e-5)


def test_accuracy_falls_with_noise(digits, held_out):
    result = accuracy_against_t(digits, held_out, [0, 200, 900])
    assert result.accuracy[0] > 0.95
    assert result.accuracy[2] < 0.5
    assert (np.diff(result.confidence) < 0).all()
    assert json.loads(json.dumps(result.summary()))["times"] == [0, 200, 900]
    for wrong in ([], [1000], [-1]):
        with pytest.raises(ConfigError, match="0 to 999"):
            accuracy_against_t(digits, held_out, wrong)


def test_what_cannot_be_measured_is_refused(digits, held_out, tiny_config):
    images = held_out.images(np.arange(3))
    unknown = ImageSet.from_arrays(images, [-1] * 3, digits.classes)
    for measure in (evaluate_classification, lambda m, d: accuracy_against_t(m, d, [0])):
        with pytest.raises(DataError, match="no labelled images"):
            measure(digits, unknown)
    nameless = egc.EGC.build(tiny_config, [])
    for measure in (evaluate_classification, lambda m, d: accuracy_against_t(m, d, [0])):
        with pytest.raises(ModelError, match="without labels"):
            measure(nameless, held_out)
    with pytest.raises(ConfigError, match="ensemble"):
        evaluate_classification(digits, held_out, ensemble=-1)


def test_figures_are_drawn(random_case, digits, held_out):
    result = Classification(*random_case)
    for figure in (
        reliability_figure({"plain": result, "again": result}),
        against_t_figure(accuracy_against_t(digits, held_out.subset(np.arange(5)), [0, 500])),
    ):
        assert png(figure).startswith(b"\x89PNG")
