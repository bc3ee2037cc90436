"""The table of presets in docs/presets.md: what each sees, its parameters and its cost.

    python benchmarks/presets.py

Every preset is built on the meta device, without weights. MFLOP are of one forward pass of one
image, a multiply-add counting two; a training step and a sampling step are multiples of it
(docs/training.md).
"""

from __future__ import annotations

from egc.config import Config, list_presets
from egc.model import Model
from egc.training.cost import estimate

HEAD = "| preset | the network sees | labels | parameters | MFLOP an image | steps x batch |"


def on_meta(name: str) -> Model:
    """A preset's model with the shape of its data filled in, without weights."""
    found = estimate(Config.load(name))
    return Model.build(found.config, [str(i) for i in range(found.classes)], device="meta")


def row(name: str) -> str:
    model = on_meta(name)
    config, size = model.config, model.size()
    channels, side, _ = model.codec.shape
    what = "latents" if config.codec.kind == "latent" else "pixels"
    labels = f"{len(model.classes)} classes" if model.classes else "none"
    if name == "folder32":
        labels = "yours (10 here)"
    if config.network.label_width:
        labels += ", also as input"
    return (
        f"| `{name}` | {side}x{side}x{channels} {what} | {labels} "
        f"| {size['parameters'] / 1e6:,.2f} M | {size['mflop_per_image']:,.0f} "
        f"| {config.train.steps:,} x {config.train.batch_size} |"
    )


if __name__ == "__main__":
    print(HEAD)
    print("| --- | --- | --- | --- | --- | --- |")
    print("\n".join(row(name) for name in list_presets()))
