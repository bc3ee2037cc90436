"""Latents: the codec, encoding a data set, training on it, and an autoencoder of one's own."""

import json
import logging

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, VQModel
from PIL import Image

from egc.api import EGC, load
from egc.cli import main
from egc.codec import LatentCodec, make_codec, measure_scale, settle_codec
from egc.config import CodecConfig, Config
from egc.data import open_source
from egc.data.sets.latents import encode_parts, open_latents
from egc.data.sources import open_parts
from egc.errors import ConfigError, DataError, ModelError, RunError
from egc.tasks.masks import make_mask
from egc.tasks.sample import first_step, sample_steps
from egc.training.autoencoder import Recipe, train_autoencoder
from egc.training.batches import BatchStream
from egc.training.prepare import prepare
from egc.training.run import Run
from egc.training.trainer import Trainer
from tests.conftest import TINY

SIDE = 12  # of the images of `photo_folder`


def autoencoder(place, kind=AutoencoderKL, factor=2, channels=4, width=4):
    """A small one with random weights; the codes of a `VQModel` are the corners of a cube."""
    torch.manual_seed(0)
    blocks = factor.bit_length()
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * channels)
    made = kind(
        latent_channels=channels,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=(width,) * blocks,
        norm_num_groups=2,
        layers_per_block=1,
        **({"num_vq_embeddings": len(corners)} if kind is VQModel else {}),
    )
    if kind is VQModel:
        made.quantize.embedding.weight.data.copy_(corners)
    made.save_pretrained(place)
    return str(place)


@pytest.fixture
def latent_config(tmp_path, photo_folder) -> Config:
    """A tiny model on 6x6x4 latents of the 12x12 photographs."""
    return Config.from_dict(TINY).replace(
        data={
            "source": f"folder:{photo_folder}",
            "image_size": SIDE,
            "channels": 3,
            "validation": 0.25,
        },
        codec={"kind": "latent", "autoencoder": autoencoder(tmp_path / "vae")},
        network={"attention": [3]},
    )


def photos(count=5):
    return np.random.default_rng(1).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


# --- the codec -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AutoencoderKL, VQModel])
def test_the_codec_is_the_autoencoder_scaled(kind, tmp_path):
    place = autoencoder(tmp_path / "ae", kind)
    config = CodecConfig("latent", place, scale=0.5, shift=0.25, channels=4, factor=2)
    codec = LatentCodec(config, 3, SIDE)
    images = photos()
    x = codec.encode(images)
    assert x.shape == (5, *codec.shape) == (5, 4, 6, 6)

    theirs = kind.from_pretrained(place).eval()
    pixels = torch.as_tensor(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        coded = theirs.encode(pixels)
        z = coded.latent_dist.mean if kind is AutoencoderKL else coded.latents
        back = theirs.decode(z).sample
    if kind is VQModel:
        # No latent is so near to a border between codes (where a coordinate is 0) that rounding,
        # of 1e-6 on any CPU, could choose another code; and several codes are in use.
        assert z.abs().min() > 1e-4
        assert len((z > 0).permute(0, 2, 3, 1).reshape(-1, 4).unique(dim=0)) > 4
    torch.testing.assert_close(x, (z - 0.25) * 0.5)
    expected = ((back.clamp(-1, 1) + 1) * 127.5).round().permute(0, 2, 3, 1).numpy()
    assert np.abs(codec.decode(x).astype(float) - expected).max() <= 1
    # Stored latents are only shifted and scaled.
    torch.testing.assert_close(codec.encode(z), x)
    assert codec.clip is None


def test_batches_do_not_matter_to_the_codec(tmp_path, monkeypatch):
    config = CodecConfig("latent", autoencoder(tmp_path / "ae"), channels=4, factor=2)
    codec = LatentCodec(config, 3, SIDE)
    whole = codec.encode(photos())
    monkeypatch.setattr("egc.codec.PIXELS_AT_ONCE", 1)
    torch.testing.assert_close(codec.encode(photos()), whole, rtol=1e-4, atol=1e-5)


def test_pixels_can_be_differentiated_through(tmp_path):
    """As attacks on raw pixels need it."""
    config = CodecConfig("latent", autoencoder(tmp_path / "ae"), channels=4, factor=2)
    codec = LatentCodec(config, 3, SIDE)
    pixels = torch.rand(1, 3, SIDE, SIDE, requires_grad=True)
    codec.encode_pixels(pixels).sum().backward()
    assert pixels.grad.abs().sum() > 0


def test_the_scale_is_measured(latent_config):
    config, splits = prepare(None, latent_config)
    assert (config.codec.channels, config.codec.factor) == (4, 2)
    x = make_codec(config).encode(splits.train.images())
    assert float(x.std()) == pytest.approx(1, rel=0.05)
    images, _ = splits.train.take(0, 256, seed=0)
    assert measure_scale(config.replace(codec={"scale": 1.0}), images) == config.codec.scale
    given, _ = prepare(None, latent_config.replace(codec={"scale": 0.2}))
    assert given.codec.scale == 0.2


@pytest.mark.parametrize(
    ("codec", "error", "words"),
    [
        ({"autoencoder": ""}, ConfigError, "codec.autoencoder"),
        ({"autoencoder": "/nowhere/to/be/found"}, ModelError, "cannot be opened"),
        ({"factor": 5, "channels": 4}, ConfigError, "not a multiple of codec.factor = 5"),
    ],
)
def test_autoencoders_that_cannot_be_used(latent_config, codec, error, words):
    with pytest.raises(error, match=words):
        make_codec(settle_codec(latent_config.replace(codec=codec)))


def test_an_autoencoder_of_another_kind_or_shape_is_refused(latent_config, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"_class_name": "AutoencoderTiny"}')
    with pytest.raises(ModelError, match="AutoencoderTiny"):
        settle_codec(latent_config.replace(codec={"autoencoder": str(tmp_path / "other")}))
    grey = make_codec(settle_codec(latent_config.replace(data={"channels": 1})))
    with pytest.raises(ConfigError, match=r"3 channels, but data\.channels = 1"):
        grey.ready()
    codec = make_codec(latent_config.replace(codec={"channels": 3, "factor": 2}))
    with pytest.raises(ModelError, match=r"\(4, 6, 6\).*takes \(3, 6, 6\)"):
        codec.encode(photos())


def test_a_saved_model_carries_its_autoencoder(latent_config, tmp_path):
    model = EGC.build(prepare(None, latent_config)[0], ["dark", "light"])
    before = model.predict_proba(photos())
    drawn = model.sample(count=2, steps=2, progress=False).images
    model.save(tmp_path / "model")
    (tmp_path / "vae").rename(tmp_path / "gone")
    again = load(tmp_path / "model")
    np.testing.assert_allclose(again.predict_proba(photos()), before, rtol=1e-4, atol=1e-6)
    assert drawn.shape == (2, SIDE, SIDE, 3)
    redrawn = again.sample(count=2, steps=2, progress=False).images
    assert np.abs(redrawn.astype(int) - drawn).max() <= 1


def test_tasks_go_through_the_autoencoder(latent_config):
    """Pictures in, pictures out, and known pixels as they were, though latents are not pixels."""
    model = EGC.build(prepare(None, latent_config)[0], ["dark", "light"])
    quick = {"steps": 3, "progress": False}
    image = photos(1)[0]
    mask = make_mask("center", SIDE)
    filled = model.inpaint(image, mask, "dark", count=2, jumps=1, **quick).images
    np.testing.assert_array_equal(filled[:, ~mask], np.stack([image[~mask]] * 2))
    assert (filled[:, mask] != image[mask]).any()
    assert model.interpolate(images=photos(2), frames=3, **quick).images.shape == (
        3,
        SIDE,
        SIDE,
        3,
    )
    edited = model.edit(photos(2), to="light", strength=0.5, **quick)
    assert edited.after.shape == (2, SIDE, SIDE, 3)
    assert model.watch("dark", **quick).frames.shape[1:] == (SIDE, SIDE, 3)
    assert model.compose(["dark", "light"], count=1, **quick).images.shape == (1, SIDE, SIDE, 3)


@pytest.mark.parametrize("sampler", ["ddpm", "ddim", "dpm++", "unipc"])
def test_unbounded_latents_do_not_explode(latent_config, sampler):
    """A network that errs a little, on a cosine schedule, whose last level has no signal."""
    config = prepare(None, latent_config.replace(diffusion={"schedule": "cosine"}))[0]
    model = EGC.build(config, ["dark", "light"])
    model.net.eps = lambda x, t, *rest: 0.98 * x  # unit Gaussian data would have sigma_t * x
    sampling = model.sampling(steps=50, sampler=sampler)
    for step in sample_steps(model, np.array([-1, -1]), np.array([0, 1]), sampling):
        assert step.x.abs().max() < 20
    assert step.index == 49
    # Bounded models start where they always did.
    pixels = EGC.build(Config.from_dict(TINY), ["a"])
    assert first_step(pixels, sampling) == 0
    assert first_step(model, sampling) == 2


# --- stored latents ------------------------------------------------------------------------------


def encoded(config, out, **options):
    return encode_parts(open_parts(config.data), config, out, progress=False, **options)


def test_stored_latents_are_those_of_the_codec(latent_config, tmp_path):
    index = encoded(latent_config, tmp_path / "latents", flip=True, shard_images=7)
    assert index["parts"] == {"all": 20}
    assert index["shape"] == [4, 6, 6]
    (stored,) = open_latents(tmp_path / "latents")
    (photographs,) = open_parts(latent_config.data)
    assert stored.classes == photographs.classes
    np.testing.assert_array_equal(stored.labels, photographs.labels)
    codec = make_codec(settle_codec(latent_config).replace(codec={"scale": 2.0}))
    order = np.array([19, 3, 0, 7, 13])
    torch.testing.assert_close(
        codec.encode(stored.images(order)),
        codec.encode(photographs.images(order)),
        rtol=2e-3,
        atol=2e-3,
    )
    twins = stored.with_twins()
    assert len(twins) == 40
    np.testing.assert_array_equal(twins.labels, np.tile(photographs.labels, 2))
    torch.testing.assert_close(
        codec.encode(twins.images(order + 20)),
        codec.encode(photographs.images(order)[:, :, ::-1].copy()),
        rtol=2e-3,
        atol=2e-3,
    )


def test_splits_of_latents_are_those_of_the_images(latent_config, tmp_path):
    encoded(latent_config, tmp_path / "latents", flip=True)
    source = {"source": f"latents:{tmp_path / 'latents'}"}
    there = open_source(latent_config.replace(data=source).data)
    here = open_source(latent_config.data)
    for name in ("validation", "test"):
        np.testing.assert_array_equal(getattr(there, name).indices, getattr(here, name).indices)
    assert len(there.train) == 2 * len(here.train)  # twins, of training images only
    np.testing.assert_array_equal(there.train.indices[: len(here.train)], here.train.indices)


def test_encoding_goes_on_where_it_stopped(latent_config, tmp_path, monkeypatch):
    out = tmp_path / "latents"
    encoded(latent_config, tmp_path / "whole", shard_images=6)
    calls = []
    raw = LatentCodec.raw

    def fails_late(self, pixels):
        calls.append(len(pixels))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return raw(self, pixels)

    monkeypatch.setattr(LatentCodec, "raw", fails_late)
    with pytest.raises(KeyboardInterrupt):
        encoded(latent_config, out, shard_images=6)
    assert len(list(out.glob("all-0*.npy"))) == 2
    with pytest.raises(DataError, match="not complete"):
        open_latents(out)
    encoded(latent_config, out, shard_images=6)
    assert calls == [6, 6, 6, 6, 2]  # the two that were there are not made again
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_latents_that_do_not_belong_together_are_refused(latent_config, tmp_path):
    out = tmp_path / "latents"
    encoded(latent_config, out)
    with pytest.raises(RunError, match="flip was False, now True"):
        encoded(latent_config, out, flip=True)
    with pytest.raises(RunError, match="neither empty nor"):
        encoded(latent_config, tmp_path)
    whole = (out / "all-00000.npy").read_bytes()
    (out / "all-00000.npy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"all-00000\.npy.* cannot be read"):
        open_latents(out)
    with pytest.raises(DataError, match="no latents in"):
        open_latents(tmp_path / "photos")
    with pytest.raises(ConfigError, match=r'codec\.kind = "latent"'):
        encoded(latent_config.replace(codec={"kind": "pixel"}), tmp_path / "other")


def test_training_on_latents_is_training_on_their_images(latent_config, tmp_path):
    """Up to the rounding of 16 bits: the same images in the same order with the same noise."""
    encoded(latent_config, tmp_path / "latents")
    config, splits = prepare(None, latent_config)
    source = f"latents:{tmp_path / 'latents'}"
    stored_config, stored = prepare(source, latent_config)
    assert stored_config.codec.scale == pytest.approx(config.codec.scale, rel=1e-2)
    codec, cpu = make_codec(config), torch.device("cpu")
    one = BatchStream(splits.train, codec, config, cpu)(3)
    two = BatchStream(stored.train, codec, config, cpu)(3)
    torch.testing.assert_close(one.x0, two.x0, rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(one.clean, two.clean, rtol=5e-3, atol=5e-3)
    assert torch.equal(one.eps, two.eps)
    assert torch.equal(one.labels, two.labels)


def test_a_run_on_latents_from_the_command_line(latent_config, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(latent_config.replace(data={"augment": {"flip": True}}).to_toml())
    out = tmp_path / "latents"
    assert (
        main(["codec", "encode", str(file), "--out", str(out), "--flip", "--shard", "8", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["parts"] == {"all": 20}
    run = tmp_path / "run"
    train = ["train", str(file), "--run", str(run), "--set", f"data.source=latents:{out}"]
    assert main([*train, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] is not None
    assert (run / "report.html").exists()
    model = load(run)
    (tmp_path / "vae").rename(tmp_path / "gone")  # the run's model has its own
    assert model.predict(photos())[0] in ("dark", "light")
    assert main(["sample", str(run), "--count", "2", "--out", str(tmp_path / "x.png")]) == 0


def test_changes_to_pixels_are_refused_where_there_are_none(latent_config, tmp_path):
    encoded(latent_config, tmp_path / "latents")
    source = f"latents:{tmp_path / 'latents'}"
    with pytest.raises(ConfigError, match=r"data\.augment\.flip .*encode them with --flip"):
        prepare(source, latent_config.replace(data={"augment": {"flip": True}}))
    with pytest.raises(ConfigError, match=r"data\.augment_clean\.cutout changes pixels"):
        prepare(source, latent_config.replace(data={"augment_clean": {"cutout": 4}}))
    with pytest.raises(ConfigError, match=r"needs codec\.kind"):
        prepare(source, latent_config.replace(codec={"kind": "pixel"}))
    # A clean stream of its own is of pictures, and may be changed.
    clean = {"augment_clean": {"cutout": 4}, "clean_source": latent_config.data.source}
    prepare(source, latent_config.replace(data=clean))


def test_the_clean_stream_may_have_images_of_its_own(latent_config, tmp_path):
    encoded(latent_config, tmp_path / "latents")
    source = f"latents:{tmp_path / 'latents'}"
    clean = {"clean_source": latent_config.data.source, "augment_clean": {"resized_crop": 0.5}}
    config, splits = prepare(source, latent_config.replace(data=clean))
    pictures = open_source(latent_config.data).train
    codec, cpu = make_codec(config), torch.device("cpu")
    stream = BatchStream(splits.train, codec, config, cpu, clean_data=pictures)
    batch = stream(0)
    assert batch.clean.shape == batch.x0.shape
    assert not torch.equal(batch.labels, batch.clean_labels)
    assert torch.equal(batch.clean, stream(0).clean)


def test_preparing_ahead_changes_nothing(latent_config):
    config, splits = prepare(None, latent_config)
    codec, cpu = make_codec(config), torch.device("cpu")
    plain = BatchStream(splits.train, codec, config, cpu, no_label=2)
    ahead = BatchStream(splits.train, codec, config, cpu, no_label=2, ahead=2)
    for step in (0, 1, 2, 3, 1, 1, 40):
        for a, b in zip(plain(step), ahead(step), strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


# --- large images --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "factor"), [(256, 8), pytest.param(1024, 8, marks=pytest.mark.slow)]
)
def test_large_images_end_to_end(side, factor, tmp_path):
    """Encoded, trained on, drawn and classified at the paper's sizes, with small networks."""
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for index in range(2):
            pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{index}.png")
    config = Config.from_dict(TINY).replace(
        data={"source": f"folder:{tmp_path / 'photos'}", "image_size": side, "channels": 3},
        codec={
            "kind": "latent",
            "autoencoder": autoencoder(tmp_path / "vae", factor=factor, width=2),
        },
        network={"attention": [], "multipliers": [1, 1, 2]},
        train={"batch_size": 2, "steps": 1},
    )
    encoded(config, tmp_path / "latents", flip=True)
    config, splits = prepare(f"latents:{tmp_path / 'latents'}", config)
    model = EGC.build(config, splits.train.classes)
    assert model.codec.shape == (4, side // factor, side // factor)
    model.net = Trainer(model, splits.train, Run(tmp_path / "run")).train(show=False)
    samples = model.sample("a", count=1, steps=1, progress=False)
    assert samples.images.shape == (1, side, side, 3)
    assert model.predict_proba(samples.images).shape == (1, 2)


# --- an autoencoder of one's own -----------------------------------------------------------------

SMALL = {"factor": 2, "width": 4, "train_steps": 60, "batch_size": 8, "lr": 1e-2}


def test_train_codec_learns_to_give_images_back(photo_folder, tmp_path, capsys):
    out = tmp_path / "codec"
    options = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    call = ["codec", "train", f"folder:{photo_folder}", "--out", str(out), *options, "--json"]
    assert main(call) == 0
    figures = json.loads(capsys.readouterr().out)
    # Random noise around 40 or 200: its mean over a folder is off by far more. 19 here.
    assert figures["mean_absolute_error"] < 40
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 60
    assert (out / "reconstructions.png").exists()
    config = Config.from_dict(TINY).replace(
        data={"source": f"folder:{photo_folder}", "image_size": SIDE, "channels": 3},
        codec={"kind": "latent", "autoencoder": str(out)},
        network={"attention": [3]},
    )
    assert EGC.build(prepare(None, config)[0], ["a"]).codec.encode(photos()).shape == (5, 4, 6, 6)


def test_train_codec_resumes_bit_for_bit(photo_folder, tmp_path):
    data = open_source(Config().replace(data={"source": f"folder:{photo_folder}"}).data)
    recipe = Recipe.from_dict({**SMALL, "train_steps": 6, "checkpoint_every": 3})
    train_autoencoder(recipe, data, tmp_path / "whole", progress=False)
    take = type(data.train).take

    def fails(self, step, *rest):
        if step == 4:  # after the checkpoint of step 3
            raise KeyboardInterrupt
        return take(self, step, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(data.train), "take", fails)
        with pytest.raises(KeyboardInterrupt):
            train_autoencoder(recipe, data, tmp_path / "killed", progress=False)
    train_autoencoder(recipe, data, tmp_path / "killed", progress=False)
    name = "diffusion_pytorch_model.safetensors"
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_train_codec_refuses(photo_folder, tmp_path):
    data = open_source(Config().replace(data={"source": f"folder:{photo_folder}"}).data)
    with pytest.raises(ConfigError, match="1 or 2 or 4 or 8 or 16; got 3"):
        Recipe.from_dict({"factor": 3})
    with pytest.raises(ConfigError, match="12x12 cannot be divided by a factor of 8"):
        train_autoencoder(Recipe(factor=8), data, tmp_path / "out", progress=False)
    with pytest.raises(ConfigError, match="train_steps must be larger than 0"):
        Recipe.from_dict({"train_steps": 0})
    with pytest.raises(RunError, match="neither empty nor an autoencoder"):
        train_autoencoder(Recipe(factor=2), data, photo_folder, progress=False)
    recipe = Recipe.from_dict({**SMALL, "train_steps": 1})
    train_autoencoder(recipe, data, tmp_path / "out", progress=False)
    other = Recipe.from_dict({**SMALL, "train_steps": 1, "lr": 0.1})
    with pytest.raises(RunError, match=r"lr was 0\.01, now 0\.1"):
        train_autoencoder(other, data, tmp_path / "out", progress=False)


def test_hub_autoencoders_are_announced(monkeypatch, caplog):
    """Nothing is downloaded without a line about it."""
    import diffusers

    from egc import codec

    monkeypatch.setattr(
        codec, "describe_autoencoder", lambda name: {"_class_name": "AutoencoderKL"}
    )

    def no_network(*args, **options):
        raise OSError("no network here")

    monkeypatch.setattr(diffusers.AutoencoderKL, "from_pretrained", no_network)
    with caplog.at_level(logging.INFO, "egc"), pytest.raises(ModelError, match="no network"):
        codec.open_autoencoder("owner/name")
    assert "owner/name from the hub" in caplog.text
