"""`EGC`: the facade a newcomer needs. It has no algorithm of its own.

Values are checked where they enter: images become arrays of the model's size and colours, and
`steps`, `sampler`, `guidance` and `cfg` one `SampleConfig`, once, for all that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from egc.config import Config
from egc.data import ImageSet, read_images
from egc.errors import ConfigError, DataError
from egc.hub import find_model, model_card
from egc.model import Model
from egc.published import import_published
from egc.tasks.compose import compose
from egc.tasks.edit import Edit, edit
from egc.tasks.explain import Evidence, Watched, evidence, watch
from egc.tasks.guidance import Sweep, sweep_guidance
from egc.tasks.inpaint import inpaint
from egc.tasks.interpolate import Interpolation, interpolate
from egc.tasks.landscape import Landscape, landscape
from egc.tasks.masks import read_mask
from egc.tasks.out_of_distribution import is_out_of_distribution
from egc.tasks.predict import log_density, predict_proba
from egc.tasks.sample import Samples, sample


class EGC(Model):
    """One network that classifies, generates, and knows what it has seen.

    `model.net` is the `EnergyModel`, `model.diffusion` its noise schedule, `model.codec` the way
    between pictures and tensors, `model.classes` the names of its labels.

    Whatever draws takes `steps`, `sampler`, `guidance` (of the classifier; 0 ignores the labels)
    and `cfg` (the scale of classifier-free guidance, of label-conditioned networks; 1 is none).
    They default to what the model's recipe says.
    """

    @classmethod
    def load(cls, name: str | Path, device: str | torch.device | None = None) -> Self:
        """Open a model: a shipped name, a model or run directory, or a hub id (`owner/name`).

        It goes to `device`; by default to a GPU if there is one.
        """
        return cls.open(find_model(name)).to(check_device(device))

    def predict(self, images: Any) -> list[str]:
        """The class of each image: a path, PIL image, uint8 array, or a list of them."""
        return [self.classes[index] for index in self.predict_proba(images).argmax(axis=1)]

    def predict_proba(self, images: Any) -> np.ndarray:
        """p(y|x) for each image; (N, classes)."""
        return predict_proba(self, self._read(images))

    def sample(
        self,
        labels: str | int | Sequence[str | int] | None = None,
        count: int | None = None,
        steps: int | None = None,
        sampler: str | None = None,
        guidance: float | None = None,
        seed: int = 0,
        *,
        cfg: float | None = None,
        batch_size: int | None = None,
        progress: bool = True,
    ) -> Samples:
        """Draw images.

        Args:
            labels: a class (name or index) or a list of them, taken in turn; None: no label.
            count: how many images; default: one for each label.
            seed: image i has the seed `seed + i`.
            batch_size: images at once, which does not change them; default: by their size.
        """
        how = self.sampling(steps=steps, sampler=sampler, guidance=guidance, cfg=cfg)
        return sample(
            self, labels, count, sampling=how, seed=seed, batch_size=batch_size, progress=progress
        )

    def sweep_guidance(
        self,
        label: str | int,
        scales: Sequence[float] = (0, 1, 2, 6, 20),
        count: int = 16,
        *,
        seed: int = 0,
        progress: bool = True,
        **how: Any,
    ) -> Sweep:
        """Samples of one class from the same seeds at several guidance scales, measured."""
        sampling = self.sampling(**how)
        return sweep_guidance(
            self, label, scales, count, sampling=sampling, seed=seed, progress=progress
        )

    def inpaint(
        self,
        image: Any,
        mask: Any,
        label: str | int | None = None,
        count: int = 1,
        seed: int = 0,
        *,
        jump_length: int = 10,
        jumps: int = 5,
        progress: bool = True,
        **how: Any,
    ) -> Samples:
        """Fill a part of an image, in `count` ways; what is not filled stays exactly as it was.

        Args:
            image: a path, PIL image or uint8 array.
            mask: the same, white (or nonzero) where to fill; or a shape: `center`, `left`,
                `right`, `top`, `bottom`, `random-strokes`.
            label: the class to fill towards.
            jump_length, jumps: of RePaint.
        """
        if how.get("sampler") is not None:
            raise ConfigError("Inpainting is by RePaint, a sampler of its own: it takes no other.")
        pixels = self._read(image)
        if len(pixels) != 1:
            raise DataError(f"One image is filled at a time; got {len(pixels)}.")
        return inpaint(
            self,
            pixels[0],
            read_mask(mask, self.codec.image_size, seed),
            label,
            count,
            sampling=self.sampling(**how),
            seed=seed,
            jump_length=jump_length,
            jumps=jumps,
            progress=progress,
        )

    def interpolate(
        self,
        seeds: tuple[int, int] | None = None,
        images: Any = None,
        label: str | int | None = None,
        frames: int = 9,
        *,
        progress: bool = True,
        **how: Any,
    ) -> Interpolation:
        """From one image to another through the noise they come from, beside a plain blend.

        Between two seeds of `sample`, or two given images.
        """
        pixels = None if images is None else self._read(images)
        sampling = self.sampling(**how)
        return interpolate(
            self, seeds, pixels, label, frames, sampling=sampling, progress=progress
        )

    def edit(
        self,
        images: Any,
        to: str | int,
        strength: float | str = "auto",
        *,
        seed: int = 0,
        progress: bool = True,
        **how: Any,
    ) -> Edit:
        """Change images towards another class.

        Args:
            strength: how much of the way to noise they go, 0 (not at all) to 1; "auto": the
                smallest of a row of strengths, each image its own, that changes the class.
        """
        sampling = self.sampling(**how)
        return edit(
            self, self._read(images), to, strength, sampling=sampling, seed=seed, progress=progress
        )

    def compose(
        self,
        labels: Sequence[str | int],
        mode: str = "and",
        count: int = 1,
        *,
        corrector_steps: int = 4,
        seed: int = 0,
        progress: bool = True,
        **how: Any,
    ) -> Samples:
        """Draw what is of all classes ("and"), or of the first and none of the others ("not").

        `corrector_steps` are the Langevin steps at each noise level.
        """
        return compose(
            self,
            labels,
            mode,
            count,
            sampling=self.sampling(**how),
            corrector_steps=corrector_steps,
            seed=seed,
            progress=progress,
        )

    def watch(
        self, label: str | int | None = None, *, seed: int = 0, progress: bool = True, **how: Any
    ) -> Watched:
        """Draw one image and keep every step of it, with what the network takes it for."""
        return watch(self, label, sampling=self.sampling(**how), seed=seed, progress=progress)

    def evidence(self, images: Any) -> Evidence:
        """Where in each image each class is seen, beside p(y|x)."""
        return evidence(self, self._read(images))

    def is_out_of_distribution(self, images: Any) -> np.ndarray:
        """Whether each image is stranger than 95 % of the validation images were; (N,)."""
        return is_out_of_distribution(self, self._read(images))[0]

    def landscape(self, images: Any, seed: int = 0) -> Landscape:
        """The density around images along growing noise, and over planes of two noises."""
        return landscape(self, self._read(images), seed)

    def log_density(self, images: Any, t: int = 0) -> np.ndarray:
        """f(x) of each image, its log-density up to scale and a constant; (N,)."""
        return log_density(self, self._read(images), t)

    def energy(self, images: Any, t: int = 0) -> np.ndarray:
        """E(x) = -f(x) of each image: low is familiar, high is strange; (N,)."""
        return -self.log_density(images, t)

    def eps(
        self,
        x: Tensor,
        t: Tensor | int,
        labels: Tensor | None = None,
        guidance: float = 1.0,
        cond: Tensor | None = None,
        cfg: float = 1.0,
    ) -> Tensor:
        """The predicted noise of x_t in model space, for a sampler of your own.

        `labels` are those the classifier guides to, `cond` those that a label-conditioned network
        is told (the number of classes meaning "no label"); a class index an image.
        """
        for name, value in (("labels", labels), ("cond", cond)):
            if value is not None and not isinstance(value, Tensor):
                raise ConfigError(
                    f"`{name}` of eps is a tensor of class indices, one an image; got "
                    f"{type(value).__name__}. `model.label_index(NAME)` gives a class's index."
                )
        return self.net.eps(x, t, labels, guidance, cond, cfg)

    def save(self, path: str | Path, card: str = "", dtype: torch.dtype | None = None) -> Path:
        """Write a model directory that `egc.load` opens."""
        return super().save(path, card or model_card(self, Path(path).name), dtype)

    def to(self, device: str | torch.device) -> Self:
        return super().to(check_device(device))

    @classmethod
    def fit(
        cls,
        data: str | ImageSet | tuple[np.ndarray, Any] | np.ndarray | None = None,
        preset: str | Path | Config = "digits",
        run: str | Path | None = None,
        settings: Sequence[str] = (),
        *,
        start_from: str | Path | None = None,
        report: bool = True,
        progress: bool = True,
    ) -> Self:
        """Train a model; the same call with the same `run` resumes.

        Args:
            data: a `data.source` such as `"folder:photos"`, `(images, labels)`, or images alone;
                default: what the preset says. Labels are class indices or names.
            preset: a preset's name, a TOML file, or a `Config`.
            run: the run directory; default: none is kept.
            settings: changes to the preset, such as `"train.steps=500"`.
            start_from: a model whose weights to begin with, wherever they fit (fine-tuning).
            report: whether to measure the model at the end, and write the page.
        """
        from egc.training.fit import fit  # what trains takes long to import

        options: Any = {"start_from": start_from, "report": report, "progress": progress}
        return cls(**vars(fit(data, preset, run, settings, **options)))

    @classmethod
    def from_published(
        cls,
        checkpoint: str | Path,
        *,
        heads: int = 4,
        head_width: int = 64,
        image_size: int = 32,
        autoencoder: str | None = None,
    ) -> Self:
        """The model of a checkpoint that the paper's authors published; see `egc import`."""
        options = {"heads": heads, "head_width": head_width, "image_size": image_size}
        found = import_published(checkpoint, **options, autoencoder=autoencoder)
        return cls(**vars(found))

    def _read(self, images: Any) -> np.ndarray:
        return read_images(images, self.codec.image_size, self.codec.channels)


def load(name: str | Path, device: str | torch.device | None = None) -> EGC:
    """Open a model: a shipped name, a model or run directory, or a hub id such as `owner/name`.

    It goes to `device`; by default to a GPU if there is one.
    """
    return EGC.load(name, device)


def check_device(device: str | torch.device | None) -> torch.device:
    """A device that is there; by default a GPU, if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") or type(error).__name__
        raise ConfigError(f"There is no device {str(device)!r} here: {reason}.") from None
    return found
