"""JEM (Grathwohl et al. 2020): a classifier whose logits are trained to be a joint energy too.

    loss = CE(h(x), y) + weight * ( mean f(chain) - mean f(x) )

The second term is the gradient of -log p(x): f is raised on images and lowered on what the model
itself draws. It draws by Langevin dynamics (`egc.rivals.langevin`), a few steps a training step,
from chains that are kept in a buffer and started anew once in a while, from uniform noise.

Images get a little noise, without which f could be raised on single grey levels. The buffer is
part of the checkpoint: a resumed run is the same run. Training may diverge, as published.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from egc.objectives.base import Batch, Objective, Terms
from egc.processes import process_count
from egc.rivals import StillEnergy, langevin, uniform


class Contrast(NamedTuple):
    """Images, chains, and images to classify, in one evaluation of the network."""

    images: Tensor
    chains: Tensor
    named: Tensor | None
    """images to classify, where they are not the first"""
    labels: Tensor
    share: float


class JEMObjective(Objective):
    @property
    def passes(self) -> float:
        evaluated = 2 + self.config.clean_stream
        return 3.0 * evaluated + 2.0 * self.config.sgld.steps

    def plan(self, batch: Batch, share: float = 1.0) -> list[Contrast]:
        assert batch.seeds is not None, "chains need seeds"
        generator = torch.Generator().manual_seed(int(batch.seeds[0]))
        images = batch.x0 + self.config.sgld.image_noise * batch.eps
        chains = self._advanced(batch.x0, generator)
        pictures, labels = batch.to_classify()
        if batch.clean is None:
            return [Contrast(images, chains, None, labels, share)]
        noise = torch.randn(pictures.shape, generator=generator).to(pictures)
        named = pictures + self.config.sgld.image_noise * noise
        return [Contrast(images, chains, named, labels, share)]

    def forward(self, part: Contrast) -> Terms:
        streams = [part.images, part.chains]
        if part.named is not None:
            streams.append(part.named)
        joint = self.net(torch.cat(streams), 0)
        count = len(part.images)
        f, h = joint.log_density.split(count), joint.logits.split(count)
        each = self.cross_entropies(h[0] if part.named is None else h[2], part.labels)
        named = part.share * each.mean()
        gap = part.share * (f[1].mean() - f[0].mean())
        return Terms.of(named + self.config.sgld.weight * gap, class_clean=named, density_gap=gap)

    def _advanced(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """As many chains as there are images, moved on; kept in the buffer, and given."""
        sgld = self.config.sgld
        shape = tuple(like.shape[1:])
        if "chains" not in self.memory:
            rows = max(1, sgld.buffer // process_count())
            self.memory["chains"] = uniform((rows, *shape), generator).to(like)
        buffer = self.memory["chains"]
        places = torch.randint(len(buffer), (len(like),), generator=generator)
        anew = torch.rand(len(like), generator=generator) < sgld.restart
        fresh = uniform((len(like), *shape), generator).to(like)
        places, anew = places.to(like.device), anew.to(like.device)
        x = torch.where(anew[:, None, None, None], fresh, buffer[places])
        way = langevin(
            cast(StillEnergy, self.net),
            x,
            [generator],
            steps=sgld.steps,
            step_size=sgld.step_size,
            noise=sgld.noise,
        )
        *_, moved = way
        buffer[places] = moved
        return moved
