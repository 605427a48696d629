// Operations as points: each at the time when it was answered, by its latency. A pixel that holds several is darker.

const POINT = 2; // pixels
const FAINTEST = 70;
const DARKER = 45;

// For each function the operations that are ok, and those without an answer, in order of their ends.
function pointColumns(model) {
  const order = Int32Array.from({ length: model.n }, (_, i) => i).sort((a, b) => model.end[a] - model.end[b]);
  const columns = new Map();
  for (const i of order) {
    const type = model.type[i];
    if (type !== 1 && type !== 3) continue;
    if (!columns.has(model.f[i])) columns.set(model.f[i], { 1: { time: [], ms: [] }, 3: { time: [], ms: [] } });
    const column = columns.get(model.f[i])[type];
    column.time.push(model.end[i]);
    column.ms.push((model.end[i] - model.start[i]) * 1000);
  }
  for (const byType of columns.values()) {
    for (const column of Object.values(byType)) {
      column.time = Float64Array.from(column.time);
      column.ms = Float64Array.from(column.ms);
    }
  }
  return columns;
}

function rgbOf(colour) {
  const [r, g, b] = colour.replace('#', '').match(/../g).map((pair) => parseInt(pair, 16));
  return [r, g, b];
}

// Paints points into a canvas of its own, which the caller lays on the plot.
function createPointLayer() {
  const canvas = document.createElement('canvas');
  const context = canvas.getContext('2d');
  let image = null;
  return {
    canvas,
    clear(width, height) {
      if (canvas.width !== width || canvas.height !== height) {
        [canvas.width, canvas.height] = [width, height];
        image = null;
      }
      if (image) image.data.fill(0);
      else image = context.createImageData(width, height);
    },
    // `left`, `scale`: pixels of this canvas; `row(ms)`: the pixel row of a latency.
    add(column, from, to, scale, row, colour) {
      const [r, g, b] = rgbOf(colour);
      const { width, height, data } = image;
      for (let at = lowerBound(column.time, from); at < column.time.length; at++) {
        const time = column.time[at];
        if (time > to) break;
        const px = Math.floor((time - from) * scale);
        const py = Math.floor(row(column.ms[at]));
        for (let dy = 0; dy < POINT; dy++) {
          for (let dx = 0; dx < POINT; dx++) {
            if (px + dx >= width || py + dy >= height || py + dy < 0) continue;
            const spot = ((py + dy) * width + px + dx) * 4;
            data[spot] = r;
            data[spot + 1] = g;
            data[spot + 2] = b;
            data[spot + 3] = Math.min(255, (data[spot + 3] || FAINTEST) + DARKER);
          }
        }
      }
    },
    done() {
      context.putImageData(image, 0, 0);
    },
  };
}
