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
| network | U-Net, {parameters:,} parameters, `{readout}` readout |
| training | {steps:,} steps of {batch} images, seed {seed} |
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
        parameters=sum(p.numel() for p in model.net.parameters()),
        readout=config.network.readout,
        steps=config.train.steps,
        batch=config.train.batch_size,
        seed=config.train.seed,
        facts=facts,
        use=use,
    )
