"""The result of ``snapshot.view()``: a static image and, in front ends that support widgets, the interactive viewer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.files import import_library
from ipygpumem.core.units import many
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.encoded_replay import encode_replays
from ipygpumem.snapshot.export.redaction import shareable_copies
from ipygpumem.viewer.display_target import DisplayTarget, current_target
from ipygpumem.viewer.static_plot import static_image
from ipygpumem.viewer.write import check_snapshot_count, join_names

if TYPE_CHECKING:
    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer.plot_image import PngImage
    from ipygpumem.viewer.widget import SnapshotWidget

_IMAGE_END = 64
_MAX_IMAGES = 2
_BROWSER_HINT = "(to open the viewer in a browser, run ipygpumem view FILE in a shell)"


class View:
    """The display of up to eight snapshots side by side.

    A view consists of two displays: the static image with a text alternative, and the widget. Without a kernel,
    JupyterLab replaces the MIME bundle of a widget with an error message. Therefore the image is in a separate display,
    which the widget hides while it is connected.

    To limit the size of notebooks, the displays contain text and images of the first two snapshots only.

    Raises:
        DeviceError: The first snapshot does not contain the device.
        OptionError: The number of snapshots is not between one and eight, or the settings are invalid.
        ReplayError: A snapshot cannot be replayed with the settings.
    """

    def __init__(
        self,
        snapshots: Sequence[Snapshot],
        device: int | None = None,
        *,
        source: bool = True,
        paths: bool = True,
        settings: str | None = None,
    ) -> None:
        check_snapshot_count(len(snapshots))
        # copies without private data do not contain the allocator settings with which the recording was made
        self._replays = [None if settings is None else encode_replays(snapshot, settings) for snapshot in snapshots]
        self._snapshots = shareable_copies(snapshots, source=source, paths=paths)
        self._device = device
        self._widget: SnapshotWidget | None = None
        if device is not None:
            snapshots[0].timeline(device)

    def __repr__(self) -> str:
        return f"<View of {self._names}>"

    @property
    def _names(self) -> str:
        return join_names([snapshot.name for snapshot in self._snapshots])

    @property
    def text(self) -> str:
        summaries = [snapshot.summary(self._device) for snapshot in self._snapshots[:_MAX_IMAGES]]
        if len(self._snapshots) > len(summaries):
            summaries.append(f"({many(len(self._snapshots) - len(summaries), 'more snapshot')} in the viewer)")
        return "\n\n".join(summaries)

    @cached_property
    def images(self) -> tuple[PngImage, ...]:
        return tuple(static_image(snapshot, self._device) for snapshot in self._snapshots[:_MAX_IMAGES])

    @property
    def widget(self) -> SnapshotWidget:
        """The widget, for layouts with other widgets. Raises `OptionError` if anywidget is not installed."""
        if self._widget is None or self._widget.comm is None:
            import_library("anywidget", "the interactive viewer")
            from ipygpumem.viewer.widget import SnapshotWidget

            sources = [(snapshot.name, partial(self._encode, index)) for index, snapshot in enumerate(self._snapshots)]
            try:
                images = [_base64(image)[-_IMAGE_END:] for image in self.images]
            except OptionError:  # the viewer does not require matplotlib
                images = []
            self._widget = SnapshotWidget(sources, images)
        return self._widget

    def _encode(self, number: int) -> bytes:
        return encode(self._snapshots[number], self._replays[number])

    def close(self) -> None:
        if self._widget is not None:
            self._widget.close()
            self._widget = None

    def publish(self, target: DisplayTarget) -> None:
        """Display the view, followed by one line for each error. A terminal shows only the text."""
        if target.kind in {"text", "none"}:
            target.publish({"text/plain": f"{self.text}\n{_BROWSER_HINT}"}, {})
            return
        problems = []
        try:
            for number, image in enumerate(self.images):
                data = {"text/plain": "" if number else self.text, "image/png": _base64(image)}
                target.publish(data, {"image/png": {"width": image.width, "height": image.height}})
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
                problems.append(f"the viewer cannot be displayed: {type(error).__name__}: {first_line(error)}")
        for problem in problems:
            target.publish({"text/plain": f"ipygpumem: {problem}"}, {})

    def _widget_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: Any = self.widget._repr_mimebundle_()  # protocol of IPython
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, "text/plain": f"(run this cell to display the interactive viewer of {self._names})"}, metadata

    def _close_previous(self, target: DisplayTarget) -> None:
        """Close the views from the cell's previous execution, because their widgets outlive their displays."""
        if target.cell is None:
            return
        request, views = target.views.pop(target.cell, (None, []))
        current_views = views if request == target.request else []
        target.views[target.cell] = (target.request, [self, *current_views])
        visible = [view for _, cell_views in target.views.values() for view in cell_views]
        for view in views:
            if view not in visible:
                view.close()

    def _ipython_display_(self) -> None:
        self.publish(current_target())


def _base64(image: PngImage) -> str:
    return base64.b64encode(image.png).decode()
