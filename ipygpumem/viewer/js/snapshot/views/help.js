/** The text of the help dialog. */

export const KEYS = [
  ["Pointer", ""],
  ["wheel", "zoom at the pointer"],
  ["Alt and wheel", "zoom the byte axis at the pointer"],
  ["drag", "pan"],
  ["Shift and drag", "select a range of events"],
  ["Alt and drag", "ruler: time and bytes between two points"],
  ["Ctrl+drag", "zoom into a box"],
  ["double click", "show everything"],
  ["Keys, while the timeline has the focus", ""],
  ["← →", "previous event, next event"],
  ["↑ ↓", "allocation above, allocation below"],
  ["Shift ← →, Page Up, Page Down", "pan"],
  ["+ −", "zoom"],
  ["] [", "zoom the byte axis"],
  ["Home, End", "first event, last event"],
  ["0 or F", "show everything"],
  ["P", "go to the peak"],
  ["O", "mark all allocations from the line of the selected one"],
  ["R", "select the visible events as the range"],
  ["M", "start a ruler whose end follows the cursor"],
  ["B", "zoom into the box of the ruler"],
  ["/", "search"],
  ["Esc", "clear cursor, range and marks"],
];

export const HELP = [
  "Each pixel column shows the highest memory usage in its range of events, so that no peak is lost.",
  "Allocations less than one pixel high are merged and drawn in a paler shade of the color of the class to which most of their bytes belong. Allocations that were freed within one column are counted in the strip “brief”. Zoom in to see each allocation.",
  "Allocated memory is the total requested size of all live allocations. Reserved memory is the total size of all segments.",
];
