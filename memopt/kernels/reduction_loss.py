"""Kernels of the losses, over flat arrays; scores are seen as (n, classes, inner), labels as (n, inner).

Holds true: sums accumulate in float64, in the order of the elements. Labels are checked before anything is written. A
column of scores is read for its maximum and its sum before any of it is written, so log_prob may be the bytes of the
scores, and dx those of log_prob. `mode`: 0 every loss for itself, 1 their sum, 2 their mean over the labels that count.
"""

from __future__ import annotations

import math

import numpy as np

from memopt.kernels.abi import STATUS_BAD_INDEX, STATUS_OK, register_jitable
from memopt.kernels.elementwise_scalar import exp
from memopt.kernels.local import BLOCK, block_like, fdiv, like

__all__ = ["cross_entropy", "cross_entropy_grad", "cross_entropy_log_prob", "squared_error"]


@register_jitable
def _labels_fit(labels, classes, ignored):
    strangers = 0
    for i in range(labels.size):
        if labels[i] != ignored and not 0 <= labels[i] < classes:
            strangers += 1
    return strangers == 0


@register_jitable
def _column(scores, base, classes, inner):
    """(maximum, log of the sum of exp(x - maximum)) of one column of scores."""
    peak = scores[base]
    for c in range(1, classes):
        x = scores[base + c * inner]
        peak = x if x > peak or x != x else peak
    total = 0.0
    for c in range(classes):
        total += exp(scores[base + c * inner] - peak)
    return peak, math.log(total)


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
    total, count = 0.0, 0
    for o in range(n):
        for i in range(inner):
            label = labels[o * inner + i]
            each = 0.0
            if label != ignored:
                base = o * classes * inner + i
                peak, log_sum = _column(scores, base, classes, inner)
                each = log_sum - np.float64(scores[base + label * inner] - peak)
                count += 1
            total += each
            if mode == 0:
                loss[o * inner + i] = like(each, loss[0])
    _reduced(loss, total, count, mode)
    return STATUS_OK


@register_jitable
def cross_entropy_log_prob(loss, log_prob, scores, labels, n, classes, inner, ignored, mode):
    """-log_prob[label], where log_prob = log(softmax(scores))."""
    if not _labels_fit(labels, classes, ignored):
        return STATUS_BAD_INDEX
    total, count = 0.0, 0
    for o in range(n):
        for i in range(inner):
            label = labels[o * inner + i]
            base = o * classes * inner + i
            peak, log_sum = _column(scores, base, classes, inner)
            each = 0.0
            if label != ignored:
                each = log_sum - np.float64(scores[base + label * inner] - peak)
                count += 1
            for c in range(classes):
                at = base + c * inner
                log_prob[at] = like(np.float64(scores[at] - peak) - log_sum, log_prob[0])
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
    for o in range(n):
        for i in range(inner):
            label = labels[o * inner + i]
            share = 0.0 if label == ignored else (np.float64(dy[o * inner + i]) if mode == 0 else whole)
            base = o * classes * inner + i
            for c in range(classes):
                at = base + c * inner
                hit = 1.0 if c == label else 0.0
                dx[at] = like((np.float64(exp(log_prob[at])) - hit) * share, dx[0])
    return STATUS_OK


@register_jitable
def squared_error(loss, x, target, mode):
    """(x - target)^2."""
    total, block = 0.0, block_like(x)
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
                total += np.float64(block[i])
    _reduced(loss, total, x.size, mode)
    return STATUS_OK
