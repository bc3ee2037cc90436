"""The configuration of a run: what its keys are, and how files and settings become it."""

from egc.config.schema import (
    AugmentConfig,
    CodecConfig,
    Config,
    DataConfig,
    DiffusionConfig,
    NetworkConfig,
    ObjectiveConfig,
    SampleConfig,
    TrainConfig,
    list_presets,
    read_preset,
)

__all__ = [
    "AugmentConfig",
    "CodecConfig",
    "Config",
    "DataConfig",
    "DiffusionConfig",
    "NetworkConfig",
    "ObjectiveConfig",
    "SampleConfig",
    "TrainConfig",
    "list_presets",
    "read_preset",
]
