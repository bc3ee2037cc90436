"""The facade: load, save, predict, sample, density, and models that cannot be opened."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import egc
from egc.api import EGC, load
from egc.config import DataConfig
from egc.data import open_source
from egc.errors import ConfigError, DataError, ModelError
from egc.hub import list_models


@pytest.fixture(scope="module")
def digits() -> EGC:
    return load("digits")


@pytest.fixture(scope="module")
def test_digits():
    return open_source(DataConfig("digits")).test


@pytest.fixture
def saved(tiny, tmp_path):
    return tiny.save(tmp_path / "tiny")


def test_the_shipped_model_names_digits(digits, test_digits):
    assert "digits" in list_models()
    predicted = np.array([int(name) for name in digits.predict(test_digits.images())])
    accuracy = (predicted == test_digits.labels).mean()
    assert accuracy >= 0.98
    assert accuracy == pytest.approx(digits.facts["test_accuracy"], abs=0.003)


def test_the_shipped_model_draws_what_is_asked_for(digits):
    """Its own forward pass recognises what its backward pass drew."""
    labels = list(range(10)) * 4
    samples = digits.sample(labels, seed=100, progress=False)
    own = digits.predict_proba(samples.images).argmax(axis=1)
    assert (own == labels).mean() >= 0.9


def test_the_shipped_model_finds_noise_strange(digits, test_digits):
    images = test_digits.images(np.arange(100))
    noise = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    assert np.median(digits.energy(images)) < digits.energy(noise).min()


def test_predictions_are_probabilities(tiny, test_digits):
    images = test_digits.images(np.arange(5))
    p = tiny.predict_proba(images)
    assert p.shape == (5, 10)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    assert tiny.predict(images) == [tiny.classes[i] for i in p.argmax(axis=1)]


def test_density_and_energy(tiny, test_digits):
    images = test_digits.images(np.arange(5))
    x = tiny.codec.encode(images)
    for t in (0, 300):
        expected = tiny.net(x, t).log_density.detach().numpy()
        np.testing.assert_allclose(tiny.log_density(images, t=t), expected, rtol=1e-5)
        np.testing.assert_allclose(tiny.energy(images, t=t), -expected, rtol=1e-5)
    with pytest.raises(ConfigError, match="0 to 999; got 1000"):
        tiny.energy(images, t=1000)


def test_eps_is_the_networks(tiny):
    x, t, y = torch.randn(2, 1, 8, 8), torch.tensor([3, 700]), torch.tensor([1, 2])
    torch.testing.assert_close(tiny.eps(x, t), -tiny.net.score(x, t))
    torch.testing.assert_close(tiny.eps(x, t, y, 2.0), tiny.net.eps(x, t, y, 2.0))


def test_samples_know_where_they_come_from(tiny):
    samples = tiny.sample(["3", 5], count=5, seed=7, progress=False)
    assert samples.images.shape == (5, 8, 8, 1)
    assert samples.images.dtype == np.uint8
    assert samples.labels.tolist() == [3, 5, 3, 5, 3]
    assert samples.seeds.tolist() == [7, 8, 9, 10, 11]
    assert len(tiny.sample(count=2, progress=False)) == 2
    assert tiny.sample(progress=False).labels.tolist() == [-1]


def test_samples_are_saved_three_ways(tiny, tmp_path):
    samples = tiny.sample(["3", "5"], seed=7, progress=False)
    samples.save(tmp_path / "deep" / "grid.png")
    assert Image.open(tmp_path / "deep" / "grid.png").size[0] >= 64
    samples.save(tmp_path / "arrays.npz")
    with np.load(tmp_path / "arrays.npz") as arrays:
        np.testing.assert_array_equal(arrays["images"], samples.images)
        assert arrays["seeds"].tolist() == [7, 8]
    samples.save(tmp_path / "each")
    index = json.loads((tmp_path / "each" / "samples.json").read_text())
    assert [item["label"] for item in index["images"]] == ["3", "5"]
    first = np.asarray(Image.open(tmp_path / "each" / index["images"][0]["file"]))
    np.testing.assert_array_equal(first, samples.images[0, ..., 0])
    with pytest.raises(ConfigError, match=r"\.png, \.npz or a directory"):
        samples.save(tmp_path / "film.mp5")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"labels": "eleven"}, ModelError, "no class 'eleven'"),
        ({"labels": 10}, ModelError, "no class '10'"),
        ({"labels": -1}, ModelError, "no class '-1'"),
        ({"labels": []}, ConfigError, "empty"),
        ({"count": 0}, ConfigError, "at least 1; got 0"),
        ({"count": -3}, ConfigError, "at least 1; got -3"),
        ({"steps": -1}, ConfigError, "1 to 1000; got -1"),
        ({"steps": 0}, ConfigError, "1 to 1000; got 0"),
        ({"sampler": "euler"}, ConfigError, "no sampler 'euler'"),
        ({"guidance": -1.0}, ConfigError, "at least 0; got -1.0"),
        ({"seed": -1}, ConfigError, "at least 0; got -1"),
        ({"guidance": float("nan")}, ConfigError, "guidance must be a finite number; got nan"),
        ({"guidance": "much"}, ConfigError, "guidance is a number; got 'much'"),
        ({"count": 2.0}, ConfigError, "must be a whole number; got 2.0"),
        ({"seed": "x"}, ConfigError, "A seed must be a whole number; got 'x'"),
        ({"steps": 2.5}, ConfigError, "steps is a whole number; got 2.5"),
        ({"labels": 2.5}, ConfigError, "A label is a class's name or index"),
        ({"labels": [2.5]}, ModelError, "no class '2.5'"),
        ({"cfg": 2.0}, ConfigError, "label-conditioned"),
    ],
)
def test_sample_refuses(tiny, options, error, words):
    with pytest.raises(error, match=words):
        tiny.sample(**options, progress=False)


def test_save_and_load_give_the_same_model(tiny, saved, test_digits):
    again = load(saved)
    images = test_digits.images(np.arange(5))
    np.testing.assert_array_equal(again.predict_proba(images), tiny.predict_proba(images))
    assert (again.config, again.classes) == (tiny.config, tiny.classes)
    assert not any(p.requires_grad for p in again.net.parameters())
    half = load(tiny.save(saved.parent / "half", dtype=torch.float16))
    np.testing.assert_allclose(half.predict_proba(images), tiny.predict_proba(images), atol=0.01)
    assert next(half.net.parameters()).dtype == torch.float32
    assert "## Use" in (saved / "README.md").read_text()


def test_nothing_in_a_model_directory_is_pickled(saved):
    assert {p.suffix for p in saved.iterdir()} == {".json", ".safetensors", ".md"}


def damage_config(path):
    (path / "config.json").write_text((path / "config.json").read_text()[:-20])


def damage_weights(path):
    blob = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(blob[: len(blob) // 2])


def lose_weights(path):
    (path / "model.safetensors").unlink()


def lose_config(path):
    (path / "config.json").unlink()


def lose_a_tensor(path):
    weights = load_file(path / "model.safetensors")
    weights.pop("backbone.stem.weight")
    save_file(weights, path / "model.safetensors")


def reshape_a_tensor(path):
    weights = load_file(path / "model.safetensors")
    weights["backbone.stem.weight"] = torch.zeros(3, 3)
    save_file(weights, path / "model.safetensors")


def add_a_tensor(path):
    weights = load_file(path / "model.safetensors")
    save_file({**weights, "stowaway": torch.zeros(1)}, path / "model.safetensors")


def change_format(path):
    about = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**about, "format": 99}))


def unknown_key(path):
    about = json.loads((path / "config.json").read_text())
    about["config"]["network"]["wings"] = 2
    (path / "config.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (damage_config, "config.json is damaged"),
        (damage_weights, "model.safetensors is damaged"),
        (lose_weights, "no model.safetensors"),
        (lose_config, "no config.json"),
        (lose_a_tensor, "lacks 'backbone.stem.weight'"),
        (reshape_a_tensor, r"shape \(3, 3\), but its config.json says \(8, 1, 3, 3\)"),
        (add_a_tensor, "'stowaway'"),
        (change_format, "format 99; this version of EGC reads 1"),
        (unknown_key, "network.wings"),
    ],
)
def test_a_corrupt_model_is_refused(saved, harm, words):
    harm(saved)
    with pytest.raises(ModelError, match=words):
        load(saved)


def test_unknown_models(monkeypatch):
    with pytest.raises(ModelError, match=r"no model 'digit'.*Did you mean 'digits'"):
        load("digit")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="no directory 'nobody/nothing', and no model"):
        load("nobody/nothing")


def test_a_hub_id_is_fetched(saved, monkeypatch):
    import huggingface_hub

    asked = []

    def fetch(hub_id, allow_patterns):
        asked.append((hub_id, tuple(allow_patterns)))
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert load("someone/digits-egc").classes == [str(i) for i in range(10)]
    patterns = ("config.json", "model.safetensors", "README.md", "autoencoder/*")
    assert asked == [("someone/digits-egc", patterns)]


def test_fit_on_arrays_and_without_a_run_directory(tiny_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    settings = ["data.channels=3", "train.steps=2", "train.preview_every=2"]
    model = EGC.fit(
        (images, np.arange(40) % 2), tiny_config, settings=settings, report=False, progress=False
    )
    assert model.classes == ["0", "1"]
    assert model.codec.shape == (3, 8, 8)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="Data is a source"):
        EGC.fit(3.5, tiny_config)


def test_unsupervised_from_a_folder(photo_folder, tiny_config, tmp_path):
    """No labels: trains, samples and has energies, and says why it cannot name."""
    settings = ["data.image_size=8", "data.channels=3", "train.steps=2"]
    source = f"folder:{photo_folder / 'dark'}"
    model = EGC.fit(source, tiny_config, tmp_path / "run", settings, progress=False)
    assert model.classes == []
    assert load(tmp_path / "run").sample(count=2, progress=False).images.shape == (2, 8, 8, 3)
    assert model.energy(photo_folder / "dark").shape == (10,)
    with pytest.raises(ModelError, match="trained without labels"):
        model.predict(photo_folder / "dark")
    with pytest.raises(ModelError, match="trained without labels"):
        model.sample("dark")


def test_lazy_names():
    assert egc.Config is not None
    assert "load" in dir(egc)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = egc.nothing


def test_samples_carry_how_they_were_made(tiny, tmp_path):
    samples = tiny.sample(["3", "5"], seed=7, guidance=2, sampler="dpm++", steps=3, progress=False)
    settings = {"sampler": "dpm++", "steps": 3, "guidance": 2.0, "cfg": 1.0, "seed": 7}
    assert samples.settings() == settings
    samples.save(tmp_path / "grid.png")
    embedded = json.loads(Image.open(tmp_path / "grid.png").text["egc"])
    assert embedded == {"labels": ["3", "5"], "seeds": [7, 8], **settings}
    samples.save(tmp_path / "each")
    index = json.loads((tmp_path / "each" / "samples.json").read_text())
    assert index.items() >= settings.items()
    one = Image.open(tmp_path / "each" / index["images"][1]["file"])
    assert json.loads(one.text["egc"]) == {"labels": ["5"], "seeds": [8], **settings, "seed": 8}
    how = {name: settings[name] for name in ("sampler", "steps", "guidance")}
    again = tiny.sample(embedded["labels"][1], seed=embedded["seeds"][1], progress=False, **how)
    assert abs(again.images[0].astype(int) - samples.images[1]).max() <= 1


def test_devices_that_are_not_there_are_one_sentence(tiny):
    with pytest.raises(ConfigError, match="no device 'warp' here"):
        tiny.to("warp")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no device 'cuda' here"):
            load("digits", "cuda")


def test_eps_wants_tensors_of_indices(tiny):
    with pytest.raises(ConfigError, match=r"tensor of class indices.*got str"):
        tiny.eps(torch.randn(1, 1, 8, 8), 5, labels="3")


def test_saved_files_can_be_read_by_others(saved):
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in saved.iterdir())


def test_opening_initialises_no_weights(saved, monkeypatch):
    """They are overwritten anyway."""
    called = []
    monkeypatch.setattr(torch.nn.init, "kaiming_uniform_", lambda w, **_: called.append(w.device))
    load(saved)
    assert {device.type for device in called} <= {"meta"}


def test_networks_say_what_they_can_do(tiny_config):
    abilities = {"denoises", "classifies", "has_energy", "draws"}
    expected = {
        "egc": abilities,
        "classifier": {"classifies", "has_energy"},
        "jem": {"classifies", "has_energy", "draws"},
        "ddpm": {"denoises", "draws"},
    }
    for kind, can in expected.items():
        model = EGC.build(tiny_config.replace(objective={"kind": kind}), ["a", "b"])
        assert {ability for ability in abilities if getattr(model.net, ability)} == can, kind
        for ability in abilities - can:
            with pytest.raises(ModelError, match="cannot"):
                model.needs(ability)
    assert not isinstance(EGC.build(tiny_config.replace(objective={"kind": "ddpm"}), []).net,
                          egc.EnergyModel)  # fmt: skip
