"""`egc models`: what ships with the package."""

from __future__ import annotations

import argparse

from egc.cli.base import Result, Verb, command


def _run(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.config import list_presets
    from egc.hub import list_models

    models = []
    for name in list_models():
        model = load(name, "cpu")
        models.append(
            {
                "name": name,
                "image_size": model.codec.image_size,
                "channels": model.codec.channels,
                "classes": len(model.classes),
                "test_accuracy": model.facts.get("test_accuracy"),
                **model.size(),
            }
        )
    presets = list_presets()
    lines = ["models (egc sample NAME, egc.load(NAME)):"]
    lines += [
        f"  {m['name']:<12} {m['image_size']}x{m['image_size']}x{m['channels']}, "
        f"{m['classes']} classes, {m['parameters']:,} parameters, "
        f"{m['mflop_per_image']:.1f} MFLOP an image"
        + (f", test accuracy {m['test_accuracy']:.1%}" if m["test_accuracy"] else "")
        for m in models
    ]
    lines += ["presets (egc train NAME --run DIR):", *(f"  {name}" for name in presets)]
    following = command("sample", models[0]["name"], "--count", 16) if models else command("demo")
    return Result({"models": models, "presets": presets}, "\n".join(lines), following)


VERB = Verb(
    "models",
    "start",
    "list the models and presets that ship with EGC",
    ["egc models", "egc models --json"],
    lambda parser: None,
    _run,
)
