"""JEM (Grathwohl et al. 2020): a classifier whose logits are trained to be a joint energy too.

    loss = CE(h(x), y) + weight * ( mean f(chain) - mean f(x) )

The second term is the gradient of -log p(x): f is raised on images and lowered on what the model
itself draws. It draws by Langevin dynamics, a few steps a training step, from chains that are kept
in a buffer and started anew once in a while, from uniform noise.

Images get a little noise, without which f could be raised on single grey levels. The buffer is
part of the checkpoint: a resumed run is the same run. Training may diverge, as published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from egc.baselines.networks import TimelessEnergy, normal_like, uniform
from egc.config import Config, ObjectiveConfig
from egc.config.parse import key
from egc.diffusion import Diffusion, ReverseStep
from egc.distributed import process_count
from egc.objectives.base import Batch, Objective, Terms
from egc.registry import objectives


@dataclass(frozen=True)
class JEMOptions:
    """The Langevin dynamics of JEM, and what its density term weighs."""

    steps: int = key(20, "of a chain, in every training step", above=0)
    step_size: float = key(1.0, "of a Langevin step", above=0)
    noise: float = key(0.01, "of each step", low=0)
    buffer: int = key(10_000, "chains that are kept", above=0)
    restart: float = key(0.05, "how often a chain starts anew", low=0, high=1)
    image_noise: float = key(0.03, "added to training images", low=0)
    weight: float = key(1.0, "of log p(x), beside that of log p(y|x)", low=0)


class JEM(TimelessEnergy):
    """A joint energy of clean images, drawn from by Langevin dynamics."""

    draws = True
    about = "A joint energy-based model (JEM), to compare with."
    options = JEMOptions()

    @classmethod
    def from_config(
        cls, config: Config, shape: tuple[int, int, int], classes: int, sigmas: Tensor
    ) -> Self:
        net = super().from_config(config, shape, classes, sigmas)
        net.options = JEMObjective.options(config.objective)
        return net

    def chains(
        self,
        shape: Sequence[int],
        seeds: Sequence[int],
        labels: Tensor,
        steps: int,
        guidance: float,
    ) -> Iterator[ReverseStep]:
        """A chain for each image from uniform noise on, towards its label if it has one."""
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        start = torch.stack([uniform(shape, generator) for generator in generators])
        moved = self.langevin(start.to(labels.device), generators, steps, labels, guidance)
        for index, x in enumerate(moved):
            yield ReverseStep(index, steps, 0, x, x)

    def langevin(
        self,
        x: Tensor,
        generators: Sequence[torch.Generator],
        steps: int,
        labels: Tensor | None = None,
        guidance: float = 1.0,
    ) -> Iterator[Tensor]:
        """Stochastic gradient Langevin dynamics, as JEM runs it; yields x after every step.

            x <- x + step_size * grad log p(x, y) + noise * n,     n ~ N(0, I)

        Step and noise do not match as theory wants (the noise is far too small): so it is
        published. Noise comes from one generator an image, or one for all.
        """
        for _ in range(steps):
            gradient = self.gradient(x, labels, guidance)
            noise = self.options.noise * normal_like(x, generators)
            x = x + self.options.step_size * gradient + noise
            yield x


class Contrast(NamedTuple):
    """Images, chains, and images to classify, in one evaluation of the network."""

    images: Tensor
    chains: Tensor
    classified: Tensor | None
    """images to classify, where they are not the first"""
    labels: Tensor
    share: float


@objectives.register("jem")
class JEMObjective(Objective):
    network = JEM
    needs_labels = True
    Options = JEMOptions

    def __init__(self, net: JEM, diffusion: Diffusion, config: ObjectiveConfig):
        super().__init__(net, diffusion, config)
        self.sgld: JEMOptions = self.options(config)

    def cost(self, forward: float, classify: float) -> float:
        evaluated = 2 + self.clean_share
        return (3 * evaluated + 2 * self.sgld.steps) * forward

    def plan(self, batch: Batch, share: float = 1.0) -> list[Contrast]:
        assert batch.seeds is not None, "chains need seeds"
        generator = torch.Generator().manual_seed(int(batch.seeds[0]))
        images = batch.x0 + self.sgld.image_noise * batch.eps
        chains = self._advanced(batch.x0, generator)
        pictures, labels = batch.to_classify()
        if batch.clean is None:
            return [Contrast(images, chains, None, labels, share)]
        noise = torch.randn(pictures.shape, generator=generator).to(pictures)
        classified = pictures + self.sgld.image_noise * noise
        return [Contrast(images, chains, classified, labels, share)]

    def forward(self, part: Contrast) -> Terms:
        streams = [part.images, part.chains]
        if part.classified is not None:
            streams.append(part.classified)
        joint = self.net(torch.cat(streams), 0)
        counts = [len(stream) for stream in streams]
        f, h = joint.log_density.split(counts), joint.logits.split(counts)
        each = self.cross_entropies(h[0] if part.classified is None else h[2], part.labels)
        class_clean = part.share * each.mean()
        gap = part.share * (f[1].mean() - f[0].mean())
        return Terms.of(
            class_clean + self.sgld.weight * gap, class_clean=class_clean, density_gap=gap
        )

    def _advanced(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """As many chains as there are images, moved on; kept in the buffer, and given."""
        sgld = self.sgld
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
        *_, moved = self.net.langevin(x, [generator], sgld.steps)
        buffer[places] = moved
        return moved
