"""`EGC`: the facade a newcomer needs. It has no algorithm of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from egc.config import Config
from egc.data import ImageSet, read_images
from egc.data.images import open_image
from egc.energy import EnergyModel
from egc.errors import DataError
from egc.evaluation.classification import evaluate_classification
from egc.evaluation.novelty import LEAST, novelty_threshold
from egc.grid import image_grid
from egc.model import Model
from egc.preparation import open_clean, prepare
from egc.processes import is_main, wait_for_all
from egc.published import import_published
from egc.report.card import model_card
from egc.report.page import write_page
from egc.report.training import training_report
from egc.shelf import find_model
from egc.tasks import classify, density
from egc.tasks.compose import compose
from egc.tasks.edit import Edit, edit
from egc.tasks.features import evidence
from egc.tasks.inpaint import SHAPES, check_mask, inpaint, make_mask
from egc.tasks.interpolate import Interpolation, interpolate
from egc.tasks.landscape import Along, Plane, landscape
from egc.tasks.novelty import is_novel
from egc.tasks.sample import Samples, sample
from egc.tasks.sweep import Sweep, sweep_guidance
from egc.tasks.watch import Watched, watch
from egc.training.run import Run
from egc.training.trainer import Trainer, check_machine

PREVIEW_IMAGES = 36


class EGC(Model):
    """One network that classifies, generates, and knows what it has seen.

    `model.net` is the `EnergyModel`, `model.diffusion` its noise schedule, `model.codec` the way
    between pictures and tensors, `model.classes` the names of its labels.
    """

    def predict(self, images: Any) -> list[str]:
        """The class of each image: a path, PIL image, uint8 array, or a list of them."""
        return [self.classes[index] for index in self.predict_proba(images).argmax(axis=1)]

    def predict_proba(self, images: Any) -> np.ndarray:
        """p(y|x) for each image; (N, classes)."""
        return classify.predict_proba(self, self._read(images))

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
            steps, sampler, guidance: default to what the model's recipe says. Samplers are
                `ddpm`, `ddim`, `dpm++` and `unipc`; a guidance of 0 ignores the labels.
            seed: image i has the seed `seed + i`.
            cfg: scale of classifier-free guidance, of label-conditioned networks; 1 is none.
            batch_size: images at once, which does not change them; default: by their size.
        """
        return sample(
            self,
            labels,
            count,
            steps=steps,
            sampler=sampler,
            guidance=guidance,
            cfg=cfg,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
        )

    def sweep_guidance(
        self, label: str | int, scales: Sequence[float], count: int = 16, **options: Any
    ) -> Sweep:
        """Samples of one class from the same seeds at several guidance scales, measured.

        Options: `steps`, `sampler`, `seed`, `progress`, as for `sample`.
        """
        return sweep_guidance(self, label, scales, count, **options)

    def inpaint(
        self,
        image: Any,
        mask: Any,
        label: str | int | None = None,
        count: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> Samples:
        """Fill a part of an image, in `count` ways; what is not filled stays exactly as it was.

        Args:
            image: a path, PIL image or uint8 array.
            mask: the same, white (or nonzero) where to fill; or a shape: `center`, `left`,
                `right`, `top`, `bottom`, `random-strokes`.
            label: the class to fill towards.
            options: `steps`, `guidance`, `cfg`, `progress`, as for `sample`; `jump_length` and
                `jumps` of RePaint.
        """
        pixels = self._read(image)
        if len(pixels) != 1:
            raise DataError(f"One image is filled at a time; got {len(pixels)}.")
        return inpaint(self, pixels[0], self._mask(mask, seed), label, count, seed=seed, **options)

    def interpolate(
        self,
        seeds: tuple[int, int] | None = None,
        images: Any = None,
        label: str | int | None = None,
        frames: int = 9,
        **options: Any,
    ) -> Interpolation:
        """From one image to another through the noise they come from, beside a plain blend.

        Between two seeds of `sample`, or two given images. Options: `steps`, `guidance`, `cfg`,
        `progress`, as for `sample`.
        """
        pixels = None if images is None else self._read(images)
        return interpolate(self, seeds, pixels, label, frames, **options)

    def edit(
        self, images: Any, to: str | int, strength: float | str = "auto", **options: Any
    ) -> Edit:
        """Change images towards another class.

        Args:
            strength: how much of the way to noise they go, 0 (not at all) to 1; "auto": the
                smallest of a row of strengths, each image its own, that changes the class.
            options: `steps`, `guidance`, `cfg`, `seed`, `progress`, as for `sample`.
        """
        return edit(self, self._read(images), to, strength, **options)

    def compose(
        self, labels: Sequence[str | int], mode: str = "and", count: int = 1, **options: Any
    ) -> Samples:
        """Draw what is of all classes ("and"), or of the first and none of the others ("not").

        Options: `corrector_steps`, the Langevin steps at each noise level; `steps`, `guidance`,
        `seed`, `progress`, as for `sample`.
        """
        return compose(self, labels, mode, count, **options)

    def watch(self, label: str | int | None = None, **options: Any) -> Watched:
        """Draw one image and keep every step of it, with what the network takes it for.

        Options: `steps`, `sampler`, `guidance`, `cfg`, `seed`, `progress`, as for `sample`.
        """
        return watch(self, label, **options)

    def evidence(self, images: Any) -> np.ndarray:
        """Where in each image each class is seen; (N, classes, h, w)."""
        return evidence(self, self._read(images))

    def is_novel(self, images: Any) -> np.ndarray:
        """Whether each image is stranger than 95 % of the validation images were; (N,)."""
        return is_novel(self, self._read(images))[0]

    def landscape(self, images: Any, seed: int = 0) -> tuple[Along, list[Plane]]:
        """The density around images along growing noise, and over planes of two noises."""
        return landscape(self, self._read(images), seed)

    def log_density(self, images: Any, t: int = 0) -> np.ndarray:
        """f(x) of each image, its log-density up to scale and a constant; (N,)."""
        return density.log_density(self, self._read(images), t)

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
        is told (the number of classes meaning "no label").
        """
        return self.net.eps(x, t, labels, guidance, cond, cfg)

    def save(self, path: str | Path, card: str = "", dtype: torch.dtype | None = None) -> Path:
        """Write a model directory that `egc.load` opens."""
        return super().save(path, card or model_card(self, Path(path).name), dtype)

    @classmethod
    def fit(
        cls,
        data: str | ImageSet | tuple[np.ndarray, np.ndarray] | np.ndarray | None = None,
        preset: str | Path | Config = "digits",
        run: str | Path | None = None,
        settings: Sequence[str] = (),
        *,
        progress: bool = True,
    ) -> EGC:
        """Train a model; the same call with the same `run` resumes.

        Args:
            data: a `data.source` such as `"folder:photos"`, `(images, labels)`, or images alone;
                default: what the preset says.
            preset: a preset's name, a TOML file, or a `Config`.
            run: the run directory; default: none is kept.
            settings: changes to the preset, such as `"train.steps=500"`.
        """
        if run is None:
            with tempfile.TemporaryDirectory() as temporary:
                return cls.fit(data, preset, Path(temporary) / "run", settings, progress=progress)
        place = Run(run)
        config, splits = prepare(data, preset, settings, before=place.saved_config())
        place.check(config)
        check_machine(config.train)
        model = cls.build(config, splits.train.classes, seed=config.train.seed)
        model.codec.ready()

        def watch(net: EnergyModel, step: int) -> dict[str, float]:
            return model.with_net(net).preview(splits.validation, place, step)

        with place.locked() if is_main() else nullcontext():
            clean = open_clean(config, splits.train)
            trainer = Trainer(model, splits.train, place, watch, clean)
            model = model.with_net(trainer.train(show=progress))
            report = training_report(
                model, splits.test, place.read_metrics(), title=place.path.name, progress=progress
            )
            model.facts = {
                "trained_steps": config.train.steps,
                "test_accuracy": report.accuracy,
                "test_images": len(splits.test),
                "median_energy": report.energies,
            }
            if len(splits.validation) >= LEAST and not config.data.streaming:
                model.facts["novelty"] = novelty_threshold(model, splits.validation)
            if is_main():
                model.save(place.model)
                if report.drawn is not None:
                    report.drawn.save(place.samples / "final.png")
                write_page(place.report, report.html)
            wait_for_all()
        return model

    @classmethod
    def from_published(
        cls,
        checkpoint: str | Path,
        *,
        heads: int = 4,
        head_width: int = 64,
        image_size: int = 32,
        autoencoder: str | None = None,
    ) -> EGC:
        """The model of a checkpoint that the paper's authors published; see `egc import`."""
        options = {"heads": heads, "head_width": head_width, "image_size": image_size}
        found = import_published(checkpoint, **options, autoencoder=autoencoder)
        return cls(**vars(found))

    def with_net(self, net: EnergyModel) -> EGC:
        """The same model with other weights."""
        return type(self)(self.config, self.classes, net, self.diffusion, self.codec, self.facts)

    def preview(self, validation: ImageSet, run: Run, step: int) -> dict[str, float]:
        """A sample grid and validation accuracy, while training."""
        if self.draws:
            labels = None
            if self.classes:
                labels = [index % len(self.classes) for index in range(PREVIEW_IMAGES)]
            images = self.sample(labels, count=PREVIEW_IMAGES, progress=False).images
            if is_main():
                picture = image_grid(images, cell=48, largest=128)
                picture.save(run.samples / f"step-{step:08d}.png")
        if self.classes and (validation.labels >= 0).any():
            result = evaluate_classification(self, validation)
            return {"validation_accuracy": result.accuracy}
        return {}

    def _mask(self, mask: Any, seed: int) -> np.ndarray:
        """A shape's name, an array or a picture; never resized, since its size is its meaning."""
        side = self.codec.image_size
        if isinstance(mask, str) and mask in SHAPES:
            return make_mask(mask, side, seed)
        if isinstance(mask, np.ndarray):
            return check_mask(mask, side)
        picture = mask if isinstance(mask, Image.Image) else open_image(Path(mask))
        return check_mask(np.asarray(picture.convert("L")), side)

    def _read(self, images: Any) -> np.ndarray:
        return read_images(images, self.codec.image_size, self.codec.channels)


def load(name: str | Path, device: str | torch.device | None = None) -> EGC:
    """Open a model: a shipped name, a model or run directory, or a hub id such as `owner/name`.

    It goes to `device`; by default to a GPU if there is one.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return EGC.open(find_model(name)).to(device)
