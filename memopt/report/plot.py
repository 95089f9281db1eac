"""Pictures: each strategy's memory over time, and a plan's arenas. matplotlib (the `plot` extra) is imported on use.

Lines differ in dash and width as well as in colour, and the colours (Okabe & Ito, 2008) differ in every colour vision.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import OptionError
from memopt.plan import MemoryPlan
from memopt.report.timeline import live_bytes

__all__ = ["Curve", "arena_figure", "check_picture_path", "memory_figure", "save_figure"]

_MIB = float(1 << 20)
_STYLES: tuple[tuple[str, Any, float], ...] = (
    ("#7f7f7f", "-", 2.6),
    ("#D55E00", (0, (5, 2)), 1.8),
    ("#0072B2", "-", 1.4),
    ("#009E73", (0, (1, 1.2)), 1.8),
    ("#CC79A7", (0, (6, 2, 1, 2)), 1.6),
    ("#E69F00", (0, (3, 1)), 1.6),
)
_KINDS = {"activation": "#56B4E9", "transfer copy": "#E69F00", "output": "#009E73"}


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: live bytes of one device at each step, under one strategy and transfer policy."""

    strategy: str
    transfer: str
    device: str
    live: NDArray[np.int64]
    wrong: bool = False


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("plots need matplotlib: install it with  pip install 'memopt[plot]'") from None
    return Figure


def save_figure(figure: Any, path: str | Path) -> None:
    """Write `figure` to `path`; the ending chooses the format (png, svg, pdf)."""
    check_picture_path(path)
    figure.savefig(path, dpi=120)


def check_picture_path(path: str | Path) -> None:
    """Raise `OptionError` where a picture could not be written to `path`; ask before the work, not after it."""
    known = _figure_class()().canvas.get_supported_filetypes()
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in known:
        raise OptionError(f"cannot plot to {str(path)!r}: the ending is not one of {', '.join(sorted(known))}")
    if not Path(path).parent.is_dir():
        raise OptionError(f"cannot plot to {str(path)!r}: there is no folder {str(Path(path).parent)!r}")


def memory_figure(curves: Sequence[Curve], title: str) -> Any:
    """Small multiples: a row a transfer policy, a column a device; in each, a line a strategy with its peak marked."""
    figure_class = _figure_class()
    transfers = list(dict.fromkeys(curve.transfer for curve in curves))
    devices = list(dict.fromkeys(curve.device for curve in curves))
    strategies = list(dict.fromkeys(curve.strategy for curve in curves))
    width = max(5.2 * len(devices), 7.0)
    figure = figure_class(figsize=(width, 0.9 + 2.5 * len(transfers)), layout="constrained")
    figure.suptitle(textwrap.fill(title, int(width * 11)), fontsize=10.5, x=0.01, ha="left")
    tops = {d: max((c.live.max(initial=0) for c in curves if c.device == d), default=0) / _MIB for d in devices}
    grid = figure.subplots(len(transfers), len(devices), sharex=True, sharey="col", squeeze=False)
    for row, transfer in enumerate(transfers):
        for column, device in enumerate(devices):
            axes = grid[row][column]
            for curve in curves:
                if (curve.transfer, curve.device) == (transfer, device):
                    _draw_curve(axes, curve, _STYLES[strategies.index(curve.strategy) % len(_STYLES)])
            axes.set_title(
                device if len(transfers) == 1 else f"{device}, transfer {transfer}", fontsize=9.5, loc="left"
            )
            axes.set_ylim(0, tops[device] * (1.15 + 0.12 * len(strategies)) or 1)
            _finish_axes(axes, row == len(transfers) - 1, column == 0)
    return figure


def _draw_curve(axes: Any, curve: Curve, style: tuple[str, Any, float]) -> None:
    color, dash, width = style
    live = _padded(curve.live) / _MIB
    peak = int(live.argmax())
    top = float(live[peak])
    label = f"{curve.strategy}: peak {top:.2f} MiB" + (", WRONG result" if curve.wrong else "")
    steps = np.arange(len(live) + 1)
    axes.step(steps, np.append(live, live[-1:]), where="post", color=color, ls=dash, lw=width, label=label)
    axes.plot(peak + 0.5, top, marker="X" if curve.wrong else "v", color=color, ms=7, mec="white", mew=0.6, zorder=5)


def _padded(live: NDArray[np.int64]) -> NDArray[np.int64]:
    """`live`, or one step of nothing where there are no steps."""
    return live if len(live) else np.zeros(1, np.int64)


def _finish_axes(axes: Any, bottom: bool, left: bool) -> None:
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=8)
    if bottom:
        axes.set_xlabel("step (node in execution order)", fontsize=9)
    if left:
        axes.set_ylabel("live in the arena, MiB", fontsize=9)
    axes.legend(fontsize=7.5, loc="upper right", frameon=True, framealpha=0.9, edgecolor="none", handlelength=2.6)


def arena_figure(plan: MemoryPlan, title: str) -> Any:
    """A panel for each device: every buffer a box (time across, offset up); live bytes and height as lines."""
    figure_class = _figure_class()
    used = [d.name for d in plan.machine.all_devices if plan.devices[d.name].height_bytes] or [plan.machine.default]
    figure = figure_class(figsize=(9.0, 0.8 + 3.2 * len(used)), layout="constrained")
    figure.suptitle(textwrap.fill(title, 100), fontsize=10.5, x=0.01, ha="left")
    live = live_bytes(plan)
    for axes, device in zip(figure.subplots(len(used), 1, squeeze=False)[:, 0], used, strict=True):
        _draw_arena(axes, plan, device)
        _draw_live(axes, live[device], plan.devices[device].height_bytes / _MIB)
        axes.set_title(device, fontsize=9.5, loc="left")
        axes.set_ylabel("offset in the arena, MiB", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7.5, loc="upper right", framealpha=0.9, edgecolor="none", ncols=3)
    axes.set_xlabel("instruction", fontsize=9)
    return figure


def _draw_arena(axes: Any, plan: MemoryPlan, device: str) -> None:
    outputs = {result.operand.buffer for result in plan.program.results}
    groups: Mapping[str, list[tuple[int, int, float, float]]] = {kind: [] for kind in _KINDS}
    for buffer, slot in zip(plan.program.buffers, plan.slots, strict=True):
        if buffer.space == "arena" and slot.device == device and buffer.end > buffer.start:
            kind = "transfer copy" if buffer.transfer else "output" if buffer.id in outputs else "activation"
            groups[kind].append((buffer.start, buffer.end - buffer.start, slot.offset / _MIB, slot.size / _MIB))
    for kind, boxes in groups.items():
        if boxes:
            start, length, offset, size = (np.array(column, dtype=float) for column in zip(*boxes, strict=True))
            axes.bar(
                start,
                size,
                length,
                offset,
                align="edge",
                color=_KINDS[kind],
                edgecolor="#555555",
                linewidth=0.2,
                label=kind,
            )


def _draw_live(axes: Any, live: NDArray[np.int64], height: float) -> None:
    live = _padded(live)
    steps = np.arange(len(live) + 1)
    axes.step(steps, np.append(live, live[-1:]) / _MIB, where="post", color="black", lw=1.1, label="live bytes")
    peak = int(live.argmax())
    top = float(live[peak]) / _MIB
    axes.axhline(height, color="#D55E00", lw=1.1, ls="--", label=f"height {height:.2f} MiB")
    axes.plot(peak + 0.5, top, "v", color="black", ms=7, mec="white", mew=0.6, label=f"peak {top:.2f} MiB", ls="none")
    axes.set_xlim(0, max(len(live), 1))
    axes.set_ylim(0, max(height, top) * 1.3 or 1.0)
