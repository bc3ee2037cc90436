"""The training loss: its value, its gradient, and who takes part in it."""

import pytest
import torch

from egc.api import EGC
from egc.config import Config
from egc.objectives.base import Batch
from egc.objectives.egc import EGCObjective
from tests.conftest import shaken

CLASSES = [str(i) for i in range(10)]
NETWORKS = [{"readout": "dense"}, {"readout": "pooled"}, {"kind": "pyramid"}]


def batch(count=6, dtype=torch.float32, labels=None) -> Batch:
    generator = torch.Generator().manual_seed(5)
    x0 = torch.randn(count, 1, 8, 8, generator=generator, dtype=dtype).clamp(-1, 1)
    t = torch.randint(1000, (count,), generator=generator)
    eps = torch.randn(x0.shape, generator=generator, dtype=dtype)
    labels = torch.arange(count) if labels is None else torch.tensor(labels)
    return Batch(x0, labels, t, eps, clean=x0.flip(-1))


def objective(model: EGC, **changes) -> EGCObjective:
    config = model.config.replace(objective=changes)
    return EGCObjective(model.net, model.diffusion, config.objective)


def backward(module: EGCObjective, data: Batch, pieces: int = 1) -> dict[str, float]:
    """All passes of a step, as the trainer makes them; gives the terms of its loss."""
    module.zero_grad()
    terms: dict[str, float] = {}
    for piece in data.split(pieces):
        for part in module.plan(piece, share=len(piece.x0) / len(data.x0)):
            result = module(part)
            result.loss.backward()
            for name, value in result.parts.items():
                terms[name] = terms.get(name, 0.0) + value.item()
    return terms


def gradient(module: EGCObjective, data: Batch, pieces: int = 1) -> torch.Tensor:
    backward(module, data, pieces)
    return torch.cat([p.grad.flatten() for p in module.net.parameters()])


@pytest.mark.parametrize("network", NETWORKS)
def test_loss_is_algorithm_1_written_out(tiny_config, network):
    model = shaken(EGC.build(tiny_config.replace(network=network), CLASSES))
    module = objective(model, gamma=0.3, label_smoothing=0.1)
    data = batch()
    terms = backward(module, data)

    t, eps = data.t, data.eps
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
    assert terms["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert terms["score"] == pytest.approx(score_term.item(), rel=1e-4)
    assert terms["class_noisy"] == pytest.approx(noisy.item(), rel=1e-4)
    assert terms["class_clean"] == pytest.approx(clean.item(), rel=1e-4)


@pytest.mark.parametrize("network", NETWORKS)
def test_double_backward_reaches_every_parameter(tiny_config, network):
    """With gamma 0 only the score term speaks, and yet every weight hears it."""
    model = shaken(EGC.build(tiny_config.replace(network=network), CLASSES))
    module = objective(model, gamma=0.0)
    gradient(module, batch())
    # Adding a constant to f leaves the score alone; only such weights may have no gradient.
    silent = {n for n, p in model.net.named_parameters() if not (p.grad != 0).any()}
    # The logits of a pyramid are no part of its density.
    allowed = {"readout.key.bias"} if network.get("readout") == "pooled" else set()
    assert {name for name in silent if not name.startswith("readout.pool.")} <= allowed


@pytest.mark.parametrize("network", NETWORKS)
def test_exact_gradient_equals_finite_differences(tiny_config, network):
    """The gradient of a gradient, in float64, along random directions in weight space."""
    model = shaken(EGC.build(tiny_config.replace(network=network), CLASSES))
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
            losses.append(backward(module, data)["loss"])
            with torch.no_grad():
                for p, v in zip(parameters, directions, strict=True):
                    p -= sign * 1e-6 * v
        numeric = (losses[0] - losses[1]) / 2e-6
        along = (exact * torch.cat([v.flatten() for v in directions])).sum().item()
        assert along == pytest.approx(numeric, rel=1e-4)


def test_unlabelled_images_give_no_classification_gradient(tiny):
    """All labels unknown: the same gradient as with no classification at all."""
    unknown = batch(labels=[-1] * 6)
    with_terms = gradient(objective(tiny, gamma=10.0), unknown)
    without = gradient(objective(tiny, gamma=0.0), unknown)
    assert torch.equal(with_terms, without)
    terms = backward(objective(tiny), unknown)
    assert terms["class_noisy"] == terms["class_clean"] == 0


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
    assert backward(objective(tiny, noisy_stream=False), data)["class_noisy"] == 0
    weighted = backward(objective(tiny), data)["class_noisy"]
    assert backward(objective(tiny, time_weight=False), data)["class_noisy"] > weighted
    assert backward(objective(tiny), data._replace(clean=None))["class_clean"] == 0


def test_a_batch_in_pieces_gives_the_same_gradient(tiny):
    module = objective(tiny)
    whole, pieces = gradient(module, batch()), gradient(module, batch(), pieces=3)
    assert (pieces - whole).norm() / whole.norm() < 1e-4
    assert backward(module, batch(), 3) == pytest.approx(backward(module, batch()), rel=1e-4)


@pytest.mark.parametrize("kind", ["unet", "pyramid"])
def test_recomputing_activations_changes_nothing(tiny_config, kind):
    model = shaken(EGC.build(tiny_config.replace(network={"kind": kind}), CLASSES))
    module = objective(model)
    kept = gradient(module, batch())
    model.net.backbone.checkpointing = True
    again = gradient(module, batch())
    assert (again - kept).norm() / kept.norm() < 1e-5


def test_defaults_are_the_papers():
    config = Config()
    assert config.objective.gamma == 0.001
    assert (config.train.lr, config.train.ema, config.train.clip) == (1e-4, 0.9999, 1.0)


def test_the_clean_stream_may_have_more_images_than_the_noised_one(tiny):
    """Twice as many: its loss is still their mean."""
    data = batch()
    more = data._replace(
        clean=torch.cat([data.clean, data.clean]),
        clean_labels=torch.cat([data.labels, data.labels]),
    )
    module = objective(tiny, gamma=0.3)
    assert backward(module, more, 2) == pytest.approx(backward(module, data), rel=1e-4)


def test_passes_that_only_classify_do_without_the_energy(tiny_config, monkeypatch):
    model = shaken(EGC.build(tiny_config.replace(network={"kind": "pyramid"}), CLASSES))
    module = objective(model)
    classify, score = module.plan(batch())
    assert score.eps is not None  # the last, which meets all weights

    def refuse(*_):
        raise AssertionError("an energy was computed")

    monkeypatch.setattr(type(model.net.readout), "log_densities", refuse)
    module(classify)
    with pytest.raises(AssertionError, match="energy was computed"):
        module(score)
