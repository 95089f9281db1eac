"""The picture of a plan: time across, offset up, a box a buffer. matplotlib (the extra `plot`) is imported on use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from memopt.errors import OptionError, PackingInputError
from memopt.packing.problem import PackingPlan

__all__ = ["plot_packing"]

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_FEW = 60  # up to this many buffers their ids are written into the boxes


def plot_packing(plan: PackingPlan, path: str | os.PathLike[str], title: str = "") -> None:
    """Draw `plan` to `path`; the ending chooses the format. `OptionError`: no matplotlib, or another ending."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("plots need matplotlib: install it with  pip install 'memopt[plot]'") from None
    if not plan.offsets and plan.problem.buffers:
        raise PackingInputError("there is nothing to draw: the plan has no placement")
    figure = Figure(figsize=(9.0, 5.2), layout="constrained")
    known = figure.canvas.get_supported_filetypes()
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in known:
        raise OptionError(f"cannot plot to {str(path)!r}: the ending is not one of {', '.join(sorted(known))}")
    _draw(figure.subplots(), plan, title)
    figure.savefig(path, dpi=120)


def _draw(axes: Any, plan: PackingPlan, title: str) -> None:
    top = max(plan.height, plan.lower_bound, 1)
    unit, scale = next(((name, size) for name, size in _UNITS if top >= 4 * size), ("bytes", 1))
    boxes = [
        (lower, upper, plan.offsets[buffer.id] / scale, buffer.size / scale, buffer.id)
        for buffer in plan.problem.buffers
        if buffer.active
        for lower, upper in buffer.pieces
    ]
    _boxes(axes, boxes)
    _live(axes, boxes)
    axes.axhline(plan.height / scale, color="#D55E00", lw=1.2, ls="--", label=f"height {plan.height:,}")
    axes.axhline(plan.lower_bound / scale, color="#0072B2", lw=1.2, ls=":", label=f"lower bound {plan.lower_bound:,}")
    axes.set_ylim(0, top / scale * 1.16)
    axes.set_xlabel("time", fontsize=9)
    axes.set_ylabel(f"offset, {unit}", fontsize=9)
    axes.set_title(title or f"{len(plan.problem)} buffers, {plan.status}", fontsize=10, loc="left")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="upper right", ncols=3, framealpha=0.9, edgecolor="none")


def _boxes(axes: Any, boxes: list[tuple[int, int, float, float, str]]) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    corners = [[(a, at), (b, at), (b, at + size), (a, at + size)] for a, b, at, size, _ in boxes]
    palette = colormaps["tab20c"]
    faces = [palette(i * 7 % 20) for i in range(len(boxes))]
    edge = 0.4 if len(boxes) < 2000 else 0.0
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors="#333333", linewidths=edge))
    if boxes:
        axes.set_xlim(min(box[0] for box in boxes), max(box[1] for box in boxes))
    if len(boxes) <= _FEW:
        for a, b, at, size, name in boxes:
            axes.text((a + b) / 2, at + size / 2, name, ha="center", va="center", fontsize=6, clip_on=True)


def _live(axes: Any, boxes: list[tuple[int, int, float, float, str]]) -> None:
    """The sum of what is live, as a line."""
    if not boxes:
        return
    times = np.unique(np.array([box[:2] for box in boxes]))
    change = np.zeros(times.size)
    sizes = np.array([box[3] for box in boxes])
    np.add.at(change, np.searchsorted(times, [box[0] for box in boxes]), sizes)
    np.subtract.at(change, np.searchsorted(times, [box[1] for box in boxes]), sizes)
    axes.step(times, np.cumsum(change), where="post", color="black", lw=1.0, label="live")
