"""What training has led to: measured and drawn, for a look in between and for the page at the end.

Looking costs little beside training: after a short one, fewer images are drawn.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from egc.data.imageset import ImageSet, Splits
from egc.distributed import is_main
from egc.metrics.classification import Classification, evaluate_classification
from egc.metrics.threshold import ood_threshold
from egc.model import Model
from egc.report.figures import confusion_figure, histogram, run_curves
from egc.report.grid import image_grid
from egc.report.page import Section, render
from egc.report.progress import progress_line
from egc.tasks.out_of_distribution import FACT, MIN_VALIDATION_IMAGES
from egc.tasks.predict import log_density
from egc.tasks.sample import denoising_path, sample
from egc.training.cost import affordable_images

log = logging.getLogger("egc")

PREVIEW_IMAGES = 36
MAX_MEASURED = 1000
"""test images used for the energies, and noise images beside them"""
MAX_PIXELS = 1 << 26
"""of all of them together"""
MAX_DECODED = 100
"""the same, where they go through an autoencoder"""
EACH = 10
"""samples of each class"""
FREE = 50
"""samples without a class"""
PATHS = 5
"""samples that are shown on their way"""
SHOWN_CLASSES = 10


@dataclass
class Outcome:
    """What a trained model names, draws and finds strange."""

    classification: Classification | None = None
    """on the test images; None without labels"""
    energies: dict[str, np.ndarray] = field(default_factory=dict)
    """at t = 0, of test images and of images the model should find strange"""
    samples: list[Section] = field(default_factory=list)
    """pictures, with what they show"""
    threshold: dict[str, Any] | None = None
    """above which images are flagged as out of distribution"""

    def facts(self) -> dict[str, Any]:
        """The figures that are stored with the model."""
        known = self.classification
        found: dict[str, Any] = {
            "test_accuracy": None if known is None else known.accuracy,
            "median_energy": {name: float(np.median(e)) for name, e in self.energies.items()},
        }
        return found if self.threshold is None else {**found, FACT: self.threshold}

    def picture(self) -> Image.Image | None:
        """Samples, one class a row where there are classes; None if it does not draw."""
        return self.samples[0].picture if self.samples else None

    def page(self, model: Model, metrics: Sequence[Mapping[str, Any]], title: str) -> str:
        """All of it as HTML, below the curves of training."""
        about = {"training data": model.config.data.source}
        about["steps"] = f"{model.config.train.steps:,}"
        sections = []
        if any("loss" in record for record in metrics):
            text = "The terms of the loss, and the accuracy on validation images."
            sections.append(Section("Learning", text, run_curves({title: metrics})))
        if self.classification is not None:
            about = {"test accuracy": f"{self.classification.accuracy:.1%}", **about}
            text = (
                f"The forward pass on {len(self.classification.labels)} test images it has never "
                "seen: true class by predicted class."
            )
            figure = confusion_figure(self.classification.confusion, model.classes)
            sections.append(Section("Naming", text, figure))
        sections += self.samples
        if self.energies:
            text = (
                "The energy of test images, of the same images upside down, and of random noise, "
                "at t = 0. Low energy is familiar, high energy is strange."
            )
            figure = histogram(self.energies, "energy E(x) = -f(x)")
            sections.append(Section("Familiar and strange", text, figure))
        return render(title, model.net.about, about, sections)


def look_back(model: Model, splits: Splits, progress: bool = True) -> Outcome:
    """Measure and draw with a trained model; of several processes, each does its share."""
    outcome = Outcome()
    test, validation = splits.test, splits.validation
    if model.classifies and (test.labels >= 0).any():
        with _stage(f"naming {len(test):,} test images", progress):
            outcome.classification = evaluate_classification(model, test)
    if model.net.draws:
        outcome.samples = _samples(model, progress)
    if len(test) and model.net.has_energy:
        with _stage("energies of test images, and of strange ones", progress):
            outcome.energies = strange_energies(model, test)
    if len(validation) >= MIN_VALIDATION_IMAGES and not model.config.data.streaming:
        with _stage("what counts as out of distribution", progress):
            outcome.threshold = ood_threshold(model, validation)
    return outcome


def look_in_between(
    model: Model, validation: ImageSet, step: int
) -> tuple[Image.Image | None, dict[str, float]]:
    """A few samples, and the accuracy on validation images, while training."""
    picture = None
    if model.net.draws:
        since = min(step, model.config.train.preview_every)
        count = min(PREVIEW_IMAGES, max(1, affordable_images(model, since)))
        labels = None
        if model.classifies:
            labels = [index % len(model.classes) for index in range(count)]
        images = sample(
            model, labels, count, sampling=model.sampling(), progress=False, shared=True
        ).images
        picture = image_grid(images, cell=48, largest=128)
    if model.classifies and (validation.labels >= 0).any():
        accuracy = evaluate_classification(model, validation).accuracy
        return picture, {"validation_accuracy": accuracy}
    return picture, {}


def strange_energies(model: Model, data: ImageSet) -> dict[str, np.ndarray]:
    """Energies of real images, of the same turned upside down, and of uniform noise."""
    images = data.images(np.arange(min(MAX_MEASURED, len(data), MAX_PIXELS // data.image_size**2)))
    if data.autoencoder is not None:  # latents: back to pictures, which can be turned
        images = model.codec.decode(model.codec.encode(images[:MAX_DECODED]))
    noise = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    sets = {"test images": images, "upside down": images[:, ::-1, ::-1].copy(), "noise": noise}
    return {name: -log_density(model, pixels) for name, pixels in sets.items()}


def _samples(model: Model, progress: bool) -> list[Section]:
    """By class, freely, and on their way; fewer of each where training was short."""
    shown = model.classes[:SHOWN_CLASSES]
    wanted = EACH * len(shown) + FREE + PATHS
    share = min(1.0, affordable_images(model, model.config.train.steps) / wanted)
    each, free, paths = (max(1, round(share * count)) for count in (EACH, FREE, PATHS))
    sections = []
    if shown:
        with _stage(f"drawing {each * len(shown)} images of classes", progress, bar=False):
            sections.append(_by_class(model, shown, each, progress))
    with _stage(f"drawing {free} images freely", progress, bar=False):
        found = sample(
            model, None, free, sampling=model.sampling(), seed=10_000, progress=progress,
            shared=True,
        )  # fmt: skip
    text = "The network with no label: it starts from noise and goes where it finds images."
    sections.append(Section("Drawing freely", text, _grid(found.images)))
    with _stage(f"the way of {paths} images from noise", progress):
        sections.append(_on_their_way(model, paths))
    return sections


def _by_class(model: Model, names: Sequence[str], each: int, progress: bool) -> Section:
    labels = np.repeat(np.arange(len(names)), each).tolist()
    sampling = model.sampling()
    samples = sample(model, labels, sampling=sampling, progress=progress, shared=True)
    sampler = sampling.sampler if model.net.denoises else "Langevin dynamics"
    return Section(
        "Drawing what is asked for",
        f"The backward pass, guided to one class a row; {sampler}, {sampling.steps} steps, "
        f"guidance {sampling.guidance:g}.",
        image_grid(samples.images, columns=each, cell=48, largest=128, labels=names),
    )


def _on_their_way(model: Model, count: int) -> Section:
    seeds = np.arange(20_000, 20_000 + count)
    labels = np.arange(count) % len(model.classes) if model.classes else np.full(count, -1)
    images, times = denoising_path(model, labels, seeds, model.sampling(), frames=11)
    rows = images.swapaxes(0, 1).reshape(-1, *images.shape[2:])
    until = f", from t = {times[0]} to t = {times[-1]}" if model.net.denoises else ""
    text = f"A few samples on their way, one a row{until}."
    return Section("From noise to image", text, _grid(rows, columns=len(images)))


def _grid(images: np.ndarray, columns: int = EACH) -> Image.Image:
    return image_grid(images, columns=columns, cell=48, largest=128)


@contextmanager
def _stage(what: str, progress: bool, bar: bool = True) -> Iterator[None]:
    """Say what is done now: a bar on a terminal, unless it has its own, and a line elsewhere."""
    show, watched = progress and is_main(), sys.stderr.isatty()
    if show and not watched:
        log.info("Report: %s.", what)
    with progress_line(what.capitalize(), 1, show=show and watched and bar) as line:
        yield
        line.advance()
