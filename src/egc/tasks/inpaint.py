"""Inpainting by RePaint (Lugmayr et al. 2022): fill what a mask leaves open.

At every step the known part is the image, noised to the step's level, and the unknown part is the
network's; now and then noise is put back in and the steps are taken again (a jump), so that the
two have time to agree. On latents the mask is that of the latent positions which any unknown pixel
touches. The known pixels of the result are those that were given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from egc.config import SampleConfig
from egc.data.images import open_image
from egc.diffusion import initial_noise
from egc.errors import ConfigError, DataError, suggest
from egc.model import Model
from egc.report.progress import progress_line
from egc.tasks.sample import Samples, eps_for, labels_for, seeds_for, whole_number

SHAPES = ("center", "left", "right", "top", "bottom", "random-strokes")


def make_mask(shape: str, side: int, seed: int = 0) -> np.ndarray:
    """A mask by name, bool (side, side); true is to be filled."""
    mask = np.zeros((side, side), dtype=bool)
    half, quarter = side // 2, side // 4
    if shape == "center":
        mask[quarter : side - quarter, quarter : side - quarter] = True
    elif shape in ("left", "right"):
        mask[:, slice(half) if shape == "left" else slice(side - half, None)] = True
    elif shape in ("top", "bottom"):
        mask[slice(half) if shape == "top" else slice(side - half, None)] = True
    elif shape == "random-strokes":
        mask = _strokes(side, seed)
    else:
        raise ConfigError(f"There is no mask {shape!r}. {suggest(shape, SHAPES)}")
    return mask


def _strokes(side: int, seed: int) -> np.ndarray:
    """A few straight strokes of a brush, over about a third of the image."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side]
    mask = np.zeros((side, side), dtype=bool)
    while mask.mean() < 0.3:
        (y0, x0), (y1, x1) = rng.uniform(0, side, (2, 2))
        along = np.array([y1 - y0, x1 - x0])
        share = ((rows - y0) * along[0] + (columns - x0) * along[1]) / max(along @ along, 1e-9)
        share = share.clip(0, 1)
        distance = np.hypot(rows - y0 - share * along[0], columns - x0 - share * along[1])
        mask |= distance <= max(0.5, side / 16)
    return mask


def inpaint(
    model: Model,
    image: np.ndarray,
    mask: np.ndarray,
    label: str | int | None = None,
    count: int = 1,
    *,
    sampling: SampleConfig,
    jump_length: int = 10,
    jumps: int = 5,
    seed: int = 0,
    progress: bool = True,
) -> Samples:
    """Several ways to fill the mask of one image; see `egc.EGC.inpaint`."""
    side = model.codec.image_size
    mask = check_mask(mask, side)
    jump_length = whole_number(jump_length, "The jump length", 1)
    jumps = whole_number(jumps, "The number of jumps", 1)
    indices, seeds = labels_for(model, label, count), seeds_for(seed, count)
    eps = eps_for(model, indices, sampling)
    x0 = model.codec.encode(image[None]).to(model.device)
    known = _known(mask, model).to(x0)
    from diffusers import RePaintScheduler

    scheduler = RePaintScheduler(
        num_train_timesteps=model.diffusion.steps,
        trained_betas=model.diffusion.betas.numpy(),
        eta=1.0,
        clip_sample=False,
    )
    scheduler.set_timesteps(sampling.steps, min(jump_length, sampling.steps), jumps)
    generators = [torch.Generator().manual_seed(int(each)) for each in seeds]
    x = initial_noise(generators, model.codec.shape).to(model.device)
    before = model.diffusion.steps
    times = scheduler.timesteps.tolist()
    with progress_line("Inpainting", len(times), show=progress) as line:
        for t in times:
            if t < before:
                predicted = _clipped(model, x, t, eps(x, t))
                x = scheduler.step(predicted, t, x, x0, known, generators).prev_sample.to(x0)
            else:  # a jump: noise goes back in
                x = scheduler.undo_step(x, before, generators).to(x0)
            before = t
            line.advance()
    filled = model.codec.decode(x)
    images = np.where(mask[..., None], filled, image)
    return Samples(images, indices, seeds, model.classes, sampling)


def read_mask(mask: Any, side: int, seed: int = 0) -> np.ndarray:
    """A shape's name, an array or a picture; never resized, since its size is its meaning."""
    if isinstance(mask, str) and mask in SHAPES:
        return make_mask(mask, side, seed)
    if isinstance(mask, np.ndarray):
        return check_mask(mask, side)
    if not isinstance(mask, str | Path | Image.Image):
        raise DataError(
            f"A mask is a shape ({', '.join(SHAPES)}), a path, a picture or an array; "
            f"got {type(mask).__name__}."
        )
    picture = mask if isinstance(mask, Image.Image) else open_image(Path(mask))
    return check_mask(np.asarray(picture.convert("L")), side)


def check_mask(mask: np.ndarray, side: int) -> np.ndarray:
    """bool (side, side), refused where there is nothing to fill or nothing to fill from."""
    mask = np.asarray(mask)
    if mask.ndim == 3:
        mask = mask.max(axis=2)
    if mask.shape != (side, side):
        raise DataError(
            f"The mask is {'x'.join(map(str, mask.shape))}, but the model's images are "
            f"{side}x{side}; both must have the same size."
        )
    mask = mask > (127 if mask.dtype == np.uint8 and mask.max() > 1 else 0)
    if not mask.any():
        raise DataError("The mask is all black: there is nothing to fill; white is to be filled.")
    if mask.all():
        raise DataError(
            "The mask is all white: nothing of the image is kept; use `sample` to draw freely."
        )
    return mask


def _known(mask: np.ndarray, model: Model) -> Tensor:
    """1 where model space is known, of shape (1, 1, h, w)."""
    open_ = torch.as_tensor(mask, dtype=torch.float32)[None, None]
    factor = model.codec.image_size // model.codec.shape[1]
    if factor > 1:
        open_ = F.max_pool2d(open_, factor)
    return 1 - open_


def _clipped(model: Model, x: Tensor, t: int, predicted: Tensor) -> Tensor:
    """The noise that belongs to the clipped x_0, where model space is bounded."""
    if model.codec.clip is None:
        return predicted
    x0 = model.diffusion.predict_x0(x, t, predicted).clamp(-model.codec.clip, model.codec.clip)
    return model.diffusion.implied_eps(x, t, x0)
