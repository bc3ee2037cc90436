"""`egc codec train`: an autoencoder for the user's own images, so that latents need no hub.

    loss = mean |e| + mean e^2 + kl * KL(q(z|x) || N(0, I)) / pixels
    e = x - decode(z),   z ~ q(z|x)

All terms are per pixel value; the square minds large errors, such as a wrong colour. The
perceptual and adversarial terms of latent diffusion, which make strongly compressed images sharp,
are left out: the well-kept libraries that have them need torchvision. Mild compression (factor 2
or 4) does without.

The result is a directory of diffusers' AutoencoderKL, with `recipe.toml`, `metrics.jsonl`,
`reconstructions.png` and `checkpoints/` beside it. The same command again resumes.
"""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from diffusers import AutoencoderKL
from PIL import Image
from torch import Tensor, nn

from egc.codec import at_once, images_of, pixels_of
from egc.config import AugmentConfig
from egc.config.parse import plain
from egc.data.augment import augment
from egc.data.files import check_place
from egc.data.imageset import ImageSet, Splits
from egc.distributed import is_main, process_count, runs_on_cpu
from egc.errors import ConfigError
from egc.report.grid import image_grid
from egc.report.progress import progress_line
from egc.training.allocator import keep_freed_memory
from egc.training.batches import step_generator
from egc.training.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from egc.training.ema import EMA
from egc.training.recipe import Recipe
from egc.training.state import pack_state, unpack_state
from egc.training.stop import StoppedError, stop_on_signals

LOG_VARIANCE = -6.0
"""of the posterior, at the start"""
MAX_SHOWN = 12
"""test images in the picture"""
MAX_MEASURED = 1000
"""test images that the error is measured on"""


def build_autoencoder(recipe: Recipe, image_channels: int) -> AutoencoderKL:
    """One with fresh weights."""
    levels = recipe.factor.bit_length()
    widths = [recipe.width * min(2**level, 8) for level in range(levels)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        net = AutoencoderKL(
            in_channels=image_channels,
            out_channels=image_channels,
            latent_channels=recipe.channels,
            down_block_types=("DownEncoderBlock2D",) * levels,
            up_block_types=("UpDecoderBlock2D",) * levels,
            block_out_channels=widths,
            layers_per_block=recipe.depth,
            # Of four channels or more: a norm of single ones would take away their means,
            # and with them the colours.
            norm_num_groups=math.gcd(32, max(1, recipe.width // 4)),
        )
    # Start with a narrow posterior, or the first thousand steps go into silencing its noise.
    with torch.no_grad():
        net.quant_conv.weight[recipe.channels :] *= 0.1
        net.quant_conv.bias[recipe.channels :] = LOG_VARIANCE
    return net


class Reconstruction(nn.Module):
    """The loss of a batch, as a module that DDP can wrap."""

    def __init__(self, autoencoder: AutoencoderKL, kl: float):
        super().__init__()
        self.autoencoder = autoencoder
        self.kl = kl

    def forward(self, pixels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        posterior = self.autoencoder.encode(pixels).latent_dist
        decoded = self.autoencoder.decode(posterior.mean + posterior.std * noise).sample
        error = F.l1_loss(decoded, pixels)
        divergence = posterior.kl().sum() / pixels.numel()
        loss = error + F.mse_loss(decoded, pixels) + self.kl * divergence
        return loss, error.detach(), divergence.detach()


def train_autoencoder(
    recipe: Recipe, data: Splits, out: Path, *, progress: bool = True
) -> dict[str, Any]:
    """Train on `data.train`, write the directory `out`, and measure on `data.test`."""
    if data.train.image_size % recipe.factor:
        raise ConfigError(
            f"Images of {data.train.image_size}x{data.train.image_size} cannot be divided by a "
            f"factor of {recipe.factor}; choose another factor or data.image_size."
        )
    if recipe.batch_size % process_count():
        raise ConfigError(
            f"The batch size, {recipe.batch_size}, must divide evenly into {process_count()} "
            "processes."
        )
    made_by = out / "recipe.toml"
    settings = {"source": data.train.name, "image_size": data.train.image_size, **plain(recipe)}
    if is_main():
        before = tomllib.loads(made_by.read_text()) if made_by.exists() else None
        check_place(out, before, settings, "an autoencoder of EGC")
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=runs_on_cpu())
    net = build_autoencoder(recipe, data.train.channels).to(accelerator.device)
    average = EMA(net, 0.999)
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.lr, weight_decay=0.0)
    loss_of, optimizer = accelerator.prepare(Reconstruction(net, recipe.kl), optimizer)
    done = 0
    if found := newest_checkpoint(out / "checkpoints"):
        done = found.step
        unpack_state(found.tensors, net, average.net, optimizer)
    if is_main():
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
        made_by.write_text(tomli_w.dumps(settings))
    if accelerator.device.type == "cpu":
        torch.set_flush_denormal(True)
        keep_freed_memory()

    show = progress and is_main()
    line_of = progress_line("Training the autoencoder", recipe.train_steps, done=done, show=show)
    with line_of as line, stop_on_signals() as asked:
        for step in range(done, recipe.train_steps):
            loss, error, divergence = loss_of(*_batch(recipe, data, step, accelerator))
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = _learning_rate(recipe, step)
            optimizer.step()
            optimizer.zero_grad()
            average.update(net, step)
            line.advance()
            last = step + 1 == recipe.train_steps
            if is_main() and ((step + 1) % 50 == 0 or last):
                record = {"step": step + 1, "error": float(error), "kl": float(divergence)}
                with (out / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps(record) + "\n")
                line.advance(0, note=f"error {float(error):.4f}")
            stop = asked.number
            if accelerator.num_processes > 1:
                mine = torch.tensor([stop], device=accelerator.device)
                stop = int(accelerator.gather(mine).max())
            due = stop or last or (step + 1) % recipe.checkpoint_every == 0
            if due and is_main():
                tensors = pack_state(net, average.net, optimizer)
                save_checkpoint(out / "checkpoints", Checkpoint(step + 1, tensors), keep=1)
            if stop:
                raise StoppedError(step + 1, stop)
    unseen = next((part for part in (data.test, data.validation) if len(part)), data.train)
    figures, picture = measure(average.net, unseen)
    if is_main():
        average.net.save_pretrained(out)
        picture.save(out / "reconstructions.png")
    accelerator.wait_for_everyone()
    return figures


def _batch(
    recipe: Recipe, data: Splits, step: int, accelerator: Accelerator
) -> tuple[Tensor, Tensor]:
    rank, processes = accelerator.process_index, accelerator.num_processes
    generator = step_generator(recipe.seed, rank, step)
    images, _ = data.train.take(step, recipe.batch_size, recipe.seed, rank, processes)
    pictures = augment(torch.as_tensor(images), AugmentConfig(flip=recipe.flip), generator)
    pixels = pixels_of(pictures).to(accelerator.device)
    side = pixels.shape[-1] // recipe.factor
    noise = torch.randn((len(pixels), recipe.channels, side, side), generator=generator)
    return pixels, noise.to(accelerator.device)


def _learning_rate(recipe: Recipe, step: int) -> float:
    """A short rise, then half a cosine to zero."""
    rise = min(1.0, (step + 1) / 100)
    return recipe.lr * rise * 0.5 * (1 + float(np.cos(np.pi * step / recipe.train_steps)))


@torch.no_grad()
def measure(net: AutoencoderKL, test: ImageSet) -> tuple[dict[str, Any], Image.Image]:
    """Mean absolute error (of 0..255) and PSNR in dB on test images, some above what came back.

    They go through the mode of the posterior.
    """
    images = test.images(np.arange(min(MAX_MEASURED, len(test))))
    parts = pixels_of(images).split(at_once(test.image_size))
    codes = (net.encode(pixels.to(net.device)).latent_dist.mode() for pixels in parts)
    back = np.concatenate([images_of(net.decode(code).sample) for code in codes])
    difference = images.astype(np.float64) - back
    squared = (difference**2).mean(axis=(1, 2, 3))
    figures = {
        "images": len(images),
        "mean_absolute_error": float(np.abs(difference).mean()),
        "psnr": float((10 * np.log10(255**2 / np.maximum(squared, 1e-9))).mean()),
    }
    shown = images[:MAX_SHOWN], back[:MAX_SHOWN]
    return figures, image_grid(np.concatenate(shown), columns=len(shown[0]))
