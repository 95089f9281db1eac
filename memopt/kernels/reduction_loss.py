"""Kernels of the losses, over flat arrays; scores are seen as (n, classes, inner), labels as (n, inner).

Holds true: sums accumulate in float64, in an order that depends on the shape only. Labels are checked before anything
is written. A column of scores is read for its maximum and its sum before any of it is written, so log_prob may be the
bytes of the scores, and dx those of log_prob. `mode`: 0 every loss for itself, 1 their sum, 2 their mean over the
labels that count.
"""

from __future__ import annotations

import math

import numpy as np

from memopt.kernels.abi import STATUS_BAD_INDEX, STATUS_OK, register_jitable
from memopt.kernels.elementwise_scalar import exp
from memopt.kernels.local import BLOCK, block_like, block_wide, fdiv, like
from memopt.kernels.reduction import exp_sums, log_softmax, tile_of

__all__ = ["cross_entropy", "cross_entropy_grad", "cross_entropy_log_prob", "squared_error"]


@register_jitable
def _labels_fit(labels, classes, ignored):
    strangers = 0
    for i in range(labels.size):
        if labels[i] != ignored and not 0 <= labels[i] < classes:
            strangers += 1
    return strangers == 0


@register_jitable
def _reduced(loss, total, count, mode):
    if mode == 1:
        loss[0] = like(total, loss[0])
    elif mode == 2:
        loss[0] = like(fdiv(total, np.float64(count)), loss[0])


@register_jitable
def cross_entropy(loss, scores, labels, n, classes, inner, ignored, mode):
    """-log(softmax(scores))[label]."""
    if not _labels_fit(labels, classes, ignored):
        return STATUS_BAD_INDEX
    peak, sums, powers = block_like(scores), block_wide(scores), block_like(scores)
    total, count = 0.0, 0
    for o in range(n):
        for i in range(0, inner, BLOCK):
            base = o * classes * inner + i
            tile = tile_of(classes, inner, i)
            exp_sums(scores, scores, base, tile, peak, sums, powers, inner == 1, False)
            for j in range(min(BLOCK, inner - i)):
                label = labels[o * inner + i + j]
                each = 0.0
                if label != ignored:
                    each = math.log(sums[j]) - np.float64(scores[base + label * inner + j] - peak[j])
                    count += 1
                total += each
                if mode == 0:
                    loss[o * inner + i + j] = like(each, loss[0])
    _reduced(loss, total, count, mode)
    return STATUS_OK


@register_jitable
def cross_entropy_log_prob(loss, log_prob, scores, labels, n, classes, inner, ignored, mode):
    """-log_prob[label], where log_prob = log(softmax(scores))."""
    if not _labels_fit(labels, classes, ignored):
        return STATUS_BAD_INDEX
    log_softmax(log_prob, scores, n, classes, inner)
    total, count = 0.0, 0
    for o in range(n):
        for i in range(inner):
            label = labels[o * inner + i]
            each = 0.0
            if label != ignored:
                each = -np.float64(log_prob[(o * classes + label) * inner + i])
                count += 1
            total += each
            if mode == 0:
                loss[o * inner + i] = like(each, loss[0])
    _reduced(loss, total, count, mode)
    return STATUS_OK


@register_jitable
def cross_entropy_grad(dx, dy, log_prob, labels, n, classes, inner, ignored, mode):
    """(exp(log_prob) - 1 at the label) * dy, divided by the number of labels that count for the mean."""
    if not _labels_fit(labels, classes, ignored):
        return STATUS_BAD_INDEX
    count = 0
    for i in range(labels.size):
        if labels[i] != ignored:
            count += 1
    whole = 0.0
    if mode != 0:
        whole = fdiv(np.float64(dy[0]), np.float64(max(count, 1) if mode == 2 else 1))
    block, shares = block_like(dx), block_wide(dx)
    for o in range(n):
        for i in range(0, inner, BLOCK):
            width = min(BLOCK, inner - i)
            at = o * inner + i
            for j in range(width):
                each = np.float64(dy[at + j]) if mode == 0 else whole
                shares[j] = 0.0 if labels[at + j] == ignored else each
            base = o * classes * inner + i
            if inner == 1:
                _row_grad(dx, log_prob, base, classes, labels[at], shares[0], block)
            else:
                for c in range(classes):
                    start = base + c * inner
                    row, out = log_prob[start : start + width], dx[start : start + width]
                    for j in range(width):
                        block[j] = exp(row[j])
                    for j in range(width):
                        hit = 1.0 if labels[at + j] == c else 0.0
                        out[j] = like((np.float64(block[j]) - hit) * shares[j], block[0])
    return STATUS_OK


@register_jitable
def _row_grad(dx, log_prob, base, classes, label, share, block):
    """One row of scores; a label outside of the classes is one that does not count."""
    chosen = np.float64(exp(log_prob[base + label])) if 0 <= label < classes else 0.0
    for c in range(0, classes, BLOCK):
        width = min(BLOCK, classes - c)
        row, out = log_prob[base + c : base + c + width], dx[base + c : base + c + width]
        for j in range(width):
            block[j] = like(np.float64(exp(row[j])) * share, block[0])
        for j in range(width):
            out[j] = block[j]
    if 0 <= label < classes:
        dx[base + label] = like((chosen - 1.0) * share, dx[base])


@register_jitable
def squared_error(loss, x, target, mode):
    """(x - target)^2."""
    total, block, sums = 0.0, block_like(x), block_wide(x)
    for j in range(BLOCK):
        sums[j] = 0.0
    for start in range(0, x.size, BLOCK):
        width = min(BLOCK, x.size - start)
        left, right = x[start : start + width], target[start : start + width]
        for i in range(width):
            block[i] = (left[i] - right[i]) * (left[i] - right[i])
        if mode == 0:
            out = loss[start : start + width]
            for i in range(width):
                out[i] = block[i]
        else:
            for i in range(width):
                sums[i] += block[i]
    for i in range(BLOCK):
        total += sums[i]
    _reduced(loss, total, x.size, mode)
    return STATUS_OK
