"""The result of ``snapshot.view()``: the live viewer where a front end shows it, and a still picture in any case."""

from __future__ import annotations

import base64
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.snapshot.export.redaction import align_start_times, shareable
from ipygpumem.viewer.display_target import DisplayTarget, current_target
from ipygpumem.viewer.page import check_snapshot_count, join_names
from ipygpumem.viewer.static_plot import picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer.axes import PngImage
    from ipygpumem.viewer.widget import Widget

_STILL_END = 64
_MAX_STILLS = 2
_BROWSER_HINT = "(ipygpumem view FILE, in a shell, opens the viewer in a browser)"
_displayed: dict[str, tuple[str | None, list[View]]] = {}
"""For each cell the message id of its last execution and the views that it displayed."""


class View:
    """One snapshot to look at, or up to eight side by side.

    It creates two displays: text with the still picture, then the widget. A widget cannot be restored without its
    kernel, and JupyterLab then replaces its whole MIME bundle by an error message, so the picture has a display of its
    own, which the widget hides while it works.

    The displays contain the text and the pictures of the first two snapshots only, to keep notebooks small.

    Raises:
        DeviceError: The snapshot has no such device.
        OptionError: There is no snapshot, or there are more than eight.
    """

    def __init__(
        self, snapshots: Sequence[Snapshot], device: int | None = None, *, source: bool = True, paths: bool = True
    ) -> None:
        check_snapshot_count(len(snapshots))
        self._snapshots = [shareable(snapshot, source=source, paths=paths) for snapshot in align_start_times(snapshots)]
        self._device = device
        self._widget: Widget | None = None
        if device is not None:
            snapshots[0].timeline(device)

    def __repr__(self) -> str:
        return f"<View of {self._names}>"

    @property
    def _names(self) -> str:
        return join_names([snapshot.name for snapshot in self._snapshots])

    @property
    def text(self) -> str:
        """Summaries of the snapshots."""
        summaries = [snapshot.summary(self._device) for snapshot in self._snapshots[:_MAX_STILLS]]
        if len(self._snapshots) > len(summaries):
            summaries.append(f"({len(self._snapshots) - len(summaries)} more in the viewer)")
        return "\n\n".join(summaries)

    @cached_property
    def pictures(self) -> tuple[PngImage, ...]:
        """The still pictures of the first two snapshots; `OptionError` without matplotlib."""
        return tuple(picture(snapshot, self._device) for snapshot in self._snapshots[:_MAX_STILLS])

    @property
    def widget(self) -> Widget:
        """The widget, for layouts with other widgets; `OptionError` without anywidget."""
        if self._widget is None or self._widget.comm is None:
            try:
                from ipygpumem.viewer.widget import Widget
            except ImportError as error:
                message = f"the live viewer requires anywidget: install it with pip install anywidget ({error})"
                raise OptionError(message) from error
            sources = [(snapshot.name, snapshot.encode) for snapshot in self._snapshots]
            try:
                stills = [_base64(still)[-_STILL_END:] for still in self.pictures]
            except OptionError:  # the viewer does not depend on matplotlib
                stills = []
            self._widget = Widget(sources, stills)
        return self._widget

    def close(self) -> None:
        """Remove the widget from all of its displays; the still pictures stay."""
        if self._widget is not None:
            self._widget.close()
            self._widget = None

    def publish(self, target: DisplayTarget) -> None:
        """Display the view; problems are displayed as one line each."""
        if target.kind in {"text", "none"}:
            target.publish({"text/plain": f"{self.text}\n{_BROWSER_HINT}"}, {})
            return
        problems = []
        try:
            for number, still in enumerate(self.pictures):
                data = {"text/plain": "" if number else self.text, "image/png": _base64(still)}
                target.publish(data, {"image/png": {"width": still.width, "height": still.height}})
        except OptionError as error:
            target.publish({"text/plain": self.text}, {})
            problems.append(str(error))
        if target.kind == "live":
            self._close_previous(target)
            try:
                target.publish(*self._widget_bundle())
            except OptionError as error:
                problems.append(str(error))
            except Exception as error:
                problems.append(f"the live viewer cannot be displayed: {type(error).__name__}: {first_line(error)}")
        for problem in problems:
            target.publish({"text/plain": f"ipygpumem: {problem}"}, {})

    def _widget_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: Any = self.widget._repr_mimebundle_()  # IPython's own protocol
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, "text/plain": f"(run this cell for the live viewer of {self._names})"}, metadata

    def _close_previous(self, target: DisplayTarget) -> None:
        """Close the views of the cell's previous execution: their displays are gone, but their widgets are not."""
        if target.cell is None:
            return
        request, views = _displayed.pop(target.cell, (None, []))
        kept_views = views if request == target.request else []
        _displayed[target.cell] = (target.request, [self, *kept_views])
        visible = [view for _, cell_views in _displayed.values() for view in cell_views]
        for view in views:
            if view not in visible:
                view.close()

    def _ipython_display_(self) -> None:
        self.publish(current_target())


def _base64(still: PngImage) -> str:
    return base64.b64encode(still.png).decode()
