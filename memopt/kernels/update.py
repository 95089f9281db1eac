"""Kernels of the updates (optimizer steps), on flat arrays.

Holds true: scalars (rate, step) are read first, and of each block everything is read before anything is written; so
every output may be the same bytes as the input that it updates, or not: the bits are the same. Arithmetic is in the
parameter's dtype; the scalar factors are computed in float64 and rounded to it once.
"""

from __future__ import annotations

import math

import numpy as np

from memopt.kernels.abi import register_jitable
from memopt.kernels.elementwise import sqrt
from memopt.kernels.local import BLOCK, block_like, fdiv, like

__all__ = ["adam", "momentum", "sgd"]


@register_jitable
def _store(y, start, block, width):
    out = y[start : start + width]
    for i in range(width):
        out[i] = block[i]


@register_jitable
def sgd(new_param, param, grad, rate):
    """param - rate * grad."""
    block = block_like(new_param)
    step = like(rate[0], block[0])
    for start in range(0, new_param.size, BLOCK):
        width = min(BLOCK, new_param.size - start)
        p, g = param[start : start + width], grad[start : start + width]
        for i in range(width):
            block[i] = p[i] - step * g[i]
        _store(new_param, start, block, width)
    return 0


@register_jitable
def momentum(new_param, new_velocity, param, grad, velocity, rate, mu, decay, nesterov):
    """g = grad + decay * param; v = mu * velocity + g; param - rate * (g + mu * v if nesterov else v)."""
    params, velocities = block_like(new_param), block_like(new_velocity)
    step, kept, shrink = like(rate[0], params[0]), like(mu, params[0]), like(decay, params[0])
    for start in range(0, new_param.size, BLOCK):
        width = min(BLOCK, new_param.size - start)
        p, g = param[start : start + width], grad[start : start + width]
        v = velocity[start : start + width]
        for i in range(width):
            slope = g[i] + shrink * p[i]
            speed = kept * v[i] + slope
            velocities[i] = speed
            params[i] = p[i] - step * (slope + kept * speed if nesterov != 0 else speed)
        _store(new_param, start, params, width)
        _store(new_velocity, start, velocities, width)
    return 0


@register_jitable
def adam(new_param, new_m, new_v, new_step, param, grad, m, v, step, rate, beta1, beta2, epsilon, decay, decoupled):
    """One Adam step, or if `decoupled` one AdamW step; `memopt.ops.update` has the formulas."""
    params, means, squares = block_like(new_param), block_like(new_m), block_like(new_v)
    count = step[0] + 1
    lr = np.float64(rate[0])
    pace = like(fdiv(lr, 1.0 - math.pow(beta1, float(count))), params[0])
    root = like(math.sqrt(1.0 - math.pow(beta2, float(count))), params[0])
    keep1, take1 = like(beta1, params[0]), like(1.0 - beta1, params[0])
    keep2, take2 = like(beta2, params[0]), like(1.0 - beta2, params[0])
    tiny = like(epsilon, params[0])
    coupled = like(0.0 if decoupled != 0 else decay, params[0])
    shrink = like(1.0 - lr * decay if decoupled != 0 else 1.0, params[0])
    for start in range(0, new_param.size, BLOCK):
        width = min(BLOCK, new_param.size - start)
        p, g = param[start : start + width], grad[start : start + width]
        old_m, old_v = m[start : start + width], v[start : start + width]
        for i in range(width):
            slope = g[i] + coupled * p[i]
            means[i] = keep1 * old_m[i] + take1 * slope
            squares[i] = keep2 * old_v[i] + take2 * (slope * slope)
            params[i] = shrink * p[i] - pace * fdiv(means[i], fdiv(sqrt(squares[i]), root) + tiny)
        _store(new_param, start, params, width)
        _store(new_m, start, means, width)
        _store(new_v, start, squares, width)
    new_step[0] = count
    return 0
