// Lanes: which operation lies where, and drawing the part in view. One pass over the operations in view;
// what is narrower than a pixel is merged, the most alarming outcome of a pixel wins.

// Painting order: later classes cover earlier ones.
const CLASS_QUIET = 0;
const CLASS_OK = 1; // + function, up to four
const CLASS_FAIL = 5;
const CLASS_INFO = 6;
const CLASS_PERMITTED = 7; // named by a check, though it does not affect the verdict
const CLASS_DOUBT = 8;
const CLASS_MARK = 9;
const MARKED = [0, CLASS_PERMITTED, CLASS_DOUBT, CLASS_MARK];
const CLASS_COLOURS = ['--quiet', '--f0', '--f1', '--f2', '--f3', '--fail', '--info', '--none', '--unknown', '--invalid'];

function classify(model) {
  const classes = new Uint8Array(model.n);
  const quiet = model.names.errors.indexOf('empty');
  for (let i = 0; i < model.n; i++) {
    const type = model.type[i];
    if (model.marked[i]) classes[i] = MARKED[model.marked[i]];
    else if (type === 1) classes[i] = CLASS_OK + Math.min(3, model.f[i]);
    else if (type === 2) classes[i] = model.error[i] === quiet ? CLASS_QUIET : CLASS_FAIL;
    else classes[i] = CLASS_INFO;
  }
  return classes;
}

function groupLanes(model, by) {
  const keyOf = {
    thread: (i) => (model.concurrency > 0 ? model.process[i] % model.concurrency : model.process[i]),
    process: (i) => model.process[i],
    node: (i) => model.node[i],
  }[by];
  const rows = new Map();
  for (let i = 0; i < model.n; i++) {
    const key = keyOf(i);
    if (!rows.has(key)) rows.set(key, []);
    rows.get(key).push(i);
  }
  return [...rows.keys()].sort((a, b) => a - b).map((key) => {
    const items = Int32Array.from(rows.get(key));
    const reach = new Float64Array(items.length); // latest end up to here: lets a search skip what is over
    let latest = -Infinity;
    items.forEach((i, at) => {
      latest = Math.max(latest, model.end[i]);
      reach[at] = latest;
    });
    const label = by === 'node' ? nameOf(model.names.nodes, key) || 'no node' : `${by === 'thread' ? 'client' : 'process'} ${key}`;
    return { key, label, items, reach };
  });
}

// First position in a rising array whose entry is at least `wanted`.
function lowerBound(array, wanted, read = (entry) => entry) {
  let low = 0;
  let high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (read(array[middle]) < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Rectangles of one lane, appended per class as x, y, width, height.
function layLane(model, classes, lane, y, tall, view, paint, hidden) {
  const { from, to, left, scale } = view;
  const pad = tall > 14 ? 3 : 1.5;
  let column = -1;
  let strongest = 0;
  const flush = () => {
    if (column >= 0) paint[strongest].push(column, y + pad, 1.5, tall - 2 * pad);
    column = -1;
  };
  for (let at = lowerBound(lane.reach, from); at < lane.items.length; at++) {
    const i = lane.items[at];
    if (model.start[i] > to) break;
    const kind = classes[i];
    if (hidden[kind]) continue;
    const x = left + (Math.max(model.start[i], from) - from) * scale;
    const width = left + (Math.min(model.end[i], to) - from) * scale - x;
    if (width >= 2) {
      flush();
      const quiet = kind === CLASS_QUIET;
      paint[kind].push(x, quiet ? y + tall / 2 - 1 : y + pad, width - 0.5, quiet ? 2 : tall - 2 * pad);
      continue;
    }
    const pixel = Math.floor(x);
    if (pixel !== column) {
      flush();
      column = pixel;
      strongest = kind;
    } else if (kind > strongest) strongest = kind;
  }
  flush();
}

// A triangle above each operation that proves an anomaly: colour is not the only sign. It is hollow where the anomaly
// does not affect the verdict.
function paintMark(context, x, y, colour, edge, hollow) {
  context.beginPath();
  context.moveTo(x - 5.5, y - 3);
  context.lineTo(x + 5.5, y - 3);
  context.lineTo(x, y + 5);
  context.closePath();
  context.fillStyle = hollow ? edge : colour;
  context.strokeStyle = hollow ? colour : edge;
  context.lineWidth = hollow ? 1.5 : 2.5;
  if (hollow) context.fill();
  context.stroke();
  if (!hollow) context.fill();
}

// The text, cut so that it fits.
function fitText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return `${text.slice(0, end)}…`;
}
