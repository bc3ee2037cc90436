"""Why does it say so: where it sees a class, and how its opinion forms on the way out of noise.

Some readouts let every position speak before they pool. The `dense` one pools a map whose channels
are the classes; the logits of a pyramid are a sum over the positions of its deepest map, weighted
by the pool's attention. So every position has an opinion of its own, the softmax of what it says.
Most positions of an image show nothing of any class, so their mean says little; a class is in the
image if some position is sure of it. So classes are ranked by p(y|x), and the evidence for one is
the strongest opinion of any position.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from egc.config import SampleConfig
from egc.errors import ConfigError, ModelError
from egc.model import Model
from egc.report.figures import COLOURS, canvas, literal, show_images
from egc.report.grid import image_grid
from egc.report.progress import progress_line
from egc.tasks.predict import in_batches, predict_proba
from egc.tasks.sample import first_step, labels_for, sample_steps, seeds_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRIP = 10
"""images in the strip"""
SHOWN_CLASSES = 5
"""lines in a plot of probabilities"""


@dataclass(frozen=True)
class Evidence:
    """Where in each image each class is seen."""

    images: np.ndarray
    """uint8 (N, H, W, C)"""
    maps: np.ndarray
    """p(class) by what every position says; (N, classes, h, w)"""
    probabilities: np.ndarray
    """p(y|x) of each image; (N, classes)"""
    classes: list[str]

    @property
    def strongest(self) -> np.ndarray:
        """The evidence for each class: the opinion of the surest position; (N, classes)."""
        return self.maps.max(axis=(2, 3))

    def ranked(self, index: int) -> np.ndarray:
        """Classes of an image, the most probable first."""
        return self.probabilities[index].argsort()[::-1]

    def picture(self, top: int = 3) -> Figure:
        """Each image, and where its most probable classes are seen; one image a row."""
        count, top = len(self.images), min(top, len(self.classes))
        figure = canvas(1.9 * (top + 1), 2.1 * count)
        axes = np.reshape(figure.subplots(count, top + 1), (count, top + 1))
        for index, line in enumerate(axes):
            show_images(line[0], self.images[index][None])
            for axis, each in zip(line[1:], self.ranked(index)[:top], strict=True):
                axis.imshow(self.maps[index, each], cmap="magma", vmin=0, vmax=1)
                axis.set_title(
                    f"{literal(self.classes[each])} {self.probabilities[index, each]:.1%}\n"
                    f"evidence {self.strongest[index, each]:.0%}",
                    fontsize=8,
                )
                axis.set_axis_off()
        return figure


def has_evidence(model: Model) -> bool:
    """Whether the positions of its map have opinions about classes."""
    readout = getattr(model.net, "readout", None)
    return model.classifies and bool(getattr(readout, "positions_speak", False))


def evidence(model: Model, images: np.ndarray) -> Evidence:
    """The opinion of every position; see `egc.EGC.evidence`."""
    model.needs("classifies")
    if not has_evidence(model):
        raise ModelError(
            "Evidence needs a readout whose positions have opinions, such as `levels` or `dense`; "
            f"{type(model.net.readout).__name__} has none."
        )

    def opinions(x: Tensor) -> Tensor:
        t = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return model.net.readout.local_logits(model.net.backbone(x, t)).softmax(dim=1)

    maps = in_batches(model, images, opinions)
    return Evidence(images, maps, predict_proba(model, images), model.classes)


@dataclass(frozen=True)
class Watched:
    """One image's way, from noise to the end."""

    frames: np.ndarray
    """x_t as pictures; uint8 (F, H, W, C)"""
    times: list[int]
    """the noise level of each; the last is clean"""
    probabilities: np.ndarray | None
    """p(y | x_t) on the way; (F, classes)"""
    classes: list[str]

    def strip(self) -> Image.Image:
        """A few of the frames side by side."""
        picked = np.linspace(0, len(self.frames) - 1, min(STRIP, len(self.frames))).round()
        return image_grid(self.frames[picked.astype(int)], columns=len(picked))

    def picture(self) -> Figure:
        """The strip, and under it p(y | x_t) of the classes that lead at some time."""
        if self.probabilities is None:
            figure = canvas(9, 1.2)
            show_images(figure.subplots(), self.strip())
            return figure
        figure = canvas(9, 3.6)
        above, below = figure.subplots(2, 1, height_ratios=[1, 2.2])
        show_images(above, self.strip())
        leading = self.probabilities.max(axis=0).argsort()[::-1][:SHOWN_CLASSES]
        for colour, each in zip(COLOURS, leading, strict=False):
            name = literal(self.classes[each])
            below.plot(self.times, self.probabilities[:, each], color=colour, label=name)
        below.invert_xaxis()
        below.set_xlabel("noise level t")
        below.set_ylabel("p(y | x_t)")
        below.legend(frameon=False, fontsize=8)
        below.grid(alpha=0.25)
        return figure

    def save(self, path: str | Path, seconds: float = 4.0) -> Path:
        """An animated .gif or .webp, whose last frame stays for a while."""
        path = Path(path)
        if path.suffix.lower() not in (".gif", ".webp"):
            raise ConfigError(f"An animation is saved as .gif or .webp; got {str(path)!r}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures = [image_grid(frame[None], cell=192) for frame in self.frames]
        each = max(20, round(1000 * seconds / len(pictures)))
        durations = [each] * (len(pictures) - 1) + [1500]
        pictures[0].save(
            path, save_all=True, append_images=pictures[1:], duration=durations, loop=0
        )
        return path


def watch(
    model: Model,
    label: str | int | None = None,
    *,
    sampling: SampleConfig,
    seed: int = 0,
    progress: bool = True,
) -> Watched:
    """Draw one image and keep every step; see `egc.EGC.watch`."""
    model.needs("denoises")
    indices, seeds = labels_for(model, label, 1), seeds_for(seed, 1)
    model.codec.ready()
    # A step from t leads to the level of the next one, the last to a clean image.
    begin = first_step(model, sampling)
    levels = [*model.diffusion.timesteps(sampling)[begin + 1 :], 0]
    frames, opinions = [], []
    with progress_line("Watching", sampling.steps, show=progress) as line:
        for level, step in zip(levels, sample_steps(model, indices, seeds, sampling), strict=True):
            frames.append(model.codec.decode(step.x)[0])
            if model.classifies:
                with torch.no_grad():
                    logits = model.net.logits(step.x, level)
                opinions.append(logits.softmax(dim=1)[0].cpu().numpy())
            line.advance()
    probabilities = np.stack(opinions) if opinions else None
    return Watched(np.stack(frames), levels, probabilities, model.classes)
