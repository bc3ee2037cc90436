"""What a training costs, counted and not timed, so that it is the same on any machine.

An image of training costs what its objective says (`Objective.cost`); an image that is drawn costs
a forward pass and a backward pass to the image for each sampling step. `estimate` counts
from a configuration alone: it needs neither the data nor any weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from egc.codec import settle_codec
from egc.config import Config, DataConfig
from egc.data import Description, describe
from egc.data.sources import find_source, open_parts
from egc.model import Model, make_objective
from egc.training.prepare import configure

DRAWING_PASSES = 2
"""forward passes that a sampling step costs"""
DRAWING_SHARE = 0.2
"""of the cost of training, that may go into pictures of what it has learned"""
MIN_DRAWING_MFLOP = 3e5
"""that may go there in any case: some seconds on a CPU"""

ASSUMED_DATA = Description(image_size=32, channels=3, classes=tuple(map(str, range(10))))
ASSUMED_CODEC = {"channels": 4, "factor": 8}
"""what is taken for granted of data and of an autoencoder that are not at hand"""


class Cost(NamedTuple):
    """The size of a network, and the cost of its training."""

    parameters: int
    mflop_per_image: float
    """of a forward pass (a multiply-add is 2)"""
    passes: float
    """forward passes that training on an image costs"""
    tflop_per_step: float
    steps: int

    @property
    def tflop(self) -> float:
        """Of all of the training."""
        return self.tflop_per_step * self.steps


def cost_of(model: Model) -> Cost:
    """The cost of the training that a model's configuration describes."""
    size, train = model.size(), model.config.train
    forward = size["mflop_per_image"]
    an_image = make_objective(model).cost(forward, size.get("mflop_classify", forward))
    a_step = an_image * train.batch_size / 1e6
    return Cost(int(size["parameters"]), forward, an_image / forward, a_step, train.steps)


def affordable_images(model: Model, steps: int) -> int:
    """How many images may be drawn to see what so many training steps have led to."""
    cost = cost_of(model)
    budget = max(DRAWING_SHARE * cost.tflop_per_step * steps * 1e6, MIN_DRAWING_MFLOP)
    return int(budget / (DRAWING_PASSES * cost.mflop_per_image * model.config.sample.steps))


class Estimate(NamedTuple):
    """A configuration whose open keys are filled in, and what it would cost to train."""

    config: Config
    classes: int
    cost: Cost
    assumed: list[str]
    """what is not known before the data is seen, and was assumed"""


def estimate(config: Config) -> Estimate:
    """Count without data: nothing is read but folders that are at hand, nothing downloaded."""
    config, _ = configure(None, config)
    known, assumed, found = _about(config.data), [], {}
    for name in ("image_size", "channels"):
        found[name] = getattr(config.data, name) or getattr(known, name)
        if found[name] is None:
            found[name] = getattr(ASSUMED_DATA, name)
            assumed.append(f"data.{name} = {found[name]}")
    classes = known.classes if config.data.labels else ()
    if classes is ASSUMED_DATA.classes:
        assumed.append(f"{len(classes)} classes")
    config = config.replace(data=found)
    codec = config.codec
    if codec.kind == "latent" and not (codec.channels and codec.factor):
        if Path(codec.autoencoder.partition("#")[0]).is_dir():
            config = settle_codec(config)
        else:
            config = config.replace(codec=ASSUMED_CODEC)
            assumed += [f"codec.{name} = {value}" for name, value in ASSUMED_CODEC.items()]
    model = Model.build(config, classes, device="meta")
    return Estimate(config, len(classes), cost_of(model), assumed)


def _about(config: DataConfig) -> Description:
    """What can be known of a source without fetching anything."""
    known = describe(config.source)
    if known is not None:
        return known
    _, rest = find_source(config.source)
    if isinstance(rest, Path) and rest.exists():
        images = open_parts(config)[0]
        return Description(images.image_size, images.channels, tuple(images.classes))
    return ASSUMED_DATA._replace(image_size=None, channels=None)
