"""Training batches as a function of (seed, rank, step), so that a resumed run is the same run.

Nothing here has state. The order of the images is an endless row of shuffled passes over the
data; step s takes the s-th slice of it. Noise, noise levels, augmentation and withheld labels of a
step come from one generator seeded by (seed, rank, step).

For a GPU, reading, decoding and augmenting run ahead in a thread, so that it does not wait for
them; what the device does (encoding into latents, among others) runs when a batch is asked for. On
a CPU there is nobody to run ahead of.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from egc.codec import Codec
from egc.config import AugmentConfig, Config
from egc.data.augment import augment
from egc.data.imageset import ImageSet
from egc.objectives.base import Batch

CLEAN_SEED = 1_000_003
"""added to the seed for the order of a clean stream that has images of its own"""
AHEAD = 2
"""batches that are prepared in advance"""


def step_generator(seed: int, rank: int, step: int) -> torch.Generator:
    """The source of all random numbers of one step on one process."""
    state = np.random.SeedSequence((seed, rank, step)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def clean_images(config: Config) -> int:
    """Images of the clean stream in a step; 0 if there is none."""
    if not config.objective.clean_stream:
        return 0
    return max(1, round(config.objective.clean_share * config.train.batch_size))


class Prepared(NamedTuple):
    """A batch before the codec: uint8 pictures or stored latents, on the CPU."""

    images: Tensor
    labels: Tensor
    t: Tensor
    eps: Tensor
    clean: Tensor | None
    clean_labels: Tensor | None
    cond: Tensor | None
    seeds: Tensor


class BatchStream:
    """Batches of one process: its share of the images of each step.

    Args:
        data: the images of the noised stream.
        clean_data: those of the clean stream, if they are others.
        no_label: the `cond` of a label-conditioned network where the label is withheld; None for
            other networks.
        ahead: batches to prepare in advance; default: `AHEAD` for a GPU, else none.
    """

    def __init__(
        self,
        data: ImageSet,
        codec: Codec,
        config: Config,
        device: torch.device,
        rank: int = 0,
        processes: int = 1,
        *,
        clean_data: ImageSet | None = None,
        no_label: int | None = None,
        ahead: int | None = None,
    ):
        self.data = data
        self.codec = codec
        self.config = config
        self.device = device
        self.rank = rank
        self.processes = processes
        self.clean_data = clean_data
        self.no_label = no_label
        self.ahead = (0 if device.type == "cpu" else AHEAD) if ahead is None else ahead
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="egc-stream")
        self._coming: dict[int, Future[Prepared]] = {}

    def __call__(self, step: int) -> Batch:
        ready = self._prepared(step)
        x0 = self.codec.encode(self._moved(ready.images)).to(self.device)
        clean = None
        if ready.clean is not None:
            clean = self.codec.encode(self._moved(ready.clean)).to(self.device)
        return Batch(
            x0=x0,
            labels=self._moved(ready.labels),
            t=self._moved(ready.t),
            eps=self._moved(ready.eps),
            clean=clean,
            clean_labels=None if ready.clean_labels is None else self._moved(ready.clean_labels),
            cond=None if ready.cond is None else self._moved(ready.cond),
            seeds=ready.seeds,
        )

    def _prepared(self, step: int) -> Prepared:
        """The batch of a step, most often waiting already."""
        if not self.ahead:
            return self.prepare(step)
        wanted = range(step, min(step + self.ahead + 1, max(self.config.train.steps, step + 1)))
        self._coming = {
            s: self._coming.get(s) or self._thread.submit(self.prepare, s) for s in wanted
        }
        return self._coming.pop(step).result()

    def prepare(self, step: int) -> Prepared:
        """All of a batch that needs no device."""
        train, data = self.config.train, self.config.data
        share = (train.batch_size, train.seed, self.rank, self.processes)
        generator = step_generator(train.seed, self.rank, step)

        pictures, labels = _tensors(self.data.take(step, *share))
        images = augmented(pictures, data.augment, generator)
        clean = clean_labels = None
        if self.config.objective.clean_stream:
            count = clean_images(self.config)
            if self.clean_data is not None or count != train.batch_size:
                others = (count, train.seed + CLEAN_SEED, self.rank, self.processes)
                source = self.data if self.clean_data is None else self.clean_data
                pictures, clean_labels = _tensors(source.take(step, *others))
            clean = augmented(pictures, data.augment_clean, generator)
        t = torch.randint(self.config.diffusion.steps, (len(images),), generator=generator)
        eps = torch.randn((len(images), *self.codec.shape), generator=generator)
        cond = None
        if self.no_label is not None:
            withheld = torch.rand(len(images), generator=generator)
            withheld = (withheld < self.config.objective.label_dropout) | (labels < 0)
            cond = torch.where(withheld, self.no_label, labels)
        seeds = torch.randint(1 << 62, (len(images),), generator=generator)
        return Prepared(images, labels, t, eps, clean, clean_labels, cond, seeds)

    def _moved(self, part: Tensor) -> Tensor:
        if self.device.type == "cuda":
            return part.pin_memory().to(self.device, non_blocking=True)
        return part.to(self.device)


def _tensors(taken: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
    images, labels = taken
    return torch.as_tensor(images), torch.as_tensor(labels)


def augmented(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Pictures are changed at random; stored latents were so when they were encoded."""
    return images if images.is_floating_point() else augment(images, config, generator)
