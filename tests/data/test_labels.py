"""Labels as users have them: indices, names, and what is refused in one sentence."""

import numpy as np
import pytest
import torch

from egc.api import EGC
from egc.data import ImageSet
from egc.errors import DataError

IMAGES = np.zeros((4, 8, 8, 1), dtype=np.uint8)


@pytest.mark.parametrize(
    "labels",
    [
        ["cat", "ant", "cat", "bee"],
        np.array(["cat", "ant", "cat", "bee"]),
        np.array(["cat", "ant", "cat", "bee"], dtype=object),
    ],
)
def test_names_become_the_classes(labels):
    data = ImageSet.from_arrays(IMAGES, labels)
    assert data.classes == ["ant", "bee", "cat"]
    assert data.labels.tolist() == [2, 0, 2, 1]


def test_names_of_given_classes_and_unknown_ones():
    data = ImageSet.from_arrays(IMAGES, ["b", None, "a", "b"], classes=["b", "a", "c"])
    assert data.labels.tolist() == [0, -1, 1, 0]
    assert data.classes == ["b", "a", "c"]
    with pytest.raises(DataError, match="label 'dog' is no class"):
        ImageSet.from_arrays(IMAGES, ["b", "dog", "a", "b"], classes=["b", "a", "c"])


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 2, 1, -1]), [0.0, 2.0, 1.0, -1.0], np.int8([0, 2, 1, -1])]
)
def test_indices_of_any_type(labels):
    data = ImageSet.from_arrays(IMAGES, labels)
    assert data.labels.tolist() == [0, 2, 1, -1]
    assert data.classes == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1.5, 2, 0], "class index .*; got 1.5"),
        ([0, float("nan"), 1, 0], "got nan"),
        ([0, float("inf"), 1, 0], "got inf"),
        (np.eye(4), "got array"),
        ([object()] * 4, "got <object"),
        (["a", 1, "b", "c"], "all names or all class indices; got names and 1"),
        ([0, 1], "4 images need as many labels; got 2"),
        (7, "as many labels"),
    ],
)
def test_what_is_no_label_is_said_in_one_sentence(labels, words):
    with pytest.raises(DataError, match=words):
        ImageSet.from_arrays(IMAGES, labels)


def test_fit_takes_names(tiny_config):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    names = ["odd" if index % 2 else "even" for index in range(40)]
    few = tiny_config.replace(train={"steps": 1})
    model = EGC.fit((images, names), preset=few, progress=False, report=False)
    assert model.classes == ["even", "odd"]
