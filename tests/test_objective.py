"""The training loss: its value, its gradient, and who takes part in it."""

import pytest
import torch

from egc.api import EGC
from egc.config import Config
from egc.objectives.egc import Batch, EGCObjective
from tests.conftest import shaken

CLASSES = [str(i) for i in range(10)]


def batch(count=6, dtype=torch.float32, labels=None) -> Batch:
    generator = torch.Generator().manual_seed(5)
    x0 = torch.randn(count, 1, 8, 8, generator=generator, dtype=dtype).clamp(-1, 1)
    clean = x0.flip(-1)
    labels = torch.arange(count) if labels is None else torch.tensor(labels)
    return Batch(x0, labels, clean)


def objective(model: EGC, **changes) -> EGCObjective:
    config = model.config.replace(objective=changes)
    return EGCObjective(model.net, model.diffusion, config.objective)


def gradient(module: EGCObjective, data: Batch) -> torch.Tensor:
    module.zero_grad()
    module(data, torch.Generator().manual_seed(9)).loss.backward()
    return torch.cat([p.grad.flatten() for p in module.net.parameters()])


@pytest.mark.parametrize("readout", ["dense", "pooled"])
def test_loss_is_algorithm_1_written_out(tiny_config, readout):
    model = shaken(EGC.build(tiny_config.replace(network={"readout": readout}), CLASSES))
    module = objective(model, gamma=0.3, label_smoothing=0.1)
    data = batch()
    terms = module(data, torch.Generator().manual_seed(9))

    generator = torch.Generator().manual_seed(9)
    t = torch.randint(1000, (6,), generator=generator)
    eps = torch.randn(data.x0.shape, generator=generator)
    abar = model.diffusion.alphas_cumprod[t].float()
    x_t = abar.sqrt()[:, None, None, None] * data.x0
    x_t = x_t + (1 - abar).sqrt()[:, None, None, None] * eps
    score_term = ((model.net.score(x_t, t) + eps) ** 2).mean()

    def cross_entropy(logits):
        log_p = logits.log_softmax(1)
        target = torch.full((6, 10), 0.01)  # smoothing 0.1 over 10 classes
        target[torch.arange(6), data.labels] += 0.9
        return -(target * log_p).sum(1)

    noisy = (abar.sqrt() * cross_entropy(model.net(x_t, t).logits)).mean()
    clean = cross_entropy(model.net(data.clean, 0).logits).mean()
    expected = score_term + 0.3 * (noisy + clean)
    torch.testing.assert_close(terms.loss, expected, rtol=1e-4, atol=1e-5)
    assert set(terms.parts) == {"loss", "score", "class_noisy", "class_clean"}


@pytest.mark.parametrize("readout", ["dense", "pooled"])
def test_double_backward_reaches_every_parameter(tiny_config, readout):
    """With gamma 0 only the score term speaks, and yet every weight hears it."""
    model = shaken(EGC.build(tiny_config.replace(network={"readout": readout}), CLASSES))
    module = objective(model, gamma=0.0)
    gradient(module, batch())
    # Adding a constant to f leaves the score alone; only such weights may have no gradient.
    silent = {n for n, p in model.net.named_parameters() if not (p.grad != 0).any()}
    allowed = {"readout.key.bias"} if readout == "pooled" else set()
    assert silent <= allowed


@pytest.mark.parametrize("readout", ["dense", "pooled"])
def test_exact_gradient_equals_finite_differences(tiny_config, readout):
    """The gradient of a gradient, in float64, along random directions in weight space."""
    model = shaken(EGC.build(tiny_config.replace(network={"readout": readout}), CLASSES))
    model.net.double()
    module = objective(model)
    data = batch(dtype=torch.float64)
    exact = gradient(module, data)
    parameters = list(model.net.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        directions = [torch.randn(p.shape, generator=generator).double() for p in parameters]
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                for p, v in zip(parameters, directions, strict=True):
                    p += sign * 1e-6 * v
            losses.append(module(data, torch.Generator().manual_seed(9)).loss.item())
            with torch.no_grad():
                for p, v in zip(parameters, directions, strict=True):
                    p -= sign * 1e-6 * v
        numeric = (losses[0] - losses[1]) / 2e-6
        along = (exact * torch.cat([v.flatten() for v in directions])).sum().item()
        assert along == pytest.approx(numeric, rel=1e-4)


@pytest.mark.parametrize("readout", ["dense", "pooled"])
def test_paired_gradient_is_close_to_the_exact_one(tiny_config, readout):
    model = shaken(EGC.build(tiny_config.replace(network={"readout": readout}), CLASSES))
    data = batch(count=8)
    exact = gradient(objective(model, gradient="exact"), data)
    paired = gradient(objective(model, gradient="paired"), data)
    assert (paired - exact).norm() / exact.norm() < 0.01


def test_both_gradients_report_the_same_loss(tiny):
    values = []
    for kind in ("exact", "paired"):
        terms = objective(tiny, gradient=kind)(batch(), torch.Generator().manual_seed(9))
        values.append({name: float(value) for name, value in terms.parts.items()})
    for name in values[0]:
        assert values[1][name] == pytest.approx(values[0][name], rel=1e-3)


@pytest.mark.parametrize("kind", ["exact", "paired"])
def test_unlabelled_images_give_no_classification_gradient(tiny, kind):
    """All labels unknown: the same gradient as with no classification at all."""
    unknown = batch(labels=[-1] * 6)
    with_terms = gradient(objective(tiny, gradient=kind, gamma=10.0), unknown)
    without = gradient(objective(tiny, gradient=kind, gamma=0.0), unknown)
    assert torch.equal(with_terms, without)
    terms = objective(tiny, gradient=kind)(unknown, torch.Generator().manual_seed(0))
    assert terms.parts["class_noisy"] == 0
    assert terms.parts["class_clean"] == 0


def test_some_labels_count_for_themselves_alone(tiny):
    """Half unlabelled: the gradient is the mean of each image's own, in one half without CE."""
    labels = [0, 1, 2, -1, -1, -1]
    data = batch(labels=labels)
    mixed = gradient(objective(tiny, gamma=10.0), data)
    score_only = gradient(objective(tiny, gamma=0.0), data)
    labelled = batch()
    full = gradient(objective(tiny, gamma=10.0), labelled)
    others = batch(labels=[-1, -1, -1, 3, 4, 5])
    rest = gradient(objective(tiny, gamma=10.0), others)
    torch.testing.assert_close(mixed + rest, full + score_only, rtol=1e-3, atol=1e-4)


def test_streams_and_weights_are_options(tiny):
    data = batch()
    terms = objective(tiny, noisy_stream=False)(data, torch.Generator().manual_seed(9))
    assert "class_noisy" not in terms.parts
    weighted = objective(tiny)(data, torch.Generator().manual_seed(9)).parts["class_noisy"]
    plain = objective(tiny, time_weight=False)(data, torch.Generator().manual_seed(9))
    assert plain.parts["class_noisy"] > weighted
    no_clean = objective(tiny)(data._replace(clean=None), torch.Generator().manual_seed(9))
    assert "class_clean" not in no_clean.parts


def test_defaults_are_the_papers():
    config = Config()
    assert config.objective.gamma == 0.001
    assert (config.train.lr, config.train.ema, config.train.clip) == (1e-4, 0.9999, 1.0)
    assert config.objective.gradient == "exact"
