"""The model card: what a model is, where it came from and how to use it, as README.md."""

from __future__ import annotations

from egc.model import Model

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
    kind = "U-Net" if network.kind == "unet" else "ResNet"
    told = ", also told the label" if network.label_width else ""
    count = sum(p.numel() for p in model.net.parameters())
    return f"{kind}, {count:,} parameters, `{network.readout}` readout{told}"


def _origin(model: Model) -> str:
    if "imported_from" in model.facts:
        return f"of the paper's authors, imported from `{model.facts['imported_from']}`"
    train = model.config.train
    return f"trained for {train.steps:,} steps of {train.batch_size} images, seed {train.seed}"
