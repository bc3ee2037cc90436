"""The network's two directions, against finite differences and against themselves."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from egc.api import EGC
from egc.energy import EnergyModel
from egc.errors import ConfigError
from egc.nn.readouts import DenseReadout, Joint, PooledReadout
from egc.nn.unet import UNet, attends, level_sides
from tests.conftest import shaken

CLASSES = [str(i) for i in range(10)]


@pytest.fixture(params=["dense", "pooled"])
def model(request, tiny_config) -> EGC:
    config = tiny_config.replace(network={"readout": request.param})
    return shaken(EGC.build(config, CLASSES))


def inputs(count=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, 8, 8, generator=generator, dtype=dtype)
    return x, torch.tensor([0, 400, 999, 30, 700])[:count], torch.tensor([3, 1, 4, 1, 5])[:count]


def test_score_is_the_gradient_of_the_log_density(model):
    """Central finite differences in float64, in random directions and along single pixels."""
    net = model.net.double()
    x, t, _ = inputs(dtype=torch.float64)
    score = net.score(x, t)
    generator = torch.Generator().manual_seed(2)
    directions = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    for pixel in (0, 27, 63):
        direction = torch.zeros_like(x).flatten(1)
        direction[:, pixel] = 1
        directions.append(direction.view_as(x))
    h = 1e-5
    for v in directions:
        with torch.no_grad():
            numeric = (net(x + h * v, t).log_density - net(x - h * v, t).log_density) / (2 * h)
        torch.testing.assert_close((score * v).sum(dim=(1, 2, 3)), numeric, rtol=1e-6, atol=1e-8)


def test_guided_eps_is_the_sum_of_two_gradients(model):
    """... of the log-density's and of sigma_t times the label's."""
    net = model.net.double()
    x, t, y = inputs(dtype=torch.float64)
    x.requires_grad_(True)
    joint = net(x, t)
    (of_density,) = torch.autograd.grad(joint.log_density.sum(), x, retain_graph=True)
    log_p = joint.logits.log_softmax(1).gather(1, y[:, None]).sum()
    sigma = model.diffusion.sigmas[t][:, None, None, None]
    # Scale the label's gradient outside of autograd: images do not mix, so this is exact.
    (of_label,) = torch.autograd.grad(log_p, x)
    expected = -(of_density + 2.5 * sigma * of_label)
    torch.testing.assert_close(net.eps(x, t, y, guidance=2.5), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("guided", [False, True])
def test_eps_costs_one_forward_and_one_backward(tiny, monkeypatch, guided):
    calls = {"forward": 0, "backward": 0}
    real = torch.autograd.grad

    def counting(*args, **kwargs):
        calls["backward"] += 1
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", counting)
    tiny.net.backbone.register_forward_hook(lambda *_: calls.update(forward=calls["forward"] + 1))
    x, t, y = inputs()
    tiny.net.eps(x, t, y if guided else None, guidance=3.0)
    assert calls == {"forward": 1, "backward": 1}


def test_label_minus_one_and_guidance_zero_are_unguided(tiny):
    x, t, y = inputs()
    free = tiny.net.eps(x, t)
    torch.testing.assert_close(tiny.net.eps(x, t, y, guidance=0.0), free)
    mixed = tiny.net.eps(x, t, torch.tensor([3, -1, 4]), guidance=5.0)
    torch.testing.assert_close(mixed[1], free[1])
    assert not torch.allclose(mixed[0], free[0])


def test_scoring_works_under_no_grad_and_keeps_no_graph(tiny):
    x, t, _ = inputs()
    with torch.no_grad():
        score = tiny.net.score(x, t)
    assert not score.requires_grad
    assert all(p.grad is None for p in tiny.net.parameters())
    assert not x.requires_grad


def read(readout, feature_map):
    """A readout of the map alone, asked with some image and noise level."""
    return readout(feature_map, feature_map, torch.zeros(len(feature_map), dtype=torch.long))


def test_pooled_log_density_is_logsumexp_of_its_logits():
    readout = PooledReadout(10, 16, 8)
    joint = read(readout, torch.randn(4, 16, 5, 5))
    assert torch.equal(joint.log_density, joint.logits.logsumexp(dim=1))


def test_pooled_logits_are_an_attention_pool_asked_by_the_mean():
    """Against PyTorch's own multi-head attention with the same weights."""
    readout = PooledReadout(10, 16, 8)
    tokens = torch.randn(4, 25, 16)
    oracle = nn.MultiheadAttention(16, num_heads=2, batch_first=True)
    parts = (readout.query, readout.key, readout.value)
    with torch.no_grad():
        oracle.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        oracle.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        oracle.out_proj.weight.copy_(torch.eye(16))
        oracle.out_proj.bias.zero_()
    mean = tokens.mean(dim=1, keepdim=True)
    every = torch.cat([mean, tokens], dim=1)
    expected = readout.out(oracle(mean, every, every)[0][:, 0])
    feature_map = tokens.transpose(1, 2).reshape(4, 16, 5, 5)
    torch.testing.assert_close(read(readout, feature_map).logits, expected)


def test_dense_readout_by_hand():
    """Position by position, in plain Python."""
    feature_map = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    joint = read(DenseReadout(3), feature_map)
    for b in range(2):
        positions = [feature_map[b, :, i, j] for i in range(2) for j in range(2)]
        density = sum(torch.log(torch.exp(p).sum()) for p in positions)
        mean = sum(positions) / 4
        tokens = [mean, *positions]
        weights = torch.softmax(torch.stack([mean @ token for token in tokens]) / 3**0.5, dim=0)
        logits = sum(w * token for w, token in zip(weights, tokens, strict=True))
        torch.testing.assert_close(joint.log_density[b], density)
        torch.testing.assert_close(joint.logits[b], logits)


def test_log_joint_sums_to_the_log_density(tiny):
    x, t, _ = inputs()
    joint = tiny.net(x, t)
    every = torch.stack([joint.log_joint(torch.full((3,), c)) for c in range(10)])
    torch.testing.assert_close(every.logsumexp(dim=0), joint.log_density)


def test_fused_and_plain_attention_agree(tiny):
    """Training uses the plain kernel, sampling the fused one."""
    x, t, _ = inputs()
    fused = tiny.net.score(x, t)
    with sdpa_kernel(SDPBackend.MATH):
        plain = tiny.net.score(x, t)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [7, 8, 13, 28])
@pytest.mark.parametrize("multipliers", [(1,), (1, 2), (1, 2, 3)])
def test_unet_takes_any_size_and_shape(size, multipliers):
    net = UNet(
        inputs=3, outputs=5, image_size=size, channels=8, multipliers=multipliers, depth=2,
        attention=(size,), head_width=4, groups=4,
    )  # fmt: skip
    x = torch.randn(2, 3, size, size)
    assert net(x, torch.tensor([0, 999])).shape == (2, 5, size, size)


def test_unet_depends_on_time_and_on_every_input_pixel(tiny):
    x, _, _ = inputs()
    backbone = tiny.net.backbone
    assert not torch.allclose(
        backbone(x, torch.tensor([0] * 3)), backbone(x, torch.tensor([9] * 3))
    )
    assert (tiny.net.score(x, 5) != 0).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": 3}, "network.groups = 3"),
        ({"head_width": 5}, "network.head_width = 5"),
    ],
)
def test_unet_refuses_what_cannot_be_built(tiny_config, change, words):
    config = tiny_config.replace(
        network={k: list(v) if isinstance(v, tuple) else v for k, v in change.items()}
    )
    with pytest.raises(ConfigError, match=words):
        EGC.build(config, CLASSES)


def test_network_without_label_embedding_refuses_cond(tiny):
    x, t, y = inputs()
    with pytest.raises(ConfigError, match="no label embedding"):
        tiny.net(x, t, cond=y)


def test_energy_model_takes_any_backbone():
    """The contract of a backbone is (x, t, cond) -> map; here the map is the image itself."""

    class Same(nn.Module):
        def forward(self, x, t, cond=None):
            return x

    net = EnergyModel(Same(), DenseReadout(2), torch.linspace(0.1, 1, 10))
    x = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(net.score(x, 3), F.softmax(x, dim=1))


def test_log_prob_is_the_scaled_density_plus_weighted_labels(model):
    net = model.net.double()
    x, t, y = inputs(dtype=torch.float64)
    with torch.no_grad():
        joint = net(x, t)
        plain, guided = net.log_prob(x, t), net.log_prob(x, t, y, guidance=2.5)
        both = net.log_prob(x, t, torch.stack([y, y.flip(0)], 1), torch.tensor([1.0, -3.0]))
    sigma = net.sigmas[t].double()
    log_p = joint.logits.log_softmax(1)
    first, second = (log_p.gather(1, labels[:, None])[:, 0] for labels in (y, y.flip(0)))
    torch.testing.assert_close(plain, joint.log_density / sigma)
    torch.testing.assert_close(guided, plain + 2.5 * first)
    torch.testing.assert_close(both, plain + first - 3 * second)


def test_eps_is_minus_sigma_times_the_gradient_of_log_prob(model):
    """By finite differences, guided to several classes at once."""
    net = model.net.double()
    x, t, y = inputs(dtype=torch.float64)
    labels, weights = torch.stack([y, y.flip(0)], 1), torch.tensor([2.0, -1.0])
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    h = 1e-5
    with torch.no_grad():
        after, before = (net.log_prob(x + s * h * v, t, labels, weights) for s in (1, -1))
    slope = (net.eps(x, t, labels, weights) * v).sum(dim=(1, 2, 3))
    expected = -net.sigmas[t].double() * (after - before) / (2 * h)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-7)


def test_a_readout_sees_all_maps_the_image_and_the_noise_level():
    """As networks need that read an energy at every level, and anchor it in x."""

    class TwoMaps(nn.Module):
        def forward(self, x, t, cond=None):
            return [2 * x, F.avg_pool2d(x, 2)]

    class Anchored(nn.Module):
        def forward(self, maps, x, t):
            fine, coarse = maps
            anchor = -0.5 * t * x.square().sum(dim=(1, 2, 3))
            return Joint(anchor + fine.sum(dim=(1, 2, 3)), coarse.mean(dim=(2, 3)))

    net = EnergyModel(TwoMaps(), Anchored(), torch.ones(10))
    x = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(net.score(x, 3), 2 - 3 * x)
    assert net(x, 3).logits.shape == (3, 2)


def test_logits_alone_are_those_of_the_joint_model(model):
    x, t, _ = inputs()
    with torch.no_grad():
        torch.testing.assert_close(model.net.logits(x, t), model.net(x, t).logits)


@pytest.mark.parametrize("size", [8, 12, 24, 28, 48, 64, 128])
def test_attention_is_placed_for_any_size(size):
    """Wanted at sides 16 and 8, it is at the levels of about those sides."""
    sides = level_sides(size, 3)
    found = [side for side in sides if attends(side, (16, 8))]
    near = [s for s in sides if 16 / 2**0.5 <= s <= 16 * 2**0.5 or 8 / 2**0.5 <= s <= 8 * 2**0.5]
    assert found == near
    net = UNet(
        inputs=1, outputs=2, image_size=size, channels=8, multipliers=(1, 1, 1), depth=1,
        attention=(16, 8), head_width=8, groups=4,
    )  # fmt: skip
    attended = [stage.attention is not None for stage in net.down if hasattr(stage, "attention")]
    assert attended == [side in found for side in sides]
