"""The training loss: its value, its gradient, and who takes part in it."""

import pytest
import torch

from egc.api import EGC, load
from egc.config import Config
from egc.data import open_source
from egc.objectives.base import Batch
from egc.objectives.egc import EGCObjective
from egc.training.batches import BatchStream
from egc.training.run import Run
from egc.training.trainer import Trainer
from tests.conftest import shaken

CLASSES = [str(i) for i in range(10)]


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


@pytest.mark.parametrize("readout", ["dense", "pooled"])
def test_loss_is_algorithm_1_written_out(tiny_config, readout):
    model = shaken(EGC.build(tiny_config.replace(network={"readout": readout}), CLASSES))
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
            losses.append(backward(module, data)["loss"])
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


def test_paired_gradient_is_close_on_the_shipped_network():
    """... where the residual is small and has structure."""
    model = load("digits")
    model.net.train().requires_grad_(True)
    test = open_source(model.config.data).test
    real = BatchStream(test, model.codec, model.config, torch.device("cpu"))(0)
    exact = gradient(objective(model, gradient="exact"), real)
    assert backward(objective(model, gradient="exact"), real)["score"] < 0.3
    paired = gradient(objective(model, gradient="paired"), real)
    # 0.005 on every CPU tried, equal to three digits: curvature, and not rounding.
    assert (paired - exact).norm() / exact.norm() < 0.01


@pytest.mark.slow
def test_paired_gradient_is_close_on_a_trained_pooled_network(tiny_config, tmp_path):
    """The same for the other readout, whose density takes longer to learn."""
    changes = {"steps": 200, "lr": 3e-3, "batch_size": 32, "checkpoint_every": 1000}
    config = tiny_config.replace(network={"readout": "pooled", "channels": 16}, train=changes)
    data = open_source(config.data)
    model = EGC.build(config, CLASSES)
    trainer = Trainer(model, data.train, Run(tmp_path / "run"))
    trainer.train(show=False)
    assert trainer.run.read_metrics()[-1]["score"] < 0.5
    real = BatchStream(data.test, model.codec, config, torch.device("cpu"))(0)
    exact = gradient(objective(model, gradient="exact"), real)
    paired = gradient(objective(model, gradient="paired"), real)
    assert (paired - exact).norm() / exact.norm() < 0.01


def test_both_gradients_report_the_same_loss(tiny):
    exact, paired = (backward(objective(tiny, gradient=k), batch()) for k in ("exact", "paired"))
    for name, value in exact.items():
        assert paired[name] == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("kind", ["exact", "paired"])
def test_unlabelled_images_give_no_classification_gradient(tiny, kind):
    """All labels unknown: the same gradient as with no classification at all."""
    unknown = batch(labels=[-1] * 6)
    with_terms = gradient(objective(tiny, gradient=kind, gamma=10.0), unknown)
    without = gradient(objective(tiny, gradient=kind, gamma=0.0), unknown)
    assert torch.equal(with_terms, without)
    terms = backward(objective(tiny, gradient=kind), unknown)
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


@pytest.mark.parametrize("kind", ["exact", "paired"])
def test_a_batch_in_pieces_gives_the_same_gradient(tiny, kind):
    module = objective(tiny, gradient=kind)
    whole, pieces = gradient(module, batch()), gradient(module, batch(), pieces=3)
    assert (pieces - whole).norm() / whole.norm() < 1e-4
    assert backward(module, batch(), 3) == pytest.approx(backward(module, batch()), rel=1e-4)


def test_lean_passes_give_the_same_gradient(tiny):
    joined = objective(tiny, gradient="paired")
    lean = objective(tiny, gradient="paired", lean=True)
    assert [len(module.plan(batch())) for module in (joined, lean)] == [1, 3]
    a, b = gradient(joined, batch()), gradient(lean, batch())
    assert (a - b).norm() / a.norm() < 1e-3
    assert backward(lean, batch()) == pytest.approx(backward(joined, batch()), rel=1e-4)


@pytest.mark.parametrize("kind", ["exact", "paired"])
def test_recomputing_activations_changes_nothing(tiny, kind):
    module = objective(tiny, gradient=kind)
    kept = gradient(module, batch())
    tiny.net.backbone.checkpointing = True
    again = gradient(module, batch())
    assert (again - kept).norm() / kept.norm() < 1e-5


def test_defaults_are_the_papers():
    config = Config()
    assert config.objective.gamma == 0.001
    assert (config.train.lr, config.train.ema, config.train.clip) == (1e-4, 0.9999, 1.0)
    assert config.objective.gradient == "exact"
