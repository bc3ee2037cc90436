"""Names that are known without importing PyTorch are those that the package registers."""

from egc.registry import backbones


def test_names_known_beforehand_are_registered():
    assert set(backbones.own) <= set(backbones.names())
    assert all(backbones[name].__module__.startswith("egc.nn") for name in backbones.own)
