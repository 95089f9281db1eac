"""Training steps of the built-in models: PyTorch's results (extra `peers`; skipped without it), and less memory."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.training import LARGE, SMALL, STRATEGIES, memory_rows, peer_rows
from memopt import models
from memopt.analysis import needed_bytes

#: The live peak of PyTorch 2.13 in eager mode on ResNet-50, batch 4, image 224, as `--torch-peak` measures it.
TORCH_PEAK_BYTES = 387.8 * 2**20

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch (extra peers)")


def check(row):
    assert row.loss_error < 1e-4, row
    assert row.param_error < 1e-4, row
    assert row.moved_error < 5e-2, row


def test_every_model_has_a_small_step():
    assert set(SMALL) == {info.name for info in models.list_models()}


@needs_torch
@pytest.mark.parametrize("name", ["mlp", "lenet", "unet", "gpt", "lstm"])
def test_three_steps_are_pytorchs(name):
    for row in peer_rows(name, ("share",)):
        check(row)


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("name", SMALL)
def test_three_steps_are_pytorchs_under_every_strategy(name):
    rows = list(peer_rows(name))
    assert {(row.strategy, row.transfer) for row in rows} >= {(s, t) for s in STRATEGIES for t in ("publish", "outer")}
    for row in rows:
        check(row)


@pytest.mark.parametrize("name", LARGE)
def test_heights_are_within_a_hundredth_of_the_lower_bound(name):
    most = "best" if name == "unet" else "share"  # only the U-Net has a Concat at its peak
    rows = {row.strategy: row for row in memory_rows(name, 2, ("none", "share", "best")[: 3 if most == "best" else 2])}
    for row in rows.values():
        assert row.height_bytes <= 1.01 * row.lower_bound_bytes
    assert rows[most].peak_bytes <= rows["share"].peak_bytes <= rows["none"].peak_bytes
    apart = rows[most].feed_bytes + rows[most].param_bytes
    floor = int(needed_bytes(models.build(name, train=True, **LARGE[name])).max()) - apart
    assert rows[most].peak_bytes <= floor + 1024  # a few single numbers
    if name == "resnet50":
        assert rows["share"].height_bytes < TORCH_PEAK_BYTES
