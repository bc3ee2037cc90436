"""Training from start to end: data, model, loop, and what is said of the result."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from egc.config import Config
from egc.data.imageset import Splits
from egc.distributed import is_main, process_count, wait_for_all
from egc.hub import find_model, model_card
from egc.model import CONFIG_FILE, Model
from egc.nn.network import Network
from egc.report.page import write_page
from egc.training.checkpoint import newest_checkpoint
from egc.training.outcome import look_back, look_in_between
from egc.training.prepare import configure, measure_anchor, open_clean, prepare, remember
from egc.training.run import Run
from egc.training.trainer import Trainer, check_machine

log = logging.getLogger("egc")


def fit(
    data: Any = None,
    preset: str | Path | Config = "digits",
    run: str | Path | None = None,
    settings: Sequence[str] = (),
    *,
    start_from: str | Path | None = None,
    report: bool = True,
    progress: bool = True,
) -> Model:
    """Train a model; see `egc.EGC.fit`."""
    options: Any = {"start_from": start_from, "report": report, "progress": progress}
    if run is None:
        with tempfile.TemporaryDirectory() as temporary:
            return fit(data, preset, Path(temporary) / "run", settings, **options)
    place = Run(run)
    config, given = configure(data, preset, settings, start_from)
    before = place.saved_config()
    if before is not None:
        config = remember(config, before)
        place.check(config)
        if _is_finished(place, config, report):
            log.info("%s is finished: %d steps.", place.path, config.train.steps)
            return Model.open(place.model)
    config, splits = prepare(given, config)
    place.check(config)
    check_machine(config)
    model = Model.build(config, splits.train.classes, seed=config.train.seed)
    model.codec.ready()
    if config.train.start_from is not None and newest_checkpoint(place.checkpoints) is None:
        take_weights(model, find_model(config.train.start_from))
    measure_anchor(model, splits.train)

    def watch(net: Network, step: int) -> dict[str, float]:
        picture, figures = look_in_between(replace(model, net=net), splits.validation, step)
        if picture is not None and is_main():
            picture.save(place.samples / f"step-{step:08d}.png")
        return figures

    with place.locked() if is_main() else nullcontext():
        clean = open_clean(config, splits.train)
        trainer = Trainer(model, splits.train, place, watch, clean)
        model = replace(model, net=trainer.train(show=progress))
        model.facts = {"trained_steps": trainer.step, "test_images": len(splits.test)}
        _save(model, place)
        if report:
            _report(model, splits, place, progress)
        wait_for_all()
    return model


def take_weights(model: Model, path: Path) -> None:
    """Begin with another model's weights, wherever name and shape agree."""
    theirs, mine = Model.open(path).net.state_dict(), model.net.state_dict()
    fitting = {
        name: weight
        for name, weight in theirs.items()
        if name in mine and mine[name].shape == weight.shape
    }
    model.net.load_state_dict(fitting, strict=False)
    fresh = [name for name in mine if name not in fitting]
    rest = f"; {len(fresh)} start fresh, such as {fresh[0]}" if fresh else ""
    log.info("Took %d of %d weights from %s%s.", len(fitting), len(mine), path, rest)


def _is_finished(run: Run, config: Config, report: bool) -> bool:
    """Whether a run has its model, of as many steps as are asked for, and its report."""
    try:
        facts = json.loads((run.model / CONFIG_FILE).read_text())["facts"]
        return facts["trained_steps"] >= config.train.steps and (run.report.exists() or not report)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _report(model: Model, splits: Splits, run: Run, progress: bool) -> None:
    """Measure the model, and write the page. The model is saved, so that nothing can be lost."""
    try:
        outcome = look_back(model, splits, progress)
        model.facts |= outcome.facts()
        if is_main():
            _save(model, run)
            if (picture := outcome.picture()) is not None:
                picture.save(run.samples / "final.png")
            write_page(run.report, outcome.page(model, run.read_metrics(), run.path.name))
    except Exception as error:
        if process_count() > 1:
            raise  # the others may wait for this one's share
        log.warning(
            "The model is saved in %s, but its report failed (%s: %s). The same command again "
            "makes the report alone.",
            run.model,
            type(error).__name__,
            error,
        )
        log.debug("The report failed.", exc_info=True)


def _save(model: Model, run: Run) -> None:
    if is_main():
        model.save(run.model, model_card(model, run.model.name))
