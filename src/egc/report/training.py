"""The report of a training run: what the network learned, drew, recognised and found strange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from egc.data.imageset import ImageSet
from egc.metrics.classification import Classification, evaluate_classification
from egc.report.grid import image_grid
from egc.model import Model
from egc.report.figures import confusion_figure, histogram, run_curves
from egc.report.page import Section, render
from egc.tasks.predict import log_density
from egc.tasks.sample import denoising_path, sample

MOST = 1000
"""test images used for the energies, and noise images beside them"""
MOST_PIXELS = 1 << 26
"""of all of them together"""
MOST_DECODED = 100
"""the same, where they go through an autoencoder"""
EACH = 10
"""samples of each class"""
SHOWN_CLASSES = 10


@dataclass(frozen=True)
class TrainingReport:
    """The page and the numbers on it."""

    html: str
    accuracy: float | None
    """on the test images; None without labels"""
    energies: dict[str, float]
    """median energy at t = 0 of test images and of images the model should find strange"""
    drawn: Image.Image | None
    """samples, one class a row where there are classes; None if it does not draw"""


def training_report(
    model: Model,
    test: ImageSet,
    metrics: Sequence[Mapping[str, Any]],
    *,
    title: str,
    progress: bool = True,
) -> TrainingReport:
    """Draw samples, classify the test images, compare energies, and put it on one page."""
    figures = {"training data": model.config.data.source, "steps": f"{model.config.train.steps:,}"}
    sections: list[Section[Any]] = []
    if any("loss" in record for record in metrics):
        sections.append(
            Section(
                "Learning",
                "The terms of the loss, and the accuracy on validation images.",
                run_curves({title: metrics}),
            )
        )
    result = _classification(model, test)
    if result is not None:
        figures = {"test accuracy": f"{result.accuracy:.1%}", **figures}
        sections.append(
            Section(
                "Naming",
                f"The forward pass on {len(result.labels)} test images it has never seen: true "
                "class by predicted class.",
                confusion_figure(result.confusion, model.classes),
            )
        )
    drawn = _drawn(model, progress) if model.net.draws else []
    sections += drawn
    groups = strange_energies(model, test) if len(test) and model.net.has_energy else {}
    if groups:
        sections.append(
            Section(
                "Familiar and strange",
                "The energy of test images, of the same images upside down, and of random noise, "
                "at t = 0. Low energy is familiar, high energy is strange.",
                histogram(groups, "energy E(x) = -f(x)"),
            )
        )
    return TrainingReport(
        html=render(title, model.net.about, figures, sections),
        accuracy=None if result is None else result.accuracy,
        energies={name: float(np.median(values)) for name, values in groups.items()},
        drawn=drawn[0].picture if drawn else None,
    )


def strange_energies(model: Model, data: ImageSet) -> dict[str, np.ndarray]:
    """Energies of real images, of the same turned upside down, and of uniform noise."""
    images = data.images(np.arange(min(MOST, len(data), MOST_PIXELS // data.image_size**2)))
    if data.autoencoder is not None:  # latents: back to pictures, which can be turned
        images = model.codec.decode(model.codec.encode(images[:MOST_DECODED]))
    noise = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    sets = {"test images": images, "upside down": images[:, ::-1, ::-1].copy(), "noise": noise}
    return {name: -log_density(model, pixels) for name, pixels in sets.items()}


def _classification(model: Model, test: ImageSet) -> Classification | None:
    if not model.classifies or not (test.labels >= 0).any():
        return None
    return evaluate_classification(model, test)


def _drawn(model: Model, progress: bool) -> list[Section[Image.Image]]:
    by_class = [_drawn_by_class(model, progress)] if model.classes else []
    return [*by_class, _drawn_freely(model, progress), _paths(model)]


def _drawn_by_class(model: Model, progress: bool) -> Section[Image.Image]:
    shown = list(range(min(SHOWN_CLASSES, len(model.classes))))
    labels = np.repeat(shown, EACH).tolist()
    samples = sample(model, labels, sampling=model.sampling(), progress=progress, shared=True)
    names = ", ".join(model.classes[index] for index in shown)
    return Section(
        "Drawing what is asked for",
        f"The backward pass, guided to one class a row ({names}); {_sampler(model)}, "
        f"{model.config.sample.steps} steps, guidance {model.config.sample.guidance:g}.",
        image_grid(samples.images, columns=EACH, cell=48, largest=128),
    )


def _sampler(model: Model) -> str:
    return model.config.sample.sampler if model.net.denoises else "Langevin dynamics"


def _drawn_freely(model: Model, progress: bool) -> Section[Image.Image]:
    samples = sample(
        model, None, 5 * EACH, sampling=model.sampling(), seed=10_000, progress=progress, shared=True
    )
    return Section(
        "Drawing freely",
        "The network with no label: it starts from noise and goes where it finds images.",
        image_grid(samples.images, columns=EACH, cell=48, largest=128),
    )


def _paths(model: Model) -> Section[Image.Image]:
    count = 5
    seeds = np.arange(20_000, 20_000 + count)
    labels = np.full(count, -1)
    if model.classes:
        labels = np.arange(count) % len(model.classes)
    images, times = denoising_path(model, labels, seeds, model.sampling(), frames=11)
    rows = images.swapaxes(0, 1).reshape(-1, *images.shape[2:])
    return Section(
        "From noise to image",
        "A few samples on their way, one a row"
        + (f", from t = {times[0]} to t = {times[-1]}." if model.net.denoises else "."),
        image_grid(rows, columns=images.shape[0], cell=48, largest=128),
    )
