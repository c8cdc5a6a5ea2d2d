"""What ``snapshot.view()`` gives: the viewer where there is somebody to use it, the still picture in any case."""

from __future__ import annotations

import base64
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.sharing import on_one_clock, shared
from ipygpumem.viewer.display_target import DisplayTarget, current_target
from ipygpumem.viewer.page import check_sources, in_words
from ipygpumem.viewer.picture import picture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer.still import Picture
    from ipygpumem.viewer.widget import Widget

__all__ = ["View"]

_STILL_END = 64
_STILLS = 2
_IN_A_BROWSER = "(ipygpumem view FILE, in a shell, opens the viewer in a browser)"
_published: dict[str, tuple[str | None, list[View]]] = {}
"""By cell: the run that displayed them, and what it displayed."""


class View:
    """One snapshot to look at, or up to eight beside each other.

    It displays twice: first text and the still picture in one bundle, then the widget. A widget cannot be shown once
    its kernel is gone, and JupyterLab then says so in the place of everything that stands in the same bundle. So the
    picture has a place of its own, in which the widget hides it for as long as it works.

    Of more than two the notebook keeps the text and the pictures of the first two: it is to stay small.

    Raises:
        DeviceError: The file has no such device.
        OptionError: No snapshot, or more than eight.
    """

    def __init__(
        self, snapshots: Sequence[Snapshot], device: int | None = None, *, source: bool = True, paths: bool = True
    ) -> None:
        check_sources(len(snapshots))
        self._snapshots = [shared(snapshot, source=source, paths=paths) for snapshot in on_one_clock(snapshots)]
        self._device = device
        self._widget: Widget | None = None
        if device is not None:
            snapshots[0].timeline(device)

    def __repr__(self) -> str:
        return f"<View of {self._names}>"

    @property
    def _names(self) -> str:
        return in_words([snapshot.name for snapshot in self._snapshots])

    @property
    def text(self) -> str:
        """What it shows, in words."""
        told = [snapshot.summary(self._device) for snapshot in self._snapshots[:_STILLS]]
        more = len(self._snapshots) - len(told)
        return "\n\n".join([*told, *([f"({more} more in the viewer)"] if more else [])])

    @cached_property
    def pictures(self) -> tuple[Picture, ...]:
        """The still pictures: of each snapshot, as far as two.

        Raises:
            OptionError: matplotlib is not installed.
        """
        return tuple(picture(snapshot, self._device) for snapshot in self._snapshots[:_STILLS])

    @property
    def widget(self) -> Widget:
        """The widget itself, to be placed among others; made when it is first asked for.

        Raises:
            OptionError: anywidget is not installed.
        """
        if self._widget is None or self._widget.comm is None:
            try:
                from ipygpumem.viewer.widget import Widget
            except ImportError as error:
                raise OptionError(
                    f"the live viewer needs anywidget: pip install anywidget ({first_line(error)})"
                ) from error
            sources = [(snapshot.name, _maker(snapshot)) for snapshot in self._snapshots]
            self._widget = Widget(sources, [_base64(one)[-_STILL_END:] for one in self._stills()])
        return self._widget

    def close(self) -> None:
        """Take the widget away from every display of it; the still picture stays."""
        if self._widget is not None:
            self._widget.close()
            self._widget = None

    def publish(self, where: DisplayTarget) -> None:
        """Display it. What cannot be shown is told in a line."""
        if where.kind in {"text", "none"}:
            where.publish({"text/plain": f"{self.text}\n{_IN_A_BROWSER}"}, {})
            return
        notes = []
        try:
            for number, still in enumerate(self.pictures):
                data = {"text/plain": "" if number else self.text, "image/png": _base64(still)}
                where.publish(data, {"image/png": {"width": still.width, "height": still.height}})
        except OptionError as problem:
            where.publish({"text/plain": self.text}, {})
            notes.append(str(problem))
        if where.kind == "live":
            self._replace(where)
            try:
                where.publish(*self._live())
            except OptionError as problem:
                notes.append(str(problem))
            except Exception as problem:
                notes.append(f"no live viewer here: {type(problem).__name__}: {first_line(problem)}")
        for note in notes:
            where.publish({"text/plain": f"ipygpumem: {note}"}, {})

    def _stills(self) -> tuple[Picture, ...]:
        try:
            return self.pictures
        except OptionError:  # without matplotlib there is none, and the viewer works all the same
            return ()

    def _live(self) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: Any = self.widget._repr_mimebundle_()  # IPython's own protocol
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, "text/plain": f"(run this cell for the live viewer of {self._names})"}, metadata

    def _replace(self, where: DisplayTarget) -> None:
        """Close what the cell displayed when it last ran: its widgets are gone from the page, but not from here."""
        if where.cell is None:
            return
        request, earlier = _published.pop(where.cell, (None, []))
        _published[where.cell] = (where.request, [self])
        if request == where.request:
            _published[where.cell][1].extend(earlier)
            return
        elsewhere = [view for _, views in _published.values() for view in views]
        for view in earlier:
            if view not in elsewhere:
                view.close()

    def _ipython_display_(self) -> None:
        self.publish(current_target())


def _base64(still: Picture) -> str:
    return base64.b64encode(still.png).decode()


def _maker(snapshot: Snapshot) -> Callable[[], bytes]:
    return lambda: encode(snapshot)
