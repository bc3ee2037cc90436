"""The source of one's own in docs/data.md, as it is written there."""

import json
import re
import sys
from pathlib import Path

import numpy as np

from egc.cli import main
from egc.registry import sources

DOCS = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_source_of_the_documentation_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    Path("my_shapes.py").write_text(code)
    np.save("shapes.npy", np.zeros((20, 16, 16, 1), dtype=np.uint8))
    np.save("labels.npy", np.arange(20) % 2)
    try:
        look = ["data", "shapes", "--import", "my_shapes", "--set", "data.image_size=32"]
        assert main([*look, "--out", "look.png", "--json"]) == 0
    finally:
        sys.modules.pop("my_shapes", None)
        sources._entries.pop("shapes", None)
    assert json.loads(capsys.readouterr().out)["classes"] == ["circle", "square"]
    assert Path("look.png").exists()
