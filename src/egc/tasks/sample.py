"""Sampling: from noise to images, with or without a label.

Image i of a call has the seed `seed + i`, and depends on nothing else: not on how many images are
drawn with it nor on how they fall into batches. A call with `seed=samples.seeds[3]` and the label
of image 3 draws image 3 again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from egc.diffusion import EpsFunction, ReverseStep
from egc.errors import ConfigError, ModelError
from egc.grid import image_grid
from egc.model import Model
from egc.processes import is_main, share, whole
from egc.progress import Line, progress_line
from egc.rivals import StillEnergy, langevin, uniform

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

    def __len__(self) -> int:
        return len(self.images)

    def save(self, path: str | Path) -> Path:
        """Write `x.png` (one picture of all), `x.npz` (arrays), or a directory of images."""
        path = Path(path)
        if path.suffix.lower() == ".npz":
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(path, images=self.images, labels=self.labels, seeds=self.seeds)
        elif path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                image_grid(self.images).save(path)
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
        for pixels, label, seed in zip(self.images, self.labels, self.seeds, strict=True):
            name = f"seed{seed:06d}.png"
            squeezed = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
            Image.fromarray(squeezed).save(folder / name)
            label_name = self.classes[label] if label >= 0 else None
            index.append({"file": name, "seed": int(seed), "label": label_name})
        (folder / "samples.json").write_text(json.dumps(index, indent=2) + "\n")


def sample(
    model: Model,
    labels: str | int | Sequence[str | int] | None = None,
    count: int | None = None,
    *,
    steps: int | None = None,
    sampler: str | None = None,
    guidance: float | None = None,
    cfg: float | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> Samples:
    """Draw images; see `egc.EGC.sample`. Of several processes, each draws its share."""
    indices = labels_for(model, labels, count)
    if batch_size is None:
        batch_size = _fitting_batch(model)
    if batch_size < 1:
        raise ConfigError(f"The batch size must be at least 1; got {batch_size}.")
    model.codec.ready()
    seeds = seeds_for(seed, len(indices))
    mine = np.array(share(list(range(len(seeds)))), dtype=int)
    batches = [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
    count_steps = len(batches) * (steps or model.config.sample.steps)
    images: list[np.ndarray] = []
    with progress_line("Sampling", count_steps, show=progress and is_main()) as line:
        for rows in batches:
            way = sample_steps(
                model,
                indices[rows],
                seeds[rows],
                steps=steps,
                sampler=sampler,
                guidance=guidance,
                cfg=cfg,
            )
            images += list(model.codec.decode(end_of(way, line)))
    return Samples(np.stack(whole(images)), indices, seeds, model.classes)


def sample_steps(
    model: Model,
    labels: np.ndarray,
    seeds: np.ndarray,
    *,
    steps: int | None = None,
    sampler: str | None = None,
    guidance: float | None = None,
    cfg: float | None = None,
) -> Iterator[ReverseStep]:
    """The reverse process of one batch, step by step; a label of -1 is unguided.

    A JEM has none: its steps are those of a chain that starts from uniform noise.
    """
    defaults = model.config.sample
    steps = defaults.steps if steps is None else steps
    if not model.denoises:
        if sampler is not None or cfg is not None:
            raise ConfigError("A JEM draws by Langevin dynamics: it takes no sampler and no cfg.")
        return chain_steps(model, labels, seeds, steps, guidance)
    sampler = sampler or defaults.sampler
    return model.diffusion.reverse(
        eps_for(model, labels, guidance, cfg),
        seeds.tolist(),
        model.codec.shape,
        sampler=sampler,
        steps=steps,
        clip=model.codec.clip,
        device=model.device,
        begin=first_step(model, sampler, steps),
    )


def chain_steps(
    model: Model, labels: np.ndarray, seeds: np.ndarray, steps: int, guidance: float | None
) -> Iterator[ReverseStep]:
    """A chain of Langevin dynamics for each image, towards its label if it has one (not -1)."""
    if not isinstance(model.net, StillEnergy) or not model.draws:
        raise ModelError(
            "This model is a classifier (objective.kind = classifier): it was not trained to draw."
        )
    if steps < 1:
        raise ConfigError(f"The number of sampling steps must be at least 1; got {steps}.")
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    start = torch.stack([uniform(model.codec.shape, generator) for generator in generators])
    sgld = model.config.objective.sgld
    chain = langevin(
        model.net,
        start.to(model.device),
        generators,
        steps=steps,
        step_size=sgld.step_size,
        noise=sgld.noise,
        labels=torch.as_tensor(labels, device=model.device),
        guidance=model.config.sample.guidance if guidance is None else guidance,
    )
    for index, x in enumerate(chain):
        yield ReverseStep(index, steps, 0, x, x)


def first_step(model: Model, sampler: str, steps: int) -> int:
    """The step to start with: 0, or the first with a trace of the image in its noise.

    At the end of a cosine schedule the predicted x_0 is the difference of two nearly equal images
    times ten thousand. Where x_0 is bounded it is clipped; latents are not, and would explode.
    Leaving such levels out costs nothing: x_t is as good as pure noise there.
    """
    if model.codec.clip is not None:
        return 0
    times = model.diffusion.timesteps(sampler, steps)
    signal = model.diffusion.alphas_cumprod[times]
    return int((signal >= LEAST_SIGNAL).int().argmax())


def end_of(way: Iterable[ReverseStep], line: Line | None = None) -> Tensor:
    """Where a reverse process ends, once all its steps are taken."""
    x = None
    for step in way:
        x = step.x
        if line is not None:
            line.advance()
    assert x is not None, "a process has at least one step"
    return x


def eps_for(
    model: Model, labels: np.ndarray, guidance: float | None = None, cfg: float | None = None
) -> EpsFunction:
    """The predicted noise on the way to these labels, in whichever ways the network knows."""
    defaults = model.config.sample
    if cfg is not None and not model.net.label_conditioned:
        raise ConfigError(
            "Classifier-free guidance (cfg) is for label-conditioned networks, and this is none; "
            "use the classifier's guidance."
        )
    guidance = defaults.guidance if guidance is None else guidance
    cfg = defaults.cfg if cfg is None else cfg
    for name, scale in (("guidance", guidance), ("cfg", cfg)):
        if scale < 0:
            raise ConfigError(f"The {name} scale must be at least 0; got {scale}.")
    if not (labels >= 0).any():
        return model.net.eps
    targets = torch.as_tensor(labels, device=model.device)
    if not model.net.label_conditioned:
        return lambda x, t: model.net.eps(x, t, targets, guidance)
    cond = torch.where(targets >= 0, targets, model.net.no_label)
    guided = targets if guidance else None
    return lambda x, t: model.net.eps(x, t, guided, guidance, cond, cfg)


def denoising_path(
    model: Model, labels: np.ndarray, seeds: np.ndarray, frames: int
) -> tuple[np.ndarray, list[int]]:
    """Images along the way: uint8 (frames, N, H, W, C) and the t each was reached from."""
    path = list(sample_steps(model, labels, seeds))
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
    if count is not None and count < 1:
        raise ConfigError(f"The number of images must be at least 1; got {count}.")
    if labels is None:
        return np.full(count or 1, -1)
    listed = [labels] if isinstance(labels, str | int | np.integer) else list(labels)
    if not listed:
        raise ConfigError("The list of labels is empty; leave it out to sample without labels.")
    indices = np.array([model.label_index(label) for label in listed])
    return np.resize(indices, count or len(indices))


def seeds_for(seed: int, count: int) -> np.ndarray:
    if seed < 0:
        raise ConfigError(f"A seed must be at least 0; got {seed}.")
    return np.arange(seed, seed + count)
