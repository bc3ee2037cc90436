"""Every backbone and every preset: shapes, smoothness, and a few real steps of a small twin."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, VQModel
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import presets
from egc.api import EGC
from egc.config import Config, list_presets
from egc.errors import ConfigError
from egc.model import objective_of
from egc.nn.resnet import ResNet
from egc.nn.transformer import SpatialTransformer
from egc.nn.unet import level_sides
from egc.objectives.base import Batch
from egc.objectives.egc import EGCObjective
from tests.conftest import TINY, shaken

CLASSES = ["a", "b", "c"]


def tiny_with(**network) -> EGC:
    config = Config.from_dict(TINY).replace(network=network, objective={"clean_stream": True})
    return shaken(EGC.build(config, CLASSES))


RESNET = {"kind": "resnet", "attention": [], "multipliers": [1, 2], "depth": 2}
DAGGER = {"label_width": 6, "heads": 2, "head_width": 4}


@pytest.mark.parametrize("readout", ["dense", "pooled"])
@pytest.mark.parametrize("network", [RESNET, DAGGER, {"stem_stride": 2, "attention": [4]}])
def test_eps_is_the_gradient_by_finite_differences(network, readout):
    model = tiny_with(**network, readout=readout)
    net = model.net.double()
    x, v = torch.randn(2, 2, 1, 8, 8, dtype=torch.float64)
    t = torch.tensor([3, 700])
    labels = torch.tensor([2, 0])
    options = {"cond": torch.tensor([1, 3])} if network is DAGGER else {}

    def potential(x):
        f = net(x, t, **options).log_density
        log_p = net(x, t).logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
        return f + 2.0 * net.sigmas[t] * log_p

    h = 1e-5
    numeric = (potential(x + h * v) - potential(x - h * v)) / (2 * h)
    eps = net.eps(x, t, labels, 2.0, **options)
    torch.testing.assert_close(-(eps * v).sum(dim=(1, 2, 3)), numeric, rtol=1e-6, atol=1e-7)


def test_classifier_free_guidance_interpolates_the_two_predictions():
    net = tiny_with(**DAGGER).net
    x, t = torch.randn(3, 1, 8, 8), torch.tensor([5, 400, 999])
    cond = torch.tensor([0, 1, 2])
    told, untold = net.eps(x, t, cond=cond), net.eps(x, t)
    assert not torch.allclose(told, untold)
    torch.testing.assert_close(net.eps(x, t, cond=torch.full((3,), 3)), untold)
    torch.testing.assert_close(
        net.eps(x, t, cond=cond, cfg=2.5), untold + 2.5 * (told - untold), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(net.eps(x, t, cond=cond, cfg=0.0), untold, rtol=1e-4, atol=1e-5)
    guide = net.eps(x, t, labels=cond, guidance=3.0) - untold
    both = net.eps(x, t, labels=cond, guidance=3.0, cond=cond, cfg=2.5)
    torch.testing.assert_close(both, untold + 2.5 * (told - untold) + guide, rtol=1e-4, atol=1e-5)


def test_spatial_transformer_is_that_of_the_paper():
    """Against torch's own attention, with a cross-attention whose query and key are arbitrary."""
    torch.manual_seed(0)
    block = SpatialTransformer(12, heads=2, head_width=4, label_width=5, groups=3)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, label = torch.randn(2, 12, 3, 3), torch.randn(2, 1, 5)

    normed = torch.nn.functional.group_norm(x, 3, block.norm.weight, block.norm.bias, 1e-6)
    tokens = block.proj_in(normed).flatten(2).transpose(1, 2)
    own = torch.nn.MultiheadAttention(8, 2, bias=True, batch_first=True)
    with torch.no_grad():
        own.in_proj_weight.copy_(block.qkv.weight)
        own.in_proj_bias.zero_()
        own.out_proj.weight.copy_(block.out.weight)
        own.out_proj.bias.copy_(block.out.bias)
    a = block.norm1(tokens)
    tokens = tokens + own(a, a, a)[0]
    cross = torch.nn.MultiheadAttention(8, 2, kdim=5, vdim=5, bias=False, batch_first=True)
    with torch.no_grad():
        cross.v_proj_weight.copy_(block.label_value.weight)
        cross.out_proj.weight.copy_(block.label_out.weight)
    anything = torch.nn.LayerNorm(8)(tokens)
    tokens = tokens + cross(anything, label, label)[0] + block.label_out.bias
    value, gate = block.widen(block.norm2(tokens)).chunk(2, dim=-1)
    tokens = tokens + block.narrow(value * torch.nn.functional.gelu(gate))
    expected = x + block.proj_out(tokens.transpose(1, 2).reshape(2, 8, 3, 3))
    torch.testing.assert_close(block(x, label), expected, rtol=1e-4, atol=1e-5)


def test_a_wide_resnet_has_the_published_size():
    """WRN-28-10 has 36.5 M parameters; ours adds a time embedding and a wide stem and output."""
    net = ResNet(inputs=3, outputs=10, channels=160, multipliers=(1, 2, 4), depth=4, groups=32)
    convolutions = sum(p.numel() for n, p in net.named_parameters() if p.ndim == 4)
    assert 36.2e6 < convolutions < 36.9e6
    assert net(torch.zeros(1, 3, 32, 32), torch.zeros(1)).shape == (1, 10, 8, 8)


@pytest.mark.parametrize("network", [RESNET, DAGGER])
def test_gradients_agree_and_labels_are_not_leaked(network):
    """The loss by Algorithm 1 written out: the score is told the label, the classifier is not."""
    model = tiny_with(**network)
    net = model.net.double()
    config = model.config.replace(objective={"gamma": 0.3})
    module = EGCObjective(net, model.diffusion, config.objective)
    generator = torch.Generator().manual_seed(1)
    x0 = torch.randn(4, 1, 8, 8, generator=generator, dtype=torch.float64)
    eps = torch.randn(x0.shape, generator=generator, dtype=torch.float64)
    t, labels = torch.tensor([0, 300, 600, 900]), torch.tensor([0, 1, 2, -1])
    cond = torch.tensor([0, 3, 2, 3]) if network is DAGGER else None
    data = Batch(x0, labels, t, eps, clean=x0.flip(-1), cond=cond)
    for part in module.plan(data):
        module(part).loss.backward()
    found = torch.cat([p.grad.flatten() for p in net.parameters()])

    net.zero_grad()
    x_t = model.diffusion.noise(x0, t, eps).requires_grad_(True)
    with sdpa_kernel(SDPBackend.MATH):
        (s,) = torch.autograd.grad(net(x_t, t, cond).log_density.sum(), x_t, create_graph=True)
    weights = model.diffusion.alphas_cumprod[t].sqrt()
    known = torch.nn.functional.cross_entropy
    noisy = known(net(x_t, t).logits, labels, reduction="none", ignore_index=-1)
    clean = known(net(x0.flip(-1), 0).logits, labels, reduction="none", ignore_index=-1)
    loss = (s + eps).square().mean() + 0.3 * ((weights * noisy).mean() + clean.mean())
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in net.parameters()])
    error = (found - expected).norm() / expected.norm()
    assert error < 1e-9


def test_activation_checkpointing_changes_nothing():
    for network in (RESNET, DAGGER):
        model = tiny_with(**network)
        x, t = torch.randn(2, 1, 8, 8), torch.tensor([1, 500])
        before = model.net.eps(x, t)
        model.net.backbone.checkpointing = True
        torch.testing.assert_close(model.net.eps(x, t), before)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"kind": "resnet"}, "no attention"),
        ({"kind": "resnet", "attention": [], "label_width": 8}, "sees no labels"),
        ({"kind": "resnet", "attention": [], "groups": 5}, "does not divide the width 8"),
    ],
)
def test_networks_that_cannot_be_built(network, words):
    with pytest.raises(ConfigError, match=words):
        EGC.build(Config.from_dict(TINY).replace(network=network), CLASSES)


def test_a_network_that_sees_labels_needs_some():
    with pytest.raises(ConfigError, match="of data with labels"):
        EGC.build(Config.from_dict(TINY).replace(network=DAGGER), [])


# --- presets -------------------------------------------------------------------------------------

PAPER = {
    # preset: schedule, channels, depth, multipliers, attention, steps, batch, model space
    "cifar10": ("cosine", 192, 3, (1, 2, 2), (16, 8), 200_000, 128, (3, 32, 32)),
    "cifar100": ("cosine", 192, 3, (1, 2, 2), (16, 8), 200_000, 128, (3, 32, 32)),
    "cifar10-unsupervised": ("cosine", 192, 3, (1, 2, 2), (16, 8), 200_000, 128, (3, 32, 32)),
    "church256": ("linear", 256, 2, (1, 2, 2), (32, 16, 8), 200_000, 128, (4, 32, 32)),
    "celebahq256": ("linear", 256, 3, (1, 2, 3, 4), (16, 8), 100_000, 128, (3, 64, 64)),
    "imagenet256": ("linear", 384, 2, (1, 2, 4), (32, 16, 8), 700_000, 512, (4, 32, 32)),
    "imagenet256-dagger": ("linear", 384, 2, (1, 2, 4), (32, 16, 8), 700_000, 512, (4, 32, 32)),
}


@pytest.mark.parametrize("name", list_presets())
def test_presets_are_what_the_docs_say(name):
    text = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()
    assert presets.row(name) in text.splitlines(), "run python benchmarks/presets.py"


@pytest.mark.parametrize("name", PAPER)
def test_presets_have_the_papers_hyperparameters(name):
    model = presets.on_meta(name)
    config = model.config
    network, train = config.network, config.train
    assert (
        config.diffusion.schedule,
        network.channels,
        network.depth,
        network.multipliers,
        network.attention,
        train.steps,
        train.batch_size,
        model.codec.shape,
    ) == PAPER[name]
    assert (train.lr, train.ema, config.diffusion.steps) == (1e-4, 0.9999, 1000)
    if name.startswith("cifar10") and model.classes:
        assert config.objective.gamma == 0.001
    if name.startswith("imagenet"):
        assert (config.objective.gamma, config.objective.label_smoothing) == (0.005, 0.2)
        assert (config.diffusion.beta_start, config.diffusion.beta_end) == (0.00085, 0.012)
        assert (config.codec.scale, train.clip) == (0.18215, 1.0)


def twin_of(config: Config, folder, photos) -> Config:
    """The same kind of everything, a few thousand parameters large."""
    network = config.network
    levels = len(network.multipliers)
    factor = (config.codec.factor or 1) if config.codec.kind == "latent" else 1
    size = 8 * factor
    full = (config.data.image_size or 32) // factor
    start = full if config.data.source != "digits" else 8
    start = 28 if config.data.source == "fashion-mnist" else start
    before = level_sides(-(-start // network.stem_stride), levels)
    after = level_sides(-(-8 // network.stem_stride), levels)
    attention = sorted({after[before.index(side)] for side in network.attention}, reverse=True)
    changes = {
        "data": {"image_size": size, "channels": 3, "validation": 0.2},
        "network": {
            "channels": 8,
            "depth": 1,
            "attention": attention,
            "head_width": 4,
            "groups": 4,
            "label_width": min(network.label_width, 6),
        },
        "train": {"steps": 2, "batch_size": 4, "warmup": 0, "preview_every": 2},
        "sample": {"steps": 2},
    }
    if config.data.clean_source:
        changes["data"]["clean_source"] = f"folder:{photos}"
    if config.codec.kind == "latent":
        kind = VQModel if "vqvae" in config.codec.autoencoder else AutoencoderKL
        place = folder / f"{kind.__name__}{factor}"
        blocks = factor.bit_length()
        kind(
            latent_channels=config.codec.channels,
            down_block_types=("DownEncoderBlock2D",) * blocks,
            up_block_types=("UpDecoderBlock2D",) * blocks,
            block_out_channels=(4,) * blocks,
            norm_num_groups=2,
            layers_per_block=1,
        ).save_pretrained(place)
        changes["codec"] = {"autoencoder": str(place)}
    return config.replace(**changes)


@pytest.mark.parametrize("name", list_presets())
def test_a_small_twin_of_each_preset_trains_and_samples(name, tmp_path):
    rng = np.random.default_rng(0)
    photos = tmp_path / "photos"
    for label in CLASSES:
        (photos / label).mkdir(parents=True)
        for index in range(4):
            pixels = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(photos / label / f"{index}.png")
    config = twin_of(Config.load(name), tmp_path, photos)
    objective = objective_of(config)
    model = EGC.fit(f"folder:{photos}", config, run=tmp_path / "run", report=False, progress=False)
    fresh = EGC.build(model.config, model.classes, seed=config.train.seed)
    moved = [
        not torch.equal(a, b)
        for a, b in zip(model.net.parameters(), fresh.net.parameters(), strict=True)
    ]
    assert np.mean(moved) > 0.6  # zeroed branches keep the layers inside them still at first
    assert bool(model.classes) == (config.data.labels and objective.uses_labels)
    again = EGC.open(tmp_path / "run" / "model")
    images = rng.integers(0, 256, (2, *2 * (config.data.image_size,), 3), dtype=np.uint8)
    if objective.network.draws:
        drawn = again.sample(model.classes[:1] or None, count=2, progress=False).images
        assert drawn.shape == images.shape
        images = drawn
    if model.classes:
        assert again.predict_proba(images).shape == (2, 3)
    if objective.network.has_energy:
        assert np.isfinite(again.energy(images)).all()
