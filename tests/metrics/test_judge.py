"""Metrics on cases with known answers, and the judge."""

import numpy as np
import pytest

from egc.config import DataConfig
from egc.data import ImageSet, open_source
from egc.errors import DataError
from egc.metrics.classification import evaluate_classification
from egc.metrics.frechet import frechet_distance
from egc.metrics.judge import Judge


def test_frechet_distance_of_gaussians_is_the_closed_form():
    """Diagonal covariances: sum of (m1 - m2)^2 + (s1 - s2)^2."""
    rng = np.random.default_rng(0)
    mean1, std1 = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.5, 2.0])
    mean2, std2 = np.array([0.5, 0.0, -2.0]), np.array([2.0, 0.5, 1.0])
    first = mean1 + std1 * rng.standard_normal((200_000, 3))
    second = mean2 + std2 * rng.standard_normal((200_000, 3))
    expected = ((mean1 - mean2) ** 2 + (std1 - std2) ** 2).sum()
    assert frechet_distance(first, second) == pytest.approx(expected, rel=0.02)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(first, second) == pytest.approx(frechet_distance(second, first))


def test_frechet_distance_of_correlated_features():
    """Equal means; C2 = 4 C1 gives tr(C1 + 4 C1 - 2 * 2 C1) = tr C1."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((5000, 4)) @ rng.standard_normal((4, 4))
    features -= features.mean(axis=0)
    expected = np.trace(np.cov(features, rowvar=False))
    assert frechet_distance(features, 2 * features) == pytest.approx(expected, rel=1e-6)


def test_accuracy_and_confusion_by_hand(tiny):
    images = open_source(DataConfig("digits")).test.images(np.arange(6))
    predicted = tiny.predict_proba(images).argmax(axis=1)
    labels = predicted.copy()
    labels[0] = (labels[0] + 1) % 10
    labels[1] = -1  # unknown: not counted
    data = ImageSet.from_arrays(images, labels, tiny.classes)
    result = evaluate_classification(tiny, data)
    assert result.accuracy == pytest.approx(4 / 5)
    assert result.confusion.sum() == 5
    assert result.confusion[labels[0], predicted[0]] >= 1
    with pytest.raises(DataError, match="no labelled images"):
        evaluate_classification(tiny, ImageSet.from_arrays(images, [-1] * 6, tiny.classes))


def test_the_judge_knows_digits_and_is_a_function_of_its_seed():
    splits = open_source(DataConfig("digits"))
    judge = Judge.train_on(splits.train, steps=100)
    images, labels = splits.test.images(), splits.test.labels
    assert judge.agreement(images, labels) > 0.95  # 0.986 here: a dozen images more
    assert judge.distance(images, images) == pytest.approx(0, abs=1e-6)
    noise = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    train = splits.train.images()
    assert judge.distance(train, images) < 0.2 * judge.distance(noise, images)
    again = Judge.train_on(splits.train, steps=20, seed=3)
    same = Judge.train_on(splits.train, steps=20, seed=3)
    np.testing.assert_array_equal(again.predict(images), same.predict(images))
