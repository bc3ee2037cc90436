"""Everything that one model can do, on one page: all figures that fit it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from egc.model import Model
from egc.report.grid import image_grid
from egc.report.page import Section
from egc.tasks.compose import compose
from egc.tasks.edit import edit
from egc.tasks.explain import evidence, has_evidence, watch
from egc.tasks.guidance import sweep_guidance
from egc.tasks.inpaint import inpaint
from egc.tasks.interpolate import interpolate
from egc.tasks.landscape import landscape
from egc.tasks.masks import make_mask
from egc.tasks.sample import sample

SCALES = (0, 1, 2, 6, 20)
FILLS = 6
COLUMNS = 10
MAX_EDITED, MAX_EXPLAINED, MAX_NOISED = 6, 4, 16
LARGEST = 128


def fitting(model: Model) -> list[str]:
    """The names of the figures that a model can give."""
    net, labelled = model.net, model.classifies
    fits = {
        "guidance": labelled and net.draws,
        "watching": labelled and net.denoises,
        "edits": labelled and net.denoises,
        "evidence": has_evidence(model),
        "composition": labelled and net.denoises and net.has_energy and len(model.classes) > 5,
        "samples": net.draws,
        "inpainting": net.denoises,
        "interpolation": net.denoises,
        "between-images": net.denoises,
        "energy": net.denoises and net.has_energy,
    }
    return [name for name, fit in fits.items() if fit]


def gallery(model: Model, images: np.ndarray, seed: int = 0) -> Iterator[tuple[str, Section]]:
    """(a short name, a section) of each figure that fits, made as it is asked for.

    Args:
        images: pictures of the kind the model knows, uint8 (N, H, W, C), at least two.
    """
    tour = _Tour(model, images, seed)
    for name in fitting(model):
        yield name, getattr(tour, name.replace("-", "_"))()


@dataclass(frozen=True)
class _Tour:
    """One section a method."""

    model: Model
    images: np.ndarray
    seed: int

    @property
    def how(self) -> dict[str, Any]:
        return {"sampling": self.model.sampling(), "progress": False}

    @property
    def target(self) -> int:
        """A class to show."""
        return min(3, len(self.model.classes) - 1)

    def guidance(self) -> Section:
        found = sweep_guidance(
            self.model, self.target, SCALES, COLUMNS, seed=self.seed, **self.how
        )
        return Section(
            "Guidance",
            f"The class {found.label} from the same seeds at growing guidance: less diverse, "
            "more to the point.",
            found.picture(),
        )

    def watching(self) -> Section:
        return Section(
            "Watching it think",
            "An image on its way out of the noise, and what the network takes it for.",
            watch(self.model, self.target, seed=self.seed, **self.how).picture(),
        )

    def edits(self) -> Section:
        images = self.images[:MAX_EDITED]
        return Section(
            "Counterfactuals",
            f"The smallest edit that makes the network say {self.model.classes[self.target]}: "
            "before, after, and what changed (light was added, dark taken away).",
            edit(self.model, images, self.target, seed=self.seed, **self.how).picture(),
        )

    def evidence(self) -> Section:
        return Section(
            "Evidence",
            "Where in an image its most probable classes are seen, by the opinion of every "
            "position: p(y|x), and the evidence of the position that is surest.",
            evidence(self.model, self.images[:MAX_EXPLAINED]).picture(),
        )

    def composition(self) -> Section:
        first, second = (self.model.classes[index] for index in (3, 5))
        rows = [
            compose(self.model, [3, 5], mode, COLUMNS, seed=self.seed, **self.how).images
            for mode in ("and", "not")
        ]
        return Section(
            "Composition",
            f"{first} and {second} at once, and {first} but not {second}, by adding and "
            "subtracting energies, with Metropolis-adjusted Langevin steps.",
            image_grid(
                np.concatenate(rows),
                COLUMNS,
                largest=LARGEST,
                labels=[f"{first} and {second}", f"{first} not {second}"],
            ),
        )

    def samples(self) -> Section:
        count = 4 * COLUMNS
        found = sample(self.model, None, count, seed=self.seed, **self.how)
        return Section(
            "Drawing freely",
            f"Samples without a label, seeds {self.seed} to {self.seed + count - 1}.",
            image_grid(found.images, COLUMNS, largest=LARGEST),
        )

    def inpainting(self) -> Section:
        rows: list[np.ndarray] = []
        for image, shape in zip(self.images, ("center", "left", "random-strokes"), strict=False):
            mask = make_mask(shape, self.model.codec.image_size)
            filled = inpaint(self.model, image, mask, count=FILLS, seed=self.seed, **self.how)
            hidden = np.where(mask[..., None], 128, image).astype(np.uint8)
            rows += [image, hidden, *filled.images]
        return Section(
            "Inpainting",
            "An image, what is left of it, and several ways to fill the rest. Known pixels stay "
            "exactly as they were.",
            image_grid(np.stack(rows), FILLS + 2, largest=LARGEST),
        )

    def interpolation(self) -> Section:
        seeds = (self.seed, self.seed + 1)
        return Section(
            "Interpolation",
            f"Above through noise, from the sample of seed {seeds[0]} to that of seed {seeds[1]}; "
            "below the two blended.",
            interpolate(self.model, seeds, **self.how).picture(),
        )

    def between_images(self) -> Section:
        return Section(
            "Between two given images",
            "The same from one image to another, each led back into noise by DDIM inversion.",
            interpolate(self.model, images=self.images[:2], **self.how).picture(),
        )

    def energy(self) -> Section:
        return Section(
            "The energy",
            "The unnormalised density of noised images (of one of their values), along growing "
            "noise and over the plane of two orthogonal noises, beside the Gaussian it should "
            "resemble. The fit is the share of the Gaussian's variance that is explained.",
            landscape(self.model, self.images[:MAX_NOISED], self.seed).picture(),
        )
