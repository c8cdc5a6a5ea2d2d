/** Helpers for drawing on a 2D canvas. */

export const FONT = 'system-ui, -apple-system, "Segoe UI", sans-serif';
const EXPORT_SCALE = 2;

/** Resize a canvas to a size in CSS pixels, sharp on high-density screens. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function fitCanvas(canvas, width, height) {
  const ratio = pixelRatio();
  const [pixelWidth, pixelHeight] = [width, height].map((length) => Math.max(1, Math.round(length * ratio)));
  if (canvas.width !== pixelWidth) canvas.width = pixelWidth;
  if (canvas.height !== pixelHeight) canvas.height = pixelHeight;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = context2d(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** @param {HTMLCanvasElement} canvas */
export function context2d(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** Device pixels per CSS pixel, at most 2, because more take time and are not visible. */
export function pixelRatio() {
  return Math.min(Math.max(globalThis.devicePixelRatio || 1, 1), 2);
}

/** Text shortened to a width. @param {CanvasRenderingContext2D} context @param {string} text @param {number} width */
export function clipText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low)}…` : "";
}

/** @param {CanvasRenderingContext2D} context @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
export function drawLine(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {string} color @param {number} width @param {number[]} [dash] */
export function setPen(context, color, width, dash = []) {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.setLineDash(dash);
}

/** How the following texts are drawn. @param {CanvasRenderingContext2D} context @param {string} color @param {CanvasTextAlign} align @param {string} [font] size and weight */
export function setText(context, color, align, font = "11px") {
  context.fillStyle = color;
  context.textAlign = align;
  context.textBaseline = "middle";
  context.font = `${font} ${FONT}`;
}

/** A circle at the peak. @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {string} fill @param {string} stroke */
export function drawDot(context, x, y, fill, stroke) {
  setPen(context, stroke, 1.5);
  context.fillStyle = fill;
  context.beginPath();
  context.arc(x, y, 4, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
}

/**
 * Draw a curve that keeps each value for one column; NaN leaves a gap at either end.
 * @param {CanvasRenderingContext2D} context @param {Float64Array} values one per column
 * @param {{left: number, width: number}} box @param {(value: number) => number} y
 */
export function drawSteps(context, values, { left, width }, y) {
  const pixel = width / values.length;
  let changes = 0;
  for (let column = 1; column < values.length; column++) if (values[column] !== values[column - 1]) changes++;
  // Where almost every column differs, long vertical lines would hide the areas below
  const crowded = changes > values.length / 4;
  let previous = Number.NaN;
  let end = 0;
  context.lineJoin = "round";
  context.beginPath();
  for (let column = 0; column < values.length; column++) {
    if (Number.isNaN(values[column])) continue;
    const x = left + column * pixel;
    const next = y(values[column]);
    if (Number.isNaN(previous)) context.moveTo(x, next);
    else if (next !== previous) {
      context.lineTo(x, previous);
      if (crowded && Math.abs(next - previous) > 24) context.moveTo(x, next);
      else context.lineTo(x, next);
    }
    previous = next;
    end = column + 1;
  }
  if (end) context.lineTo(left + end * pixel, previous);
  context.stroke();
}

/**
 * A PNG of a drawing, at twice its size in CSS pixels.
 * @param {number} width @param {number} height @param {(context: CanvasRenderingContext2D, scale: number) => void} paint
 * @returns {Promise<Blob>}
 */
export function pngOf(width, height, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = width * EXPORT_SCALE;
  canvas.height = height * EXPORT_SCALE;
  const context = context2d(canvas);
  context.scale(EXPORT_SCALE, EXPORT_SCALE);
  paint(context, EXPORT_SCALE);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The browser could not encode the PNG.")))),
  );
}
