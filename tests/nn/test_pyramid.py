"""The network made for its gradient, and the Gaussian anchor it starts from."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from egc.api import EGC
from egc.config import Config
from egc.errors import ConfigError
from egc.nn.anchor import GaussianAnchor, cosines
from tests.conftest import shaken

CLASSES = [str(i) for i in range(10)]
T = torch.tensor([0, 40, 400, 700, 999])


def pyramid(config: Config, classes=CLASSES, **network) -> EGC:
    network = {"kind": "pyramid", **network}
    return shaken(EGC.build(config.replace(network=network), classes))


def images(count=5, channels=1, side=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, channels, side, side, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "network",
    [
        {},
        {"multipliers": [1, 2, 3], "depths": [1, 2, 1], "attention": []},
        {"stem_stride": 2, "groups": 0},
        {"label_width": 6},
        {"readout": "pool"},
        {"readout": "dense"},
    ],
)
def test_the_score_is_the_gradient_of_the_log_density(tiny_config, network):
    """By finite differences in float64, along random directions."""
    model = pyramid(tiny_config, **network)
    net, x = model.net.double(), images()
    cond = torch.tensor([0, 1, 2, 10, 10]) if net.takes_label else None
    score = net.score(x, T, cond)
    for seed in range(3):
        v = images(seed=seed + 1)
        step = 1e-5
        up, down = (net(x + sign * step * v, T, cond).log_density for sign in (1, -1))
        numeric = (up - down) / (2 * step)
        torch.testing.assert_close(
            (score * v).sum(dim=(1, 2, 3)), numeric.detach(), rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (7, 3), (12, 3)])
def test_any_size_and_colour(tiny_config, side, channels):
    config = tiny_config.replace(data={"image_size": side, "channels": channels})
    net = pyramid(config).net.double()
    x = images(2, channels, side)
    assert net.eps(x, 5).shape == x.shape
    assert net.logits(x, 5).shape == (2, 10)


def test_a_label_it_is_told_changes_the_score_and_not_the_classifier(tiny_config):
    net = pyramid(tiny_config, label_width=6).net.double()
    x, t = images(2), torch.tensor([300, 300])
    one, other = (net.eps(x, t, cond=torch.full((2,), k)) for k in (1, 2))
    assert not torch.allclose(one, other)
    torch.testing.assert_close(net.logits(x, t), net.logits(x, t, torch.full((2,), 10)))


def test_without_labels_there_are_no_logits(tiny_config):
    model = pyramid(tiny_config, classes=[])
    assert model.net(images(2).float(), 5).logits.shape == (2, 0)
    assert not any(name.startswith("readout.pool") for name, _ in model.net.named_parameters())


def test_an_energy_at_every_level_reaches_the_density(tiny_config):
    model = pyramid(tiny_config, multipliers=[1, 2, 2])
    net, x = model.net.double(), images(2)
    t = torch.tensor([10, 10])
    energies = net.readout.log_densities(net.backbone(x, t), x, t)
    assert energies.shape == (2, 3)
    assert (energies < 0).all()
    total = net.anchor(x, t) + energies.sum(dim=1)
    torch.testing.assert_close(net(x, t).log_density, total)
    torch.testing.assert_close(net.log_densities(x, 10).sum(dim=1), total)


def test_what_a_noise_prediction_costs():
    """One forward and one backward pass of the encoder, and no more than the U-Net's forward."""
    of_unet = Config.load("cifar10").network
    data = {"data": {"image_size": 32, "channels": 3}}
    shape = {"channels": of_unet.channels, "multipliers": list(of_unet.multipliers),
             "attention": list(of_unet.attention)}  # fmt: skip
    twin = Config.from_dict(
        {**data, "network": {**shape, "depth": of_unet.depth}, "objective": {"kind": "ddpm"}}
    )
    config = Config.from_dict(
        {**data, "network": Config.load("cifar10-pyramid").to_dict()["network"]}
    )
    model = EGC.build(config, CLASSES, device="meta")
    forward, theirs = model.size()["mflop_per_image"], EGC.build(twin, [], device="meta").size()
    counter = FlopCounterMode(display=False)
    with counter:
        x = torch.zeros(1, 3, 32, 32, device="meta", requires_grad=True)
        model.net.requires_grad_(False)
        f = model.net(x * 1, torch.zeros(1, dtype=torch.long, device="meta")).log_density
        torch.autograd.grad(f.sum(), x)
    eps = counter.get_total_flops() / 1e6
    assert eps == pytest.approx(2 * forward, rel=0.02)
    assert 0.9 * theirs["mflop_per_image"] < eps <= theirs["mflop_per_image"]
    assert model.size()["mflop_classify"] < forward


def test_positions_add_up_to_the_logits(tiny_config):
    net = pyramid(tiny_config).net.double()
    x, t = images(3), torch.tensor([0, 0, 0])
    local = net.readout.local_logits(net.backbone(x, t))
    assert local.shape == (3, 10, 4, 4)
    torch.testing.assert_close(local.mean(dim=(2, 3)), net.logits(x, t))


def test_wrong_shapes_are_refused(tiny_config):
    for network, words in (
        ({"kind": "unet", "readout": "levels"}, 'take kind = "pyramid"'),
        ({"depths": [1, 1, 1]}, "one depth a level"),
        ({"groups": 3}, "does not divide the width"),
    ):
        with pytest.raises(ConfigError, match=words):
            pyramid(tiny_config, **network)


def measured(data, sigmas):
    anchor = GaussianAnchor(tuple(data.shape[1:]), sigmas).double()
    anchor.measure([data[:100], data[100:]])
    return anchor


def test_cosines_are_orthonormal():
    matrix = cosines(7).double()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(7, dtype=torch.float64), atol=1e-6,
                               rtol=0)  # fmt: skip


def test_the_anchor_is_exact_on_gaussian_data(tiny_config):
    """Noised N(m, diag v) in the frequencies is Gaussian again; its score is written out."""
    model = pyramid(tiny_config)
    net, diffusion = model.net.double(), model.diffusion
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(1, 8, 8, generator=generator, dtype=torch.float64)
    variance = torch.rand(1, 8, 8, generator=generator, dtype=torch.float64) + 0.1
    net.anchor.mean.copy_(mean)
    net.anchor.variance.copy_(variance)
    for energy in net.readout.energies:
        torch.nn.init.zeros_(energy.out.weight)
        torch.nn.init.zeros_(energy.out.bias)
    x, t = images(), T
    abar = diffusion.alphas_cumprod[t].double()
    basis = torch.kron(cosines(8), cosines(8)).double()  # pixels (row by row) to frequencies
    for index in range(len(x)):
        covariance = abar[index] * basis.T @ torch.diag(variance.flatten()) @ basis
        covariance += (1 - abar[index]) * torch.eye(64, dtype=torch.float64)
        away = x[index].flatten() - abar[index].sqrt() * mean.flatten()
        score = -torch.linalg.solve(covariance, away)
        found = net.score(x[index : index + 1], t[index : index + 1]).flatten()
        sigma = (1 - abar[index]).sqrt()
        torch.testing.assert_close(found / sigma, score, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(net.anchor.eps(x, t), net.eps(x, t), rtol=1e-6, atol=1e-6)


def test_an_untrained_network_denoises_gaussian_images_as_well_as_can_be(tiny_config):
    """With zero energies the error on N(0, v) is that of the best predictor there is."""
    model = pyramid(tiny_config)
    v, count = 0.4, 4000
    generator = torch.Generator().manual_seed(0)
    x0 = math.sqrt(v) * torch.randn(count, 1, 8, 8, generator=generator)
    model.net.anchor.measure([x0])
    assert model.net.anchor.variance.mean() == pytest.approx(v, rel=0.02)
    eps = torch.randn(x0.shape, generator=generator)
    t = torch.full((count,), 400)
    x_t = model.diffusion.noise(x0, t, eps)
    abar = float(model.diffusion.alphas_cumprod[400])
    best = abar * v / (abar * v + 1 - abar)  # E (eps - E[eps | x_t])^2
    error = (model.net.anchor.eps(x_t, t) - eps).square().mean().item()
    assert error == pytest.approx(best, rel=0.02)


def test_mean_and_spectrum_are_measured():
    generator = torch.Generator().manual_seed(0)
    waves = torch.zeros(500, 2, 6, 6, dtype=torch.float64)
    waves[:, 0, 1, 2] = 3 * torch.randn(500, generator=generator, dtype=torch.float64)
    basis = cosines(6).double()
    data = basis.T @ waves @ basis + 0.5
    anchor = measured(data, torch.linspace(0.01, 0.999, 1000))
    assert anchor.variance[0, 1, 2] == pytest.approx(float(waves[:, 0, 1, 2].var()), rel=0.02)
    others = anchor.variance.clone()
    others[0, 1, 2] = 0
    assert others.max() < 1e-4
    torch.testing.assert_close(anchor.mean, data.mean(dim=0), atol=1e-6, rtol=1e-5)


def test_the_anchor_is_stored_with_the_model(tiny_config, tmp_path):
    model = pyramid(tiny_config)
    model.net.anchor.measure([images(20).float() * 0.3 + 0.1])
    model.save(tmp_path / "model")
    again = EGC.open(tmp_path / "model")
    torch.testing.assert_close(again.net.anchor.variance, model.net.anchor.variance)
    x = images(2).float()
    torch.testing.assert_close(again.eps(x, 5), model.eps(x, 5))


def test_training_measures_the_anchor_on_its_images(tiny_config, tmp_path):
    model = EGC.fit(
        preset=tiny_config.replace(network={"kind": "pyramid"}, train={"steps": 1}),
        run=tmp_path / "run",
        report=False,
        progress=False,
    )
    from egc.data import open_source

    train = model.codec.encode(open_source(tiny_config.data).train.images())
    torch.testing.assert_close(model.net.anchor.mean, train.mean(dim=0), atol=1e-2, rtol=0)
    spread = (train - train.mean(dim=0)).square().sum(dim=(1, 2, 3)).mean()
    assert model.net.anchor.variance.sum() == pytest.approx(float(spread), rel=0.02)
