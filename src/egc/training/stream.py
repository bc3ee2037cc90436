"""Training batches as a function of (seed, rank, step), so that a resumed run is the same run.

Nothing here has state. The order of the images is an endless row of shuffled passes over the
data; step s takes the s-th slice of it. Noise, noise levels and augmentation of a step come from
one generator seeded by (seed, rank, step).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from egc.codec import PixelCodec
from egc.config import Config
from egc.data.augment import augment
from egc.data.imageset import ImageSet
from egc.objectives.egc import Batch


@lru_cache(maxsize=2)
def _pass_order(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(size)


def positions_at(step: int, batch_size: int, size: int, seed: int) -> np.ndarray:
    """Which of `size` images step `step` sees; each pass over the data has its own order."""
    places = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, offsets = np.divmod(places, size)
    return np.concatenate(
        [_pass_order(size, seed, int(e))[offsets[epochs == e]] for e in np.unique(epochs)]
    )


def step_generator(seed: int, rank: int, step: int) -> torch.Generator:
    """The source of all random numbers of one step on one process."""
    state = np.random.SeedSequence((seed, rank, step)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


class BatchStream:
    """Batches of one process: its share of the images of each step."""

    def __init__(
        self,
        data: ImageSet,
        codec: PixelCodec,
        config: Config,
        device: torch.device,
        rank: int = 0,
        processes: int = 1,
    ):
        self.data = data
        self.codec = codec
        self.config = config
        self.device = device
        self.rank = rank
        self.processes = processes

    def __call__(self, step: int) -> Batch:
        train, data = self.config.train, self.config.data
        positions = positions_at(step, train.batch_size, len(self.data), train.seed)
        positions = positions[self.rank :: self.processes]
        generator = step_generator(train.seed, self.rank, step)

        images = torch.as_tensor(self.data.images(positions))
        x0 = self.codec.encode(augment(images, data.augment, generator)).to(self.device)
        clean = None
        if self.config.objective.clean_stream:
            clean = self.codec.encode(augment(images, data.augment_clean, generator))
            clean = clean.to(self.device)
        labels = torch.as_tensor(self.data.labels[positions]).to(self.device)
        t = torch.randint(self.config.diffusion.steps, (len(x0),), generator=generator)
        eps = torch.randn(x0.shape, generator=generator)
        return Batch(x0, labels, t.to(self.device), eps.to(self.device), clean)
