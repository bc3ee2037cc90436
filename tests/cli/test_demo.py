"""`egc demo`: from scratch each time, and on from where it was stopped."""

import json
import os
import signal

import pytest

from egc.api import EGC
from egc.cli import main
from egc.config import Config
from egc.training import trainer
from egc.training.run import Run
from tests.conftest import TINY


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A demonstration of four steps."""
    monkeypatch.chdir(tmp_path)
    load = Config.load
    tiny = Config.from_dict(TINY)
    monkeypatch.setattr(Config, "load", lambda name: tiny if name == "digits-demo" else load(name))


def test_a_stopped_demonstration_goes_on_and_a_finished_one_starts_again(
    quick, monkeypatch, capsys
):
    rate = trainer.learning_rate

    def stop(config, step):
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return rate(config, step)

    monkeypatch.setattr(trainer, "learning_rate", stop)
    assert main(["demo"]) == 130
    assert "The same command again goes on from there." in capsys.readouterr().err
    monkeypatch.setattr(trainer, "learning_rate", rate)

    seen = []
    fit = EGC.fit.__func__

    def watched(cls, **options):
        seen.append(Run("runs/demo").config.exists())
        return fit(cls, **options)

    monkeypatch.setattr(EGC, "fit", classmethod(watched))
    assert main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 4
    assert main(["demo", "--json"]) == 0
    assert main(["demo", "--json", "--seed", "1"]) == 0
    assert seen == [True, False, False]
