"""Everything that one model can do, on one page: all figures that fit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from egc.report.grid import image_grid
from egc.model import Model
from egc.tasks.figures import (
    edit_figure,
    energy_figure,
    evidence_figure,
    sweep_figure,
    watch_figure,
)
from egc.report.page import Section
from egc.tasks.compose import compose
from egc.tasks.edit import edit
from egc.tasks.features import evidence
from egc.tasks.inpaint import inpaint, make_mask
from egc.tasks.interpolate import interpolate
from egc.tasks.landscape import landscape
from egc.tasks.sample import sample
from egc.tasks.sweep import sweep_guidance
from egc.tasks.watch import watch

SCALES = (0, 1, 2, 6, 20)
FILLS = 6
FEW = 6
"""images that are edited or looked into"""
LARGEST = 128


def gallery(model: Model, images: np.ndarray, seed: int = 0) -> Iterator[tuple[str, Section[Any]]]:
    """(a short name, a section) of each figure, drawn as it is asked for.

    Args:
        images: pictures of the kind the model knows, uint8 (N, H, W, C), at least two.
    """
    quiet: dict[str, Any] = {"seed": seed, "progress": False}
    if model.classes:
        yield from _with_labels(model, images, quiet)
    drawn = sample(model, count=40, **quiet)
    yield (
        "samples",
        Section(
            "Drawing freely",
            f"Samples without a label, seeds {seed} to {seed + 39}.",
            image_grid(drawn.images, columns=10, largest=LARGEST),
        ),
    )
    yield (
        "inpainting",
        Section(
            "Inpainting",
            "An image, what is left of it, and several ways to fill the rest. Known pixels stay "
            "exactly as they were.",
            _fills(model, images[:3], quiet),
        ),
    )
    yield (
        "interpolation",
        Section(
            "Interpolation",
            f"Above through noise, from the sample of seed {seed} to that of seed {seed + 1}; "
            "below the two blended.",
            interpolate(model, (seed, seed + 1), progress=False).picture(),
        ),
    )
    yield (
        "between-images",
        Section(
            "Between two given images",
            "The same from one image to another, each led back into noise by DDIM inversion.",
            interpolate(model, images=images[:2], progress=False).picture(),
        ),
    )
    yield (
        "energy",
        Section(
            "The energy",
            "The unnormalised density of noised images (of one of their values), along growing "
            "noise and over the plane of two orthogonal noises, beside the Gaussian it should "
            "resemble. The fit is the share of the Gaussian's variance that is explained.",
            energy_figure(*landscape(model, images[:16], seed)),
        ),
    )


def _with_labels(
    model: Model, images: np.ndarray, quiet: dict[str, Any]
) -> Iterator[tuple[str, Section[Any]]]:
    """The figures that need classes."""
    classes = model.classes
    shown = min(3, len(classes) - 1)
    yield (
        "guidance",
        Section(
            "Guidance",
            f"The class {classes[shown]} from the same seeds at growing guidance: less diverse, "
            "more to the point.",
            sweep_figure(
                sweep_guidance(model, shown, SCALES, count=10, **quiet), str(classes[shown])
            ),
        ),
    )
    yield (
        "watching",
        Section(
            "Watching it think",
            "An image on its way out of the noise, and what the network takes it for.",
            watch_figure(watch(model, shown, **quiet), classes),
        ),
    )
    yield (
        "edits",
        Section(
            "Counterfactuals",
            f"The smallest edit that makes the network say {classes[shown]}: before, after, and "
            "what changed (light was added, dark taken away).",
            edit_figure(edit(model, images[:FEW], shown, **quiet), classes),
        ),
    )
    if model.config.network.readout == "dense":
        yield (
            "evidence",
            Section(
                "Evidence",
                "Where in an image each class is seen: the opinion of every position.",
                evidence_figure(images[:4], evidence(model, images[:4]), classes),
            ),
        )
    if len(classes) > 5:
        both, one = (compose(model, [3, 5], mode, 10, **quiet).images for mode in ("and", "not"))
        yield (
            "composition",
            Section(
                "Composition",
                f"Above {classes[3]} and {classes[5]} at once, below {classes[3]} and not "
                f"{classes[5]}, by adding and subtracting energies, with Metropolis-adjusted "
                "Langevin steps.",
                image_grid(np.concatenate([both, one]), columns=10, largest=LARGEST),
            ),
        )


def _fills(model: Model, images: np.ndarray, quiet: dict[str, Any]) -> Any:
    rows: list[np.ndarray] = []
    for image, shape in zip(images, ("center", "left", "random-strokes"), strict=False):
        mask = make_mask(shape, model.codec.image_size)
        filled = inpaint(model, image, mask, count=FILLS, **quiet)
        hidden = np.where(mask[..., None], 128, image).astype(np.uint8)
        rows += [image, hidden, *filled.images]
    return image_grid(np.stack(rows), columns=FILLS + 2, largest=LARGEST)
