"""Where models are found and put: those that ship with the package, directories, and the hub."""

from __future__ import annotations

import logging
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from egc.errors import ModelError, suggest
from egc.registry import backbones

if TYPE_CHECKING:
    from egc.model import Model

log = logging.getLogger("egc")

SHIPPED = Path(str(resources.files("egc"))) / "models"


def find_model(name: str | Path) -> Path:
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


def is_shipped(path: Path) -> bool:
    """Whether a model directory is one of the package's own, which nobody should write to."""
    return SHIPPED.resolve() in Path(path).resolve().parents


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    log.info("Fetching the model %s from the hub, unless it is here already.", hub_id)
    try:
        files = ["config.json", "model.safetensors", "README.md", "autoencoder/*"]
        return Path(snapshot_download(hub_id, allow_patterns=files))
    except Exception as error:  # the hub's client fails in many ways; all mean the same here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"There is no directory {hub_id!r}, and no model of that name could be fetched from "
            f"the hub: {reason}"
        ) from None


# --- model cards ---------------------------------------------------------------------------------

# Front matter that model hubs read, then the text. Filled with str.format.
CARD = """\
---
library_name: egc
tags: [energy-based-model, diffusion, image-classification, image-generation]
---
# {name}

One network that classifies images by its forward pass and draws them by its backward pass
(EGC, ICCV 2023).

| | |
| --- | --- |
| data | {source} |
| images | {size}x{size}, {colour} |
| classes | {classes} |
| the network sees | {sees} |
| network | {network} |
| weights | {origin} |
{facts}
## Use

```python
import egc

model = egc.load("{name}")
{use}```
"""

FACTS = {
    "test_accuracy": ("test accuracy", lambda value: f"{value:.1%}"),
    "test_images": ("test images", lambda value: f"{value:,}"),
}


def model_card(model: Model, name: str) -> str:
    """Markdown for a model's README.md."""
    config = model.config
    classes = ", ".join(model.classes[:10]) + (", ..." if len(model.classes) > 10 else "")
    facts = "".join(
        f"| {title} | {shown(model.facts[key])} |\n"
        for key, (title, shown) in FACTS.items()
        if model.facts.get(key) is not None
    )
    use = 'model.sample(count=9).save("samples.png")\n'
    if model.classes:
        use = (
            'model.predict("image.png")                      # -> ["..."]\n'
            f'model.sample({model.classes[0]!r}, count=9).save("samples.png")\n'
        )
    return CARD.format(
        name=name,
        source=config.data.source,
        size=model.codec.image_size,
        colour="grey" if model.codec.channels == 1 else "colour",
        classes=f"{len(model.classes)}: {classes}" if classes else "none (trained without labels)",
        sees=_sees(model),
        network=_network(model),
        origin=_origin(model),
        facts=facts,
        use=use,
    )


def _sees(model: Model) -> str:
    shape = "{1}x{2}x{0}".format(*model.codec.shape)
    if model.config.codec.kind == "pixel":
        return f"{shape} pixels"
    return f"{shape} latents of the autoencoder `{model.config.codec.autoencoder}`"


def _network(model: Model) -> str:
    network = model.config.network
    kind = {"unet": "U-Net", "resnet": "ResNet"}.get(network.kind, network.kind)
    readout = network.readout or backbones[network.kind].readout
    label = ", label-conditioned" if model.net.takes_label else ""
    count = sum(p.numel() for p in model.net.parameters())
    return f"{kind}, {count:,} parameters, `{readout}` readout{label}"


def _origin(model: Model) -> str:
    if "imported_from" in model.facts:
        return f"of the paper's authors, imported from `{model.facts['imported_from']}`"
    train = model.config.train
    return f"trained for {train.steps:,} steps of {train.batch_size} images, seed {train.seed}"
