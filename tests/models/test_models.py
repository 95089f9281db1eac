"""Built-in models: the published structures, seeded weights, activations that stay well scaled."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from memopt import models
from memopt.errors import OptionError
from memopt.ir import verify
from memopt.runtime import run_reference
from memopt.training import SGD, Momentum
from memopt.verdict import updated_params

NAMES = [info.name for info in models.list_models()]
SMALL = {"resnet18": 32, "resnet50": 32, "mobilenetv2": 32, "unet": 16, "densenet121": 32}


def small(name, **options):
    return models.build(name, image=SMALL.get(name), **options)


@pytest.mark.parametrize("name", NAMES)
def test_builds_verifies_and_has_a_description_that_fits_a_line(name):
    graph = small(name)
    verify(graph)
    assert graph.name == name
    assert graph.outputs
    info = next(one for one in models.list_models() if one.name == name)
    assert 10 < len(info.description) <= 66


@pytest.mark.parametrize("name", NAMES)
def test_activations_stay_well_scaled(name):
    graph = small(name, batch=2)
    outputs, _ = run_reference(graph, models.random_feeds(graph))
    for array in outputs.values():
        assert np.isfinite(array).all()
        assert 0.05 < np.abs(array).max() < 100
        assert array.std() > 0.01


# Weights and biases, as torchvision counts them; running statistics are not among them.
@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet18", 11_689_512), ("resnet50", 25_557_032), ("mobilenetv2", 3_504_872), ("densenet121", 7_978_856)],
)
def test_has_as_many_weights_as_the_published_network(name, count):
    graph = small(name)
    learnt = [value for value in graph.params if not value.name.endswith((".mean", ".var"))]
    assert sum(value.type.num_elements for value in learnt) == count


def test_resnet50_has_the_nodes_of_the_onnx_file():
    ops = Counter(node.op for node in models.build("resnet50", image=64).nodes)
    assert ops == {
        "Conv": 53,
        "BatchNormalization": 53,
        "Relu": 49,
        "Add": 16,
        "MaxPool": 1,
        "GlobalAveragePool": 1,
        "Flatten": 1,
        "Gemm": 1,
    }


def test_weights_follow_the_seed_alone():
    first, again, other = (models.build("lenet", seed=seed) for seed in (7, 7, 8))
    for value in first.params:
        assert np.array_equal(first.param_data(value), again.param_data(value.name))
    assert any(not np.array_equal(first.param_data(value), other.param_data(value.name)) for value in first.params)


def test_options_reach_the_graph():
    assert models.build("resnet18", batch=3, image=40, classes=5).outputs[0].shape == (3, 5)
    assert models.build("gpt", sequence=8).outputs[0].shape == (1, 8, 1024)
    assert len(models.build("lstm", sequence=4).nodes) < len(models.build("lstm", sequence=5).nodes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "alexnet"}, "there is no built-in model 'alexnet'"),
        ({"name": "mlp", "batch": 0}, "batch=0"),
        ({"name": "unet", "image": 20}, "not a multiple of 8"),
        ({"name": "lenet", "image": 3}, "less than 4"),
        ({"name": "lenet", "layers": 3}, "the depth of lenet is fixed; of any depth: gpt, mlp"),
        ({"name": "mlp", "train": True, "loss": "hinge"}, "loss 'hinge'"),
        ({"name": "mlp", "train": True, "optimizer": "lion"}, "optimizer 'lion' is not one of momentum, sgd"),
    ],
)
def test_refuses_what_there_is_not(options, message):
    with pytest.raises(OptionError, match=message):
        models.build(**options)


def test_random_feeds_are_valid_indices_and_repeatable():
    graph = models.build("gpt", sequence=16, classes=7)
    tokens = models.random_feeds(graph, 3)["tokens"]
    assert tokens.dtype == np.int64
    assert tokens.min() >= 0
    assert tokens.max() < 7
    assert np.array_equal(tokens, models.random_feeds(graph, 3)["tokens"])


def test_fill_params_gives_data_where_there_is_none():
    graph = models.build("mlp")
    bare = graph.copy()
    bare._data.clear()
    models.fill_params(bare, 1)
    assert all(bare.param_data(value) is not None for value in bare.params)
    outputs, _ = run_reference(bare, models.random_feeds(bare))
    assert np.isfinite(outputs["logits"]).all()


# -- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_updates_every_weight_and_statistic(name):
    graph = small(name, train=True, batch=2)
    assert [value.name for value in graph.outputs] == ["loss"]
    assert graph.outputs[0].shape == ()
    updated = updated_params(graph)
    for value in graph.params:
        fixed = value.name in ("lr", "causal_mask") or value.shape == ()
        assert (value.name in updated) != fixed, value.name
        if value.name.endswith((".mean", ".var")):
            assert updated[value.name] == "statistics"


@pytest.mark.parametrize("name", ["mlp", "lenet", "gpt", "lstm", "unet"])
@pytest.mark.parametrize("loss", models.LOSSES)
def test_the_loss_falls(name, loss):
    options = {"gpt": {"sequence": 8, "layers": 1}, "lstm": {"sequence": 4}}.get(name, {})
    graph = small(name, train=True, batch=2, loss=loss, optimizer=SGD(1e-3), **options)
    feeds, state, losses = models.random_feeds(graph), None, []
    for _ in range(3):
        outputs, state = run_reference(graph, feeds, state)
        losses.append(float(outputs["loss"]))
    assert losses[2] < losses[1] < losses[0]


def test_inference_and_training_have_the_same_weights():
    plain, step = small("resnet18"), small("resnet18", train=True)
    for value in plain.params:
        assert np.array_equal(plain.param_data(value), step.param_data(value.name))


@pytest.mark.parametrize("optimizer", [*models.OPTIMIZERS, Momentum(0.1, nesterov=True)])
def test_takes_any_optimizer(optimizer):
    graph = models.build("mlp", train=True, optimizer=optimizer)
    op = {"momentum": "Momentum", "sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}.get(optimizer, "Momentum")
    assert sum(node.op == op for node in graph.nodes) == 8


def test_the_loss_alone_can_be_had():
    graph = models.build("lenet", train=True, optimizer=None)
    assert not updated_params(graph)
    assert not any(node.op.endswith("Grad") for node in graph.nodes)


def test_statistics_live_where_they_are_told_to():
    graph = small("resnet18", train=True, stats_device="host")
    assert set(graph.param_devices) == {v.name for v in graph.params if v.name.endswith((".mean", ".var"))}
    assert set(graph.param_devices.values()) == {"host"}
    assert not small("resnet18", train=True).param_devices


def test_stacks_have_any_depth():
    for name in ("gpt", "mlp"):
        sizes = [len(models.build(name, layers=layers).nodes) for layers in (1, 2, 5)]
        assert sizes[2] - sizes[1] == 3 * (sizes[1] - sizes[0]) > 0


def test_labels_are_classes():
    feeds = models.random_feeds(models.build("gpt", train=True, sequence=16, classes=3))
    assert feeds["labels"].shape == (1, 16)
    assert set(feeds["labels"].reshape(-1)) == {0, 1, 2}
    assert models.random_feeds(small("unet", train=True))["labels"].max() == 1
    options = {"train": True, "batch": 2, "sequence": 16}
    step, loss = models.build("gpt", **options), models.build("gpt", **options, optimizer=None)
    for name, array in models.random_feeds(loss).items():  # a gradient reads indices too, but not as its own
        assert np.array_equal(array, models.random_feeds(step)[name])
    assert models.random_feeds(models.build("mlp", train=True, loss="mse"))["target"].shape == (1, 10)
