"""Watch it think: an image on its way out of the noise, and what the network takes it for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from egc.errors import ConfigError
from egc.report.grid import image_grid
from egc.model import Model
from egc.report.progress import progress_line
from egc.tasks.sample import first_step, labels_for, sample_steps, seeds_for

STRIP = 10
"""images in the strip"""


@dataclass(frozen=True)
class Watched:
    """One image's way, from noise to the end."""

    frames: np.ndarray
    """x_t as pictures; uint8 (F, H, W, C)"""
    times: list[int]
    """the noise level of each; the last is clean"""
    probabilities: np.ndarray | None
    """p(y | x_t) on the way; (F, classes)"""

    def strip(self) -> Image.Image:
        """A few of the frames side by side."""
        picked = np.linspace(0, len(self.frames) - 1, min(STRIP, len(self.frames))).round()
        return image_grid(self.frames[picked.astype(int)], columns=len(picked))

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
    steps: int | None = None,
    sampler: str | None = None,
    guidance: float | None = None,
    cfg: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Watched:
    """Draw one image and keep every step; see `egc.EGC.watch`."""
    indices, seeds = labels_for(model, label, 1), seeds_for(seed, 1)
    model.codec.ready()
    defaults = model.config.sample
    steps = defaults.steps if steps is None else steps
    sampler = sampler or defaults.sampler
    # A step from t leads to the level of the next one, the last to a clean image.
    begin = first_step(model, sampler, steps)
    levels = [*model.diffusion.timesteps(sampler, steps)[begin + 1 :], 0]
    frames, opinions = [], []
    with progress_line("Watching", steps, show=progress) as line:
        way = sample_steps(
            model, indices, seeds, steps=steps, sampler=sampler, guidance=guidance, cfg=cfg
        )
        for level, step in zip(levels, way, strict=True):
            frames.append(model.codec.decode(step.x)[0])
            if model.classes:
                with torch.no_grad():
                    logits = model.net(step.x, level).logits
                opinions.append(logits.softmax(dim=1)[0].cpu().numpy())
            line.advance()
    return Watched(np.stack(frames), levels, np.stack(opinions) if opinions else None)
