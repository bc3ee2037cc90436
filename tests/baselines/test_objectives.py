"""The paper's baselines: classifier, DDPM, JEM and unsupervised EGC, in the same house."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import egc
from egc.api import EGC
from egc.baselines.networks import NoisePredictor
from egc.baselines.objectives import jem
from egc.config import Config, list_presets
from egc.data import ImageSet
from egc.errors import ConfigError, ModelError
from egc.model import make_objective
from egc.nn.readouts import Joint
from egc.objectives.base import Batch
from egc.registry import objectives
from egc.tasks.predict import Predictor
from egc.tasks.sample import sample
from egc.training.prepare import prepare
from egc.training.run import Run
from egc.training.schedule import learning_rate
from egc.training.trainer import Trainer
from tests.conftest import shaken

CLASSES = [str(i) for i in range(10)]
JEM = {
    "objective": {"kind": "jem", "options": {"steps": 3, "buffer": 32}},
    "network": {"groups": 0, "readout": "mean"},
}


def rival(tiny_config: Config, kind: str, **sections) -> EGC:
    changes = JEM if kind == "jem" else {"objective": {"kind": kind}}
    config = tiny_config.replace(**changes).replace(**sections)
    return shaken(EGC.build(config, [] if kind in ("ddpm", "egc-unsupervised") else CLASSES))


def batch(count=6) -> Batch:
    generator = torch.Generator().manual_seed(5)
    x0 = torch.rand(count, 1, 8, 8, generator=generator) * 2 - 1
    t = torch.randint(1000, (count,), generator=generator)
    eps = torch.randn(x0.shape, generator=generator)
    seeds = torch.arange(count) + 7
    return Batch(x0, torch.arange(count), t, eps, clean=x0.flip(-1), seeds=seeds)


def gradient_of(model: EGC, loss: torch.Tensor) -> torch.Tensor:
    model.net.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.net.parameters()])


def test_every_kind_of_the_configuration_has_an_objective():
    assert set(objectives.names()) == {"egc", "egc-unsupervised", "classifier", "ddpm", "jem"}


def test_a_classifier_minimises_cross_entropy_of_clean_images(tiny_config):
    model = rival(tiny_config, "classifier")
    objective, data = make_objective(model), batch()
    (part,) = objective.plan(data)
    mine = gradient_of(model, objective(part).loss)
    loss = F.cross_entropy(model.net(data.clean, 0).logits, data.labels)
    torch.testing.assert_close(mine, gradient_of(model, loss))
    assert objective(part).loss.item() == pytest.approx(loss.item())


def test_a_timeless_network_does_not_see_t_and_has_no_weights_for_it(tiny_config):
    model, timed = rival(tiny_config, "classifier"), rival(tiny_config, "egc")
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(model.net(x, 0).logits, model.net(x, 900).logits)
    assert not torch.equal(timed.net(x, 0).logits, timed.net(x, 900).logits)
    assert not [name for name, _ in model.net.named_parameters() if "time" in name]
    assert model.size()["parameters"] < timed.size()["parameters"]


@pytest.mark.parametrize(("stride", "side"), [(1, 8), (2, 8), (2, 7)])
def test_a_ddpm_predicts_the_noise_of_every_pixel(tiny_config, stride, side):
    network = {"stem_stride": stride, "attention": []}
    sections = {"network": network, "data": {"image_size": side}}
    model = rival(tiny_config, "ddpm", **sections)
    data = batch()
    data = data._replace(x0=data.x0[..., :side, :side], eps=data.eps[..., :side, :side])
    objective = make_objective(model)
    (part,) = objective.plan(data)
    mine = gradient_of(model, objective(part).loss)
    x_t = model.diffusion.noise(data.x0, data.t, data.eps)
    loss = (model.net(x_t, data.t) - data.eps).square().mean()
    torch.testing.assert_close(mine, gradient_of(model, loss))
    # Every pixel's noise is a function of its own: no two are forced to be equal.
    assert model.net.eps(x_t, data.t).shape == x_t.shape
    assert model.net.eps(x_t, 3)[0].unique().numel() == side * side


def test_a_ddpm_names_nothing_and_has_no_energy(tiny_config):
    model = rival(tiny_config, "ddpm")
    images = np.zeros((2, 8, 8, 1), np.uint8)
    with pytest.raises(ModelError, match="cannot classify"):
        model.predict(images)
    with pytest.raises(ModelError, match="cannot give an energy"):
        model.energy(images)
    drawn = sample(model, count=3, sampling=model.sampling(), progress=False)
    assert drawn.images.shape == (3, 8, 8, 1)


def test_a_classifier_does_not_draw_and_says_so(tiny_config):
    model = rival(tiny_config, "classifier")
    with pytest.raises(ModelError, match="not trained to draw"):
        model.sample("3")
    with pytest.raises(ModelError, match="cannot denoise"):
        model.edit(np.zeros((1, 8, 8, 1), np.uint8), to="3")


@pytest.mark.parametrize("way", [{"ensemble": 2}, {"purify": 100}])
def test_a_timeless_network_is_not_asked_about_noise(tiny_config, way):
    with pytest.raises(ModelError, match="knows noise levels"):
        Predictor(rival(tiny_config, "classifier"), **way)


def test_jem_raises_images_and_lowers_chains(tiny_config):
    """The gradient is that of CE + f(chains) - f(images), with the chains held still."""
    model = rival(tiny_config, "jem")
    objective, data = make_objective(model), batch()
    (part,) = objective.plan(data)
    assert not part.chains.requires_grad
    mine = gradient_of(model, objective(part).loss)
    f = model.net(part.chains, 0).log_density.mean() - model.net(part.images, 0).log_density.mean()
    loss = F.cross_entropy(model.net(part.classified, 0).logits, data.labels) + f
    torch.testing.assert_close(mine, gradient_of(model, loss))
    noise = (part.images - data.x0).std()
    assert noise == pytest.approx(0.03, rel=0.2)


def test_jem_chains_go_on_from_the_buffer(tiny_config):
    model = rival(tiny_config, "jem", objective={**JEM["objective"], "options": {
        "steps": 2, "buffer": 4, "restart": 0.0, "noise": 0.0, "step_size": 0.1}})  # fmt: skip
    objective = make_objective(model)
    objective.plan(batch())
    before = objective.memory["chains"].clone()
    (part,) = objective.plan(batch(2))
    after = objective.memory["chains"]
    moved = (before != after).flatten(1).any(dim=1)
    assert 1 <= moved.sum() <= 2
    for chain in part.chains:  # each is two gradient steps from where some chain was
        x = before[:, None].flatten(0, 1)
        for _ in range(2):
            x = x + 0.1 * model.net.score(x)
        assert (x - chain).flatten(1).abs().amax(dim=1).min() < 1e-5


class Bowl(nn.Module):
    """f(x) = -|x - 1|^2 / 2 whatever the map; two classes, told apart by the sign of the mean."""

    def forward(self, map_, x, t):
        mean = x.mean(dim=(1, 2, 3))
        logits = torch.stack([-4 * mean, 4 * mean], dim=1)
        return Joint(-(x - 1).square().sum(dim=(1, 2, 3)) / 2, logits)


class Same(nn.Module):
    def forward(self, x, t, cond=None):
        return x


def test_langevin_reaches_the_known_stationary_distribution():
    """x' = x - a (x - 1) + s n is an autoregression of variance s^2 / (1 - (1 - a)^2)."""
    net = jem.JEM(Same(), Bowl(), torch.ones(10))
    net.options = jem.JEMOptions(step_size=0.3, noise=0.2)
    start, generator = torch.zeros(4000, 1, 1, 1), [torch.Generator().manual_seed(0)]
    *_, x = net.langevin(start, generator, steps=60)
    assert x.mean().item() == pytest.approx(1, abs=0.02)
    assert x.var().item() == pytest.approx(0.04 / (1 - 0.49), rel=0.06)


def test_langevin_towards_a_label_ends_there():
    net = jem.JEM(Same(), Bowl(), torch.ones(10))
    net.options = jem.JEMOptions(step_size=0.03, noise=0.0)
    start, generator = torch.zeros(2, 1, 1, 1), [torch.Generator().manual_seed(0)]
    labels = torch.tensor([0, -1])
    *_, x = net.langevin(start, generator, steps=400, labels=labels, guidance=3.0)
    guided, free = x.flatten().tolist()
    assert free == pytest.approx(1, abs=1e-3)
    # Where the pull of the bowl, 1 - x, and that of the class, 3 * 8 sigmoid(8 x), are even.
    assert 1 - guided == pytest.approx(24 / (1 + np.exp(-8 * guided)), rel=1e-3)


def test_jem_samples_depend_on_their_seed_alone(tiny_config):
    model = rival(tiny_config, "jem")
    many = model.sample(["1", "2", "3"], seed=4, progress=False)
    one = model.sample("3", seed=6, progress=False)
    # A batch of one may be computed by another kernel: a value on the edge of two grey levels
    # may round the other way.
    assert np.abs(many.images[2].astype(int) - one.images[0]).max() <= 1
    with pytest.raises(ConfigError, match="no sampler"):
        model.sample("3", sampler="ddim")


@pytest.mark.parametrize("kind", ["classifier", "ddpm", "jem", "egc-unsupervised"])
def test_each_rival_trains_saves_loads_and_resumes(tiny_config, tmp_path, kind):
    changes = JEM if kind == "jem" else {"objective": {"kind": kind}}
    config = tiny_config.replace(**changes)
    model = EGC.fit(preset=config, run=tmp_path / "run", progress=False)
    assert (model.facts["test_accuracy"] is None) == (not model.classes)
    loaded = egc.load(tmp_path / "run")
    assert type(loaded.net) is type(model.net)
    assert loaded.net.draws == (tmp_path / "run" / "samples" / "final.png").exists()

    # Stopped half-way, it ends with the same weights: chains and optimiser are kept too.
    whole, half = (_trainer(config, tmp_path / name) for name in ("whole", "half"))
    expected = whole.train(show=False).state_dict()
    half.config = half.config.__class__(**{**vars(half.config), "steps": 2})
    half.train(show=False)
    found = _trainer(config, tmp_path / "half").train(show=False).state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def _trainer(config: Config, path) -> Trainer:
    settled, splits = prepare(None, config)
    model = EGC.build(settled, splits.train.classes)
    return Trainer(model, splits.train, Run(path))


def test_sgd_resumes_too(tiny_config, tmp_path):
    config = tiny_config.replace(
        objective={"kind": "classifier"}, train={"optimizer": "sgd", "weight_decay": 1e-3}
    )
    expected = _trainer(config, tmp_path / "whole").train(show=False).state_dict()
    half = _trainer(config, tmp_path / "half")
    half.config = half.config.__class__(**{**vars(half.config), "steps": 2})
    half.train(show=False)
    found = _trainer(config, tmp_path / "half").train(show=False).state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_learning_rate_drops_where_told(tiny_config):
    drops = {"lr_decay": "drops", "lr_drops": [0.5, 0.75], "lr_drop": 0.1, "steps": 100, "lr": 1.0}
    config = tiny_config.replace(train=drops).train
    found = [learning_rate(config, step) for step in (0, 49, 50, 74, 75, 99)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("kind", ["classifier", "jem"])
def test_rivals_that_need_labels_say_so(tiny_config, kind):
    images = np.zeros((40, 8, 8, 1), np.uint8)
    config = tiny_config.replace(objective={"kind": kind})
    with pytest.raises(ConfigError, match="needs labels"):
        prepare(ImageSet.from_arrays(images), config)


@pytest.mark.parametrize("kind", ["ddpm", "egc-unsupervised"])
def test_rivals_without_labels_forget_them(tiny_config, kind):
    config, splits = prepare(None, tiny_config.replace(objective={"kind": kind}))
    assert splits.train.classes == []
    assert not config.objective.clean_stream
    images, labels = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 2
    assert prepare((images, labels), config)[1].train.classes == []


@pytest.mark.parametrize(
    ("kind", "changes", "cost"),
    [
        ("egc", {"clean_stream": False}, 6 * 10),
        ("egc", {"clean_stream": True}, 6 * 10 + 3 * 7),
        ("egc", {"clean_stream": True, "clean_share": 2.0}, 6 * 10 + 2 * 3 * 7),
        ("classifier", {}, 3 * 7),
        ("classifier", {"clean_stream": True, "clean_share": 2.0}, 2 * 3 * 7),
        ("ddpm", {}, 3 * 10),
        ("jem", {"clean_stream": False, "options": {"steps": 20}}, 46 * 10),
    ],
)
def test_what_an_image_costs_is_counted(tiny_config, kind, changes, cost):
    """The currency of equal budgets: a forward pass is 10 here, and classifying 7."""
    model = rival(tiny_config, kind, objective={"kind": kind, **changes})
    assert make_objective(model).cost(10, 7) == cost


def test_jem_is_published_as_it_is():
    config = Config.load("cifar10-jem")
    sgld, train = jem.JEMOptions(**config.objective.options), config.train
    assert (sgld.steps, sgld.step_size, sgld.noise, sgld.buffer) == (20, 1.0, 0.01, 10_000)
    assert (sgld.restart, sgld.image_noise, sgld.weight) == (0.05, 0.03, 1.0)
    assert (train.lr, train.batch_size, train.warmup) == (1e-4, 64, 1000)
    assert config.network.groups == 0  # no norms


def test_wide_resnet_28_12_has_its_size():
    config = Config.load("cifar10-wrn").replace(data={"image_size": 32, "channels": 3})
    model = EGC.build(config, CLASSES, device="meta")
    # 28-12 has 52.5 M parameters; strided skips and biases make the difference.
    assert model.size()["parameters"] == pytest.approx(52.5e6, rel=0.02)
    assert {"cifar10-classifier", "cifar10-ddpm", "fashion-mnist-jem"} <= set(list_presets())


def test_a_noise_predictor_takes_no_labels(tiny_config):
    model = rival(tiny_config, "ddpm")
    assert isinstance(model.net, NoisePredictor)
    with pytest.raises(ModelError, match="takes no labels"):
        model.net.eps(torch.zeros(1, 1, 8, 8), 0, torch.tensor([1]))
