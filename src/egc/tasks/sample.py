"""Sampling: from noise to images, with or without a label.

Image i of a call has the seed `seed + i`, and depends on nothing else: not on how many images are
drawn with it nor on how they fall into batches. A call with `seed=samples.seeds[3]` and the label
of image 3 draws image 3 again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from egc.config import SampleConfig
from egc.diffusion import EpsFunction, ReverseStep
from egc.distributed import gather, is_main, share
from egc.errors import ConfigError
from egc.model import Model
from egc.report.grid import as_picture, image_grid
from egc.report.progress import Line, progress_line

LEAST_SIGNAL = 1e-3
"""abar_t below which x_t counts as pure noise"""
VALUES_AT_ONCE = 100 * 64 * 32 * 32
"""of the widest map; the default batch is a hundred images, or fewer if they are large"""


@dataclass(frozen=True)
class Samples:
    """Generated images, and what each was made from."""

    images: np.ndarray
    """uint8 (N, H, W, C)"""
    labels: np.ndarray
    """class indices, -1 where no label was asked for; (N,)"""
    seeds: np.ndarray
    """(N,)"""
    classes: list[str]
    sampling: SampleConfig | None = None
    """how they were drawn"""

    def __len__(self) -> int:
        return len(self.images)

    def label_names(self) -> list[str | None]:
        """The class that was asked for in each image; None: no label."""
        return [self.classes[label] if label >= 0 else None for label in self.labels]

    def settings(self) -> dict[str, Any]:
        """How they were made, as JSON can hold it; `seed` is that of the first."""
        how = {} if self.sampling is None else vars(self.sampling)
        return {**how, "seed": int(self.seeds[0])}

    def about(self) -> dict[str, Any]:
        """What each image was made from, and how."""
        labels, seeds = self.label_names(), self.seeds.tolist()
        return {"labels": labels, "seeds": seeds, **self.settings()}

    def save(self, path: str | Path) -> Path:
        """Write `x.png` (one picture of all), `x.npz` (arrays), or a directory of images.

        Labels, seeds and settings are kept beside the images: in the text of a PNG file under
        the key `egc`, as arrays, or in `samples.json`.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".npz":
            np.savez_compressed(
                path,
                images=self.images,
                labels=self.labels,
                seeds=self.seeds,
                settings=json.dumps(self.settings()),
            )
        elif path.suffix:
            try:
                image_grid(self.images).save(path, **_embedded(path, self.about()))
            except ValueError:
                raise ConfigError(
                    f"Samples are saved as .png, .npz or a directory; got {str(path)!r}."
                ) from None
        else:
            self._save_each(path)
        return path

    def _save_each(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        index = []
        for pixels, label, seed in zip(
            self.images, self.label_names(), self.seeds.tolist(), strict=True
        ):
            path = folder / f"seed{seed:06d}.png"
            about = {"labels": [label], "seeds": [seed], **self.settings(), "seed": seed}
            as_picture(pixels).save(path, **_embedded(path, about))
            index.append({"file": path.name, "seed": seed, "label": label})
        about = {"format": 1, **self.settings(), "images": index}
        (folder / "samples.json").write_text(json.dumps(about, indent=2) + "\n")


def _embedded(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Arguments that write `about` into a PNG file."""
    if path.suffix.lower() != ".png":
        return {}
    text = PngInfo()
    text.add_itxt("egc", json.dumps(about))
    return {"pnginfo": text}


def sample(
    model: Model,
    labels: str | int | Sequence[str | int] | None = None,
    count: int | None = None,
    *,
    sampling: SampleConfig,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
    shared: bool = False,
) -> Samples:
    """Draw images, here and now; see `egc.EGC.sample`.

    `shared` is for drivers of several processes: each draws its share, and all get all images.
    """
    model.needs("draws")
    indices = labels_for(model, labels, count)
    if batch_size is None:
        batch_size = _fitting_batch(model)
    batch_size = check_integer(batch_size, "The batch size", 1)
    model.codec.ready()
    seeds = seeds_for(seed, len(indices))
    rows = list(range(len(seeds)))
    mine = np.array(share(rows) if shared else rows, dtype=int)
    batches = [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
    images: list[np.ndarray] = []
    show = progress and (is_main() or not shared)
    with progress_line("Sampling", len(batches) * sampling.steps, show=show) as line:
        for rows_at_once in batches:
            way = sample_steps(model, indices[rows_at_once], seeds[rows_at_once], sampling)
            images += list(model.codec.decode(end_of(way, line)))
    found = np.stack(gather(images) if shared else images)
    if not model.net.denoises:
        sampling = replace(sampling, sampler="langevin")
    return Samples(found, indices, seeds, model.classes, sampling)


def sample_steps(
    model: Model, labels: np.ndarray, seeds: np.ndarray, sampling: SampleConfig
) -> Iterator[ReverseStep]:
    """The reverse process of one batch, step by step; a label of -1 is unguided.

    A network that draws without denoising has steps of its own.
    """
    if not model.net.denoises:
        targets = torch.as_tensor(labels, device=model.device)
        return model.net.chains(
            model.codec.shape, seeds.tolist(), targets, sampling.steps, sampling.guidance
        )
    return reverse(model, labels, seeds, sampling)


def reverse(
    model: Model,
    labels: np.ndarray,
    seeds: Sequence[int] | np.ndarray,
    sampling: SampleConfig,
    *,
    start: Tensor | None = None,
    begin: int | None = None,
) -> Iterator[ReverseStep]:
    """`Diffusion.reverse` of a model, towards labels; from `start` at step `begin`, if given."""
    return model.diffusion.reverse(
        eps_for(model, labels, sampling),
        [int(seed) for seed in seeds],
        model.codec.shape,
        sampling,
        clip=model.codec.clip,
        device=model.device,
        start=start,
        begin=first_step(model, sampling) if begin is None else begin,
    )


def first_step(model: Model, sampling: SampleConfig) -> int:
    """The step to start with: 0, or the first with a trace of the image in its noise.

    At the end of a cosine schedule the predicted x_0 is the difference of two nearly equal images
    times ten thousand. Where x_0 is bounded it is clipped; latents are not, and would explode.
    Leaving such levels out costs nothing: x_t is as good as pure noise there.
    """
    if model.codec.clip is not None:
        return 0
    signal = model.diffusion.alphas_cumprod[model.diffusion.timesteps(sampling)]
    return int((signal >= LEAST_SIGNAL).int().argmax())


def begin_at(model: Model, level: float, sampling: SampleConfig) -> int:
    """The first of the steps whose noise level is at most this share of T."""
    times = model.diffusion.timesteps(sampling)
    most = level * model.diffusion.steps
    begin = next((i for i, t in enumerate(times) if t < most), len(times))
    return max(begin, first_step(model, sampling))


def end_of(way: Iterable[ReverseStep], line: Line | None = None) -> Tensor:
    """Where a reverse process ends, once all its steps are taken."""
    x = None
    for step in way:
        x = step.x
        if line is not None:
            line.advance()
    assert x is not None, "a process has at least one step"
    return x


def eps_for(model: Model, labels: np.ndarray, sampling: SampleConfig) -> EpsFunction:
    """The predicted noise on the way to these labels, in whichever ways the network knows."""
    model.needs("denoises")
    if not (labels >= 0).any():
        return model.net.eps
    targets = torch.as_tensor(labels, device=model.device)
    guidance = sampling.guidance
    if not model.net.takes_label:
        return lambda x, t: model.net.eps(x, t, targets, guidance)
    cond = torch.where(targets >= 0, targets, model.net.no_label)
    guided = targets if guidance else None
    return lambda x, t: model.net.eps(x, t, guided, guidance, cond, sampling.cfg)


def denoising_path(
    model: Model, labels: np.ndarray, seeds: np.ndarray, sampling: SampleConfig, frames: int
) -> tuple[np.ndarray, list[int]]:
    """Images along the way: uint8 (frames, N, H, W, C) and the t each was reached from."""
    path = list(sample_steps(model, labels, seeds, sampling))
    picked = [path[i] for i in np.linspace(0, len(path) - 1, frames).round().astype(int)]
    images = np.stack([model.codec.decode(s.x) for s in picked])
    return images, [s.t for s in picked]


def _fitting_batch(model: Model) -> int:
    """As many images as a GPU of ordinary size takes at once, by the size of the widest maps."""
    _, height, width = model.codec.shape
    values = model.config.network.channels * height * width
    return int(min(100, max(1, VALUES_AT_ONCE // values)))


def labels_for(
    model: Model, labels: str | int | Sequence[str | int] | None, count: int | None
) -> np.ndarray:
    """Class indices of the images to draw; given labels are taken in turn until `count`."""
    if count is not None:
        count = check_integer(count, "The number of images", 1)
    if labels is None:
        return np.full(count or 1, -1)
    if not isinstance(labels, str | int | np.integer | Sequence | np.ndarray):
        raise ConfigError(f"A label is a class's name or index, or a list; got {labels!r}.")
    listed = [labels] if isinstance(labels, str | int | np.integer) else list(labels)
    if not listed:
        raise ConfigError("The list of labels is empty; leave it out to sample without labels.")
    indices = np.array([model.label_index(label) for label in listed])
    return np.resize(indices, count or len(indices))


def seeds_for(seed: int, count: int) -> np.ndarray:
    """The seeds of so many images, the first of which has `seed`."""
    seed = check_integer(seed, "A seed", 0)
    return np.arange(seed, seed + count)


def check_integer(value: Any, what: str, low: int) -> int:
    """A whole number from `low` on, refused in one sentence if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{what} must be a whole number; got {value!r}.")
    if value < low:
        raise ConfigError(f"{what} must be at least {low}; got {value}.")
    return int(value)
