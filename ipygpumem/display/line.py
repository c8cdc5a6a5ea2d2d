"""A report as one to three lines of text, and the baseline as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.baseline import PRELOAD_OFF
from ipygpumem.core.units import GIB, MIB, size
from ipygpumem.display.columns import Row, footer, notes, rows
from ipygpumem.features.outside.table import outside_sentences
from ipygpumem.features.processes.table import other_process_sentences

if TYPE_CHECKING:
    from ipygpumem.core.baseline import Baseline
    from ipygpumem.core.report import Report

__all__ = ["baseline_line", "text_line"]

_COLOURS = {"held": "1", "peak": "1", "outside": "33", "outside_peak": "33", "others": "35", "unattributed": "35"}
_FAINT = "2"


def text_line(report: Report, *, colour: bool = False) -> str:
    """The automatic report: a line for each device that moved, then what must be said about it.

    ``colour`` adds terminal colours (ANSI).
    """
    lines = [_row_text(row, colour=colour) for row in rows(report)]
    lines[0] += "   " + _paint(footer(report), _FAINT, colour)
    lines += [_paint(one, _COLOURS["outside"], colour) for one in outside_sentences(report)]
    lines += [_paint(one, _COLOURS["others"], colour) for one in other_process_sentences(report)]
    remarks = notes(report)
    if remarks:
        lines.append(_paint("; ".join(remarks), _FAINT, colour))
    return "\n".join(lines)


def _row_text(row: Row, *, colour: bool) -> str:
    parts = [_paint(column.text, _COLOURS.get(column.kind, ""), colour) for column in row.columns]
    if row.still:
        parts.append("nothing moved")
    if row.used:
        parts.append(row.used)
    return f"{row.name}  {' · '.join(parts)}"


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def baseline_line(baseline: Baseline, *, reports: bool = True) -> str:
    """What ``%load_ext`` prints: the device, what stands there before the first cell, what will follow."""
    tail = "a report follows every cell that moves memory" if reports else "reports are off (%gpumem on)"
    device = baseline.reading.devices.get(baseline.device or "")
    if device is None:
        if baseline.note == PRELOAD_OFF:
            return f"ipygpumem: CUDA is left alone; the baseline follows the first cell that starts it; {tail}"
        rss = baseline.reading.host.rss
        host = "" if rss is None else f", baseline {size(rss)}"
        return f"ipygpumem: no GPU ({baseline.note}): reporting host memory (RSS) instead{host}; {tail}"
    capacity = "" if device.capacity is None else f", {device.capacity / GIB:.1f} GiB"
    parts = [f"{device.name} {baseline.label}{capacity}", _standing(baseline)]
    if baseline.workspace:
        parts.append(f"cuBLAS workspace {round(baseline.workspace / MIB)} MiB in PyTorch")
    if device.mode != "process":
        parts.append(f"outside PyTorch is known for the whole card only: {device.why}")
    if baseline.note:
        parts.append(baseline.note)
    return "ipygpumem: " + "; ".join([*parts, tail])


def _standing(baseline: Baseline) -> str:
    context, kernels, outside = baseline.context, baseline.kernels, baseline.outside
    if context is not None and kernels is not None:
        total = round((context + kernels) / MIB)
        # the parts are told so that they add up to the total as printed
        return f"baseline {total} MiB (context {total - round(kernels / MIB)}, first kernels {round(kernels / MIB)})"
    if outside is None:
        return "baseline outside PyTorch unknown"
    return f"baseline {round(outside / MIB)} MiB outside PyTorch (CUDA had started before)"
