"""The report: one page that needs nothing else."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from egc.api import load
from egc.config import DataConfig
from egc.data import open_source
from egc.hub import model_card
from egc.report.grid import image_grid
from egc.training.outcome import look_back


@pytest.fixture(scope="module")
def report():
    model = load("digits")
    model.config = model.config.replace(sample={"steps": 5})  # the page is the same
    metrics = [
        {"step": 10, "loss": 1.2, "score": 1.0, "class_noisy": 2.0, "class_clean": 2.0},
        {"step": 20, "loss": 0.9, "score": 0.8, "class_noisy": 1.0, "class_clean": 1.0},
        {"step": 20, "validation_accuracy": 0.5},
    ]
    outcome = look_back(model, open_source(DataConfig("digits")), progress=False)
    facts = outcome.facts()
    return SimpleNamespace(
        html=outcome.page(model, metrics, "a <test>"),
        accuracy=facts["test_accuracy"],
        energies=facts["median_energy"],
    )


def test_the_page_is_self_contained(report):
    headings = re.findall(r"<h2>(.*?)</h2>", report.html)
    assert headings == [
        "Learning",
        "Naming",
        "Drawing what is asked for",
        "Drawing freely",
        "From noise to image",
        "Familiar and strange",
    ]
    sources = re.findall(r'src="(.{30})', report.html)
    assert len(sources) == 6
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in report.html
    assert "a &lt;test&gt;" in report.html


def test_the_numbers(report):
    assert report.accuracy >= 0.98
    energies = report.energies
    assert energies["test images"] < energies["upside down"] < energies["noise"]


def test_grid_places_images_row_by_row():
    images = np.zeros((5, 4, 4, 3), dtype=np.uint8)
    images[:, :, :, 0] = np.arange(5)[:, None, None] * 40 + 10
    picture = image_grid(images, columns=2, cell=8)
    assert picture.size == (2 * 8 + 2, 3 * 8 + 2 * 2)
    for index in range(5):
        left, top = (index % 2) * 10 + 4, (index // 2) * 10 + 4
        assert picture.getpixel((left, top)) == (index * 40 + 10, 0, 0)
    assert picture.getpixel((14, 24)) == (128, 128, 128)
    assert isinstance(image_grid(images[..., :1]), Image.Image)


def test_card_states_what_the_model_is():
    model = load("digits")
    card = model_card(model, "digits")
    assert "| test accuracy |" in card
    assert "| data | digits |" in card
    assert 'egc.load("digits")' in card
