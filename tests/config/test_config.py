"""The configuration: what it reads, and every mistake it refuses."""

import pytest

from egc.config import Config, list_presets
from egc.config.parse import keys
from egc.errors import ConfigError


@pytest.mark.parametrize("name", list_presets())
def test_presets_load_and_survive_a_round_trip(name, tmp_path):
    config = Config.load(name)
    path = tmp_path / "copy.toml"
    path.write_text(config.to_toml())
    assert Config.load(path) == config
    assert Config.from_dict(config.to_dict()) == config


def test_a_file_can_start_from_a_preset(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text('preset = "digits"\n[train]\nsteps = 7\nwarmup = 0\n')
    config = Config.load(path)
    assert config.train.steps == 7
    assert config.network == Config.load("digits").network


def test_settings_are_typed():
    config = Config().with_settings(
        ["train.steps=5", "data.source=folder:/a b", "network.multipliers=[1, 3]",
         "objective.clean_stream=true", "train.lr=1"]
    )  # fmt: skip
    assert config.train.steps == 5
    assert config.data.source == "folder:/a b"
    assert config.network.multipliers == (1, 3)
    assert config.objective.clean_stream is True
    assert config.train.lr == 1.0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.stepz=5", "'train.stepz'. Did you mean 'train.steps'"),
        ("trian.steps=5", "'trian'. Did you mean 'train'"),
        ("data.augment.flop=true", "'data.augment.flop'. Did you mean 'data.augment.flip'"),
        ("train.steps=-5", "train.steps must be larger than 0; got -5"),
        ("train.steps=5.5", "train.steps is a whole number; got 5.5"),
        ("train.steps=many", "train.steps is a whole number; got 'many'"),
        ("train.lr=fast", "train.lr is a number; got 'fast'"),
        ("train.ema=1.0", "train.ema must be smaller than 1"),
        ("objective.clean_stream=1", "true or false; got 1"),
        ("network.readout=dens", "Did you mean 'dense'"),
        ("network.multipliers=2", "a list such as"),
        ("network.multipliers=[]", "network.multipliers needs at least one value"),
        ("network.multipliers=[1, 0]", "network.multipliers must be larger than 0; got 0"),
        ("data.channels=2", "data.channels must be 1 or 3; got 2"),
        ("train=5", "section.key=value"),
        ("train.steps", "section.key=value"),
        ("train.steps.x=5", "holds a value, not a section"),
        ("diffusion.beta_start=0.5", "beta_start must not be larger"),
        ("train.lr=nan", "train.lr must be a finite number; got nan"),
        ("objective.gamma=inf", "objective.gamma must be a finite number; got inf"),
        ("sample.sampler=dimm", "no sampler 'dimm'. Did you mean 'ddim'"),
        ("objective.options=3", "objective.options is a table of keys; got 3"),
    ],
)
def test_mistakes_are_named(setting, words):
    with pytest.raises(ConfigError) as error:
        Config().with_settings([setting])
    assert words in str(error.value)


def test_unknown_presets_and_files(tmp_path):
    with pytest.raises(ConfigError, match=r"no preset 'digit'\. Did you mean 'digits'"):
        Config.load("digit")
    with pytest.raises(ConfigError, match="no configuration file"):
        Config.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[train\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        Config.load(tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text("train = 3\n")
    with pytest.raises(ConfigError, match="train is a section"):
        Config.load(tmp_path / "odd.toml")


def test_every_key_says_what_it_means():
    found = list(keys(Config))
    assert len({each.name for each in found}) == len(found) > 60
    assert all(each.doc and each.type for each in found)


def test_unknown_keys_are_named_before_wrong_values():
    with pytest.raises(ConfigError, match=r"train\.stepz"):
        Config.from_dict({"network": {"kind": "none such"}, "train": {"stepz": 3}})


def test_options_of_jem_are_read_from_older_files():
    """Run and model directories of before had them in a section `objective.sgld`."""
    older = {"objective": {"kind": "jem", "sgld": {"steps": 7}}}
    assert Config.from_dict(older).objective.options == {"steps": 7}
    assert Config.from_dict({"objective": {"sgld": {"steps": 7}}}).objective.options == {}
