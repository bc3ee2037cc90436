"""`EGC`: the facade a newcomer needs. It has no algorithm of its own."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egc.codec import MEASURED_IMAGES, measure_scale, settle_codec
from egc.config import AugmentConfig, Config
from egc.data import ImageSet, Splits, open_source, read_images
from egc.data.sources import split
from egc.energy import EnergyModel
from egc.errors import ConfigError, DataError, ModelError, suggest
from egc.evaluation.classification import evaluate_classification
from egc.grid import image_grid
from egc.model import Model
from egc.processes import is_main, wait_for_all
from egc.published import import_published
from egc.report.card import model_card
from egc.report.page import write_page
from egc.report.training import training_report
from egc.tasks import classify, density
from egc.tasks.sample import Samples, sample
from egc.training.run import Run
from egc.training.trainer import Trainer, check_machine

log = logging.getLogger("egc")

SHIPPED = Path(str(resources.files("egc"))) / "models"
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
            clean = open_clean(config)
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
            if is_main():
                model.save(place.model)
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
        labels = None
        if self.classes:
            labels = [index % len(self.classes) for index in range(PREVIEW_IMAGES)]
        samples = self.sample(labels, count=PREVIEW_IMAGES, progress=False)
        if is_main():
            image_grid(samples.images, cell=48, largest=128).save(
                run.samples / f"step-{step:08d}.png"
            )
        if self.classes and (validation.labels >= 0).any():
            result = evaluate_classification(self, validation)
            return {"validation_accuracy": result.accuracy}
        return {}

    def _read(self, images: Any) -> np.ndarray:
        return read_images(images, self.codec.image_size, self.codec.channels)


def load(name: str | Path, device: str | torch.device | None = None) -> EGC:
    """Open a model: a shipped name, a model or run directory, or a hub id such as `owner/name`.

    It goes to `device`; by default to a GPU if there is one.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return EGC.open(_find(name)).to(device)


def _find(name: str | Path) -> Path:
    """The directory of a model."""
    text = str(name)
    path = Path(name)
    if text in list_models():
        return SHIPPED / text
    if path.is_dir():
        exported = path / "model"
        return exported if exported.is_dir() else path
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text):
        return _download(text)
    raise ModelError(
        f"There is no model {text!r}: no shipped one and no directory. "
        f"{suggest(text, list_models())}"
    )


def list_models() -> list[str]:
    """The names of the models that ship with the package."""
    if not SHIPPED.is_dir():
        return []
    return sorted(path.name for path in SHIPPED.iterdir() if (path / "config.json").is_file())


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    log.warning("Fetching the model %s from the hub, unless it is here already.", hub_id)
    try:
        files = ["config.json", "model.safetensors", "README.md", "autoencoder/*"]
        return Path(snapshot_download(hub_id, allow_patterns=files))
    except Exception as error:  # the hub's client fails in many ways; all mean the same here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"There is no directory {hub_id!r}, and no model of that name could be fetched from "
            f"the hub: {reason}"
        ) from None


def prepare(
    data: Any,
    preset: str | Path | Config,
    settings: Sequence[str] = (),
    before: Config | None = None,
) -> tuple[Config, Splits]:
    """The configuration with what the data and the autoencoder say filled in, and the data.

    What a run that is resumed had measured `before` is not measured again.
    """
    config = preset if isinstance(preset, Config) else Config.load(preset)
    if isinstance(data, str):
        config = config.replace(data={"source": data})
    config = config.with_settings(settings)
    if data is None or isinstance(data, str):
        splits = open_source(config.data)
    else:
        splits = split([_as_image_set(data)], config.data)
        config = config.replace(data={"source": splits.train.name})
    shape = {"image_size": splits.train.image_size, "channels": splits.train.channels}
    config = settle_codec(_fit_latents(config.replace(data=shape), splits.train))
    if before is not None:
        if config.objective.gradient == "auto":
            config = config.replace(objective={"gradient": before.objective.gradient})
        if config.codec.scale is None and before.codec.scale is not None:
            config = config.replace(codec={"scale": before.codec.scale})
    if config.codec.kind == "latent" and config.codec.scale is None:
        images, _ = splits.train.take(0, MEASURED_IMAGES, seed=0)
        config = config.replace(codec={"scale": measure_scale(config, images)})
    return config, splits


def _fit_latents(config: Config, train: ImageSet) -> Config:
    """Stored latents know their autoencoder, and bear no more changes to pixels."""
    if train.autoencoder is None:
        return config
    if config.codec.kind != "latent":
        raise ConfigError(
            f'{train.name} needs codec.kind = "latent"; got {config.codec.kind!r}. '
            "Train with the preset they were encoded for."
        )
    streams = {"augment": config.data.augment}
    if config.data.clean_source is None:
        streams["augment_clean"] = config.data.augment_clean
    for stream, wanted in streams.items():
        mirrored = AugmentConfig(flip=wanted.flip and train.mirrored)
        if wanted != mirrored:
            key = next(k for k, v in vars(wanted).items() if v != getattr(mirrored, k))
            way = "encode them with --flip" if key == "flip" else f"set data.{stream}.{key} = 0"
            raise ConfigError(
                f"data.{stream}.{key} changes pixels, but {train.name} is encoded already; {way}."
            )
    return config.replace(codec={"autoencoder": train.autoencoder})


def open_clean(config: Config) -> ImageSet | None:
    """The images of the clean classification stream, where they are not those of the other."""
    if config.data.clean_source is None or not config.objective.clean_stream:
        return None
    streaming = config.data.streaming and config.data.clean_source.startswith("hub:")
    changes = {"source": config.data.clean_source, "streaming": streaming}
    return open_source(config.replace(data=changes).data).train


def _as_image_set(data: Any) -> ImageSet:
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return ImageSet.from_arrays(*data)
    if isinstance(data, np.ndarray):
        return ImageSet.from_arrays(data)
    raise DataError(
        "Data is a source such as 'folder:photos', (images, labels), or an array of images; "
        f"got {type(data).__name__}."
    )
