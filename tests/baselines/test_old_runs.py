"""Runs that were begun when JEM's options had a section of their own, `objective.sgld`, go on."""

import tomllib

import pytest
import tomli_w
import torch

from egc.api import EGC, load
from egc.training.run import Run

JEM = {
    "objective": {"kind": "jem", "options": {"steps": 3, "buffer": 32}},
    "network": {"groups": 0, "readout": "mean"},
}
QUIET = {"report": False, "progress": False}


@pytest.mark.parametrize("changes", [JEM, {"objective": {"kind": "classifier"}}])
def test_an_old_run_is_the_same_run(tiny_config, tmp_path, changes):
    config = tiny_config.replace(**changes)
    run = Run(tmp_path / "run")
    EGC.fit(preset=config.replace(train={"steps": 2}), run=run.path, **QUIET)
    table = tomllib.loads(run.config.read_text())
    table["objective"]["sgld"] = {"steps": 20, "buffer": 10_000}
    if options := table["objective"].pop("options", {}):
        table["objective"]["sgld"] = options
    run.config.write_text(tomli_w.dumps(table))
    EGC.fit(preset=config, run=run.path, **QUIET)
    EGC.fit(preset=config, run=tmp_path / "straight", **QUIET)
    expected = load(tmp_path / "straight").net.state_dict()
    found = load(run.path).net.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
