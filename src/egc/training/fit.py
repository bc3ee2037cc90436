"""Training from start to end: data, model, loop, and what is said of the result."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from egc.config import Config
from egc.data.imageset import ImageSet
from egc.distributed import is_main, wait_for_all
from egc.metrics.classification import evaluate_classification
from egc.metrics.out_of_distribution import LEAST, novelty_threshold
from egc.model import Model
from egc.nn.network import Network
from egc.report.grid import image_grid
from egc.report.page import write_page
from egc.report.training import training_report
from egc.tasks.sample import sample
from egc.training.prepare import open_clean, prepare
from egc.training.run import Run
from egc.training.trainer import Trainer, check_machine

PREVIEW_IMAGES = 36


def fit(
    data: Any = None,
    preset: str | Path | Config = "digits",
    run: str | Path | None = None,
    settings: Sequence[str] = (),
    *,
    start_from: Path | None = None,
    report: bool = True,
    progress: bool = True,
) -> Model:
    """Train a model; see `egc.EGC.fit`."""
    if run is None:
        with tempfile.TemporaryDirectory() as temporary:
            return fit(data, preset, Path(temporary) / "run", settings, progress=progress)
    place = Run(run)
    config, splits = prepare(data, preset, settings, before=place.saved_config())
    place.check(config)
    check_machine(config.train)
    model = Model.build(config, splits.train.classes, seed=config.train.seed)
    model.codec.ready()

    def watch(net: Network, step: int) -> dict[str, float]:
        return preview(_with_net(model, net), splits.validation, place, step)

    with place.locked() if is_main() else nullcontext():
        clean = open_clean(config, splits.train)
        trainer = Trainer(model, splits.train, place, watch, clean)
        model = _with_net(model, trainer.train(show=progress))
        found = training_report(
            model, splits.test, place.read_metrics(), title=place.path.name, progress=progress
        )
        model.facts = {
            "trained_steps": config.train.steps,
            "test_accuracy": found.accuracy,
            "test_images": len(splits.test),
            "median_energy": found.energies,
        }
        if len(splits.validation) >= LEAST and not config.data.streaming:
            model.facts["out_of_distribution"] = novelty_threshold(model, splits.validation)
        if is_main():
            model.save(place.model)
            if found.drawn is not None:
                found.drawn.save(place.samples / "final.png")
            write_page(place.report, found.html)
        wait_for_all()
    return model


def _with_net(model: Model, net: Network) -> Model:
    return Model(model.config, model.classes, net, model.diffusion, model.codec, model.facts)


def preview(model: Model, validation: ImageSet, run: Run, step: int) -> dict[str, float]:
    """A sample grid and validation accuracy, while training."""
    if model.net.draws:
        labels = None
        if model.classifies:
            labels = [index % len(model.classes) for index in range(PREVIEW_IMAGES)]
        images = sample(
            model, labels, PREVIEW_IMAGES, sampling=model.sampling(), progress=False, shared=True
        ).images
        if is_main():
            picture = image_grid(images, cell=48, largest=128)
            picture.save(run.samples / f"step-{step:08d}.png")
    if model.classifies and (validation.labels >= 0).any():
        return {"validation_accuracy": evaluate_classification(model, validation).accuracy}
    return {}
