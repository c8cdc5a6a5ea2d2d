"""Tables of predictions of the memory usage of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import KIB, MIB, precise_size, size
from ipygpumem.features.fit.advice.table import trial_table
from ipygpumem.features.fit.axes import size_name
from ipygpumem.snapshot.scaling.step import OPTIMIZER

if TYPE_CHECKING:
    from ipygpumem.features.fit.model import Fit, ProbeRun
    from ipygpumem.snapshot.scaling.results import PredictionPiece

_MAX_PIECES = 4
_MAX_GROUPS = 6
_MIN_TERM = 0.0001
"""Share of the memory below which a term of a formula is not shown."""
_MIN_SHARE = 0.01
"""Share of the memory below which a group is not shown."""


def fit_tables(fit: Fit) -> list[Table]:
    device = f"{fit.device} {fit.label}".strip()
    title = f"{fit.step}: {', '.join(axis.text for axis in fit.axes)}, {device}"
    if fit.capacity is not None:
        title += f", {size(fit.capacity)} for PyTorch"
    if fit.estimated:
        title += ", estimated"
    rows = [TableRow(label, (), 1, note=text) for label, text in _lines(fit)]
    tables = [Table(title, (), tuple(rows), fit.notes)]
    if fit.combinations:
        tables.append(_combinations(fit))
    if fit.trials:
        tables.append(trial_table(fit.trials))
    return tables


def _lines(fit: Fit) -> Iterator[tuple[str, str]]:
    if fit.probes:
        yield "computed" if fit.estimated else "measured", "   ".join(map(_probe, fit.probes))
    if fit.refusal:
        yield "not predicted", fit.refusal
        return
    for number, piece in enumerate(fit.pieces[-_MAX_PIECES:]):
        yield "" if number else "peak", _piece(fit, piece)
    if fit.combinations:
        return
    yield "largest", _size(fit, fit.largest)
    if fit.after_release is not None and fit.after_release > (fit.largest or 0):
        yield "", f"{fit.after_release:,} fits if PyTorch first frees its cache, which is slow"
    if fit.recommended is not None:
        yield "recommended", f"{_size(fit, fit.recommended)}, which leaves {fit.margin:.0%} free{_verification(fit)}"
    if fit.estimated:
        value = fit.recommended or fit.largest or fit.axes[0].first
        for by in ("phase", "module"):
            groups = fit.breakdown(value, by=by)
            least = _MIN_SHARE * sum(group.bytes for group in groups)
            shown_groups = [
                f"{group.label} {size(group.bytes)}" for group in groups[:_MAX_GROUPS] if group.bytes >= least
            ]
            yield f"at {value:,}" if by == "phase" else "", f"by {by}: {'   '.join(shown_groups)}"


def _combinations(fit: Fit) -> Table:
    first, second = fit.axes
    header = (f"largest {first.name}", "recommended", "reserved")
    rows = []
    for item in fit.combinations:
        values = ("none" if value is None else f"{value:,}" for value in (item.largest, item.recommended))
        reserved = "" if item.reserved is None else size(item.reserved)
        rows.append(TableRow(f"{second.name} {item.size:,}", (*values, reserved), 1))
    return Table(f"largest sizes that fit; recommended sizes leave {fit.margin:.0%} free", header, tuple(rows))


def _probe(probe: ProbeRun) -> str:
    at = size_name(probe.size)
    if probe.role == "again":
        return f"{at} again: {precise_size(probe.allocated)}"
    prediction = "" if probe.predicted is None else f" (predicted {precise_size(probe.predicted)})"
    return f"{at}: {precise_size(probe.allocated)}{prediction}"


def _piece(fit: Fit, piece: PredictionPiece) -> str:
    name = fit.axes[0].name
    sizes = f"{name} {piece.first:,}" if piece.first == piece.last else f"{name} {piece.first:,} to {piece.last:,}"
    if not piece.coefficients:
        level = f"{_precise(piece.bytes_per_unit)} * {name} on average"
    elif piece.first == piece.last:
        level = size(round(sum(value * piece.first**power for power, value in enumerate(piece.coefficients))))
    else:
        level = _formula(piece, name)
    return f"{sizes}: {level}{_position(piece)}"


def _formula(piece: PredictionPiece, name: str) -> str:
    """Return the formula for the bytes of a piece, without terms that are too small to be visible in the sum."""
    terms = [value * piece.last**power for power, value in enumerate(piece.coefficients)]
    least = max(_MIN_TERM * sum(terms), 0.5)
    result = ""
    for power, (value, term) in enumerate(zip(piece.coefficients, terms, strict=True)):
        if abs(term) >= least:
            factor = f" * {name}**{power}" if power > 1 else f" * {name}" if power else ""
            amount = _precise(abs(value)) if power else precise_size(round(abs(value)))
            sign = (" - " if value < 0 else " + ") if result else "-" if value < 0 else ""
            result += f"{sign}{amount}{factor}"
    return result


def _precise(nbytes: float) -> str:
    if nbytes >= MIB:
        return f"{nbytes / MIB:,.2f} MiB"
    return f"{nbytes / KIB:.4g} KiB" if nbytes >= KIB else f"{nbytes:.4g} B"


def _position(piece: PredictionPiece) -> str:
    if piece.phase == OPTIMIZER:
        return f", in the optimizer's update ({piece.line})"
    return f", in the {piece.phase} pass ({piece.line})" if piece.phase else ", before the step"


def _size(fit: Fit, value: int | None) -> str:
    if value is None:
        first = fit.axes[0].first
        return f"none: {first:,} does not fit (reserved {size(fit.reserved(first))})"
    limit = ", the largest of these values" if value == fit.axes[0].last else ""
    return f"{value:,} (reserved {size(fit.reserved(value))}){limit}"


def _verification(fit: Fit) -> str:
    for probe in fit.probes:
        if probe.role == "verification" and probe.predicted is not None:
            if fit.estimated:
                continue
            measured = f"measured {precise_size(probe.allocated)}, predicted {precise_size(probe.predicted)}"
            return f"; verified at {size_name(probe.size)}: {measured}"
    return ""
