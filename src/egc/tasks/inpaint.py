"""Inpainting by RePaint (Lugmayr et al. 2022): fill what a mask leaves open.

At every step the known part is the image, noised to the step's level, and the unknown part is the
network's; now and then noise is put back in and the steps are taken again (a jump), so that the
two have time to agree. On latents the mask is that of the latent positions which any unknown pixel
touches. The known pixels of the result are those that were given. RePaint is a sampler of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from egc.config import SampleConfig
from egc.diffusion import initial_noise
from egc.model import Model
from egc.report.progress import progress_line
from egc.tasks.masks import check_mask
from egc.tasks.sample import Samples, check_integer, eps_for, labels_for, seeds_for


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
    jump_length = check_integer(jump_length, "The jump length", 1)
    jumps = check_integer(jumps, "The number of jumps", 1)
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
    how = replace(sampling, sampler="repaint")
    return Samples(images, indices, seeds, model.classes, how)


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
