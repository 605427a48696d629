// Lanes: which operation lies where, and drawing the part in view. One pass over the operations in view;
// what is narrower than a pixel is merged, the most alarming outcome of a pixel wins.

const LANE = 18;
const AXIS = 24;
const FAULT_ROW = 18;
const PHASE_ROW = 16;

// Painting order: later classes cover earlier ones.
const CLASS_QUIET = 0;
const CLASS_OK = 1; // + function, up to four
const CLASS_FAIL = 5;
const CLASS_INFO = 6;
const CLASS_MARK = 7;

function classify(model) {
  const classes = new Uint8Array(model.n);
  const quiet = model.names.errors.indexOf('empty');
  for (let i = 0; i < model.n; i++) {
    const type = model.type[i];
    if (model.marked[i]) classes[i] = CLASS_MARK;
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

// Faults in as few rows as keep them from overlapping.
function stackFaults(faults) {
  const ends = [];
  return faults.map((fault) => {
    let row = ends.findIndex((end) => end <= fault.start);
    if (row < 0) row = ends.length;
    ends[row] = fault.end;
    return row;
  });
}

// Rectangles of one lane, appended per class as x, y, width, height.
function layLane(model, classes, lane, y, view, paint, hidden) {
  const { from, to, left, scale } = view;
  let column = -1;
  let strongest = 0;
  const flush = () => {
    if (column >= 0) paint[strongest].push(column, y + 3, 1.5, LANE - 6);
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
      paint[kind].push(x, quiet ? y + LANE / 2 - 1 : y + 3, width - 0.5, quiet ? 2 : LANE - 6);
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

function paintAxis(context, view, width, height, colours) {
  const step = niceStep(view.to - view.from, (width - view.left) / 90);
  const digits = clamp(Math.ceil(-Math.log10(step)), 0, 6);
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  context.textAlign = 'center';
  for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) {
    const x = view.left + (tick - view.from) * view.scale;
    context.fillStyle = colours.line;
    context.fillRect(Math.round(x), AXIS - 4, 1, height - AXIS + 4);
    context.fillStyle = colours.muted;
    context.fillText(seconds(tick, digits), clamp(x, view.left + 20, width - 26), AXIS / 2 - 1);
  }
}

// Names of the run's phases under the axis, each where there is room for it.
function paintPhases(context, view, phases, colours) {
  for (const phase of phases) {
    if (phase.end < view.from || phase.start > view.to) continue;
    const left = view.left + (Math.max(phase.start, view.from) - view.from) * view.scale;
    const right = view.left + (Math.min(phase.end, view.to) - view.from) * view.scale;
    context.fillStyle = colours.line;
    context.fillRect(left, AXIS, Math.max(1, right - left - 1), PHASE_ROW - 3);
    context.fillStyle = colours.muted;
    context.textAlign = 'left';
    if (right - left > context.measureText(phase.name).width + 8) context.fillText(phase.name, left + 4, AXIS + PHASE_ROW / 2 - 1);
  }
}

// The faults in view with their place: left edge and width.
function placeFaults(view, faults) {
  const x = (time) => view.left + (clamp(time, view.from, view.to) - view.from) * view.scale;
  return faults
    .map((fault, at) => ({ fault, at, left: x(fault.start), span: Math.max(2, x(fault.end) - x(fault.start)) }))
    .filter(({ fault }) => fault.end >= view.from && fault.start <= view.to);
}

const faultColour = (fault, colours) => colours.faults[fault.family] || colours.faults.other;

// Bands lie under the operations, so that these keep their colours.
function paintBands(context, view, top, height, faults, rows, colours) {
  context.globalAlpha = 0.13;
  for (const { fault, at, left, span } of placeFaults(view, faults)) {
    context.fillStyle = faultColour(fault, colours);
    context.fillRect(left, top + (rows[at] + 1) * FAULT_ROW, span, height);
  }
  context.globalAlpha = 1;
}

function paintFaults(context, view, firstRow, faults, rows, colours) {
  for (const { fault, at, left, span } of placeFaults(view, faults)) {
    const top = firstRow + rows[at] * FAULT_ROW;
    context.fillStyle = faultColour(fault, colours);
    context.fillRect(left, top + 2, span, FAULT_ROW - 3);
    if (span < 40) continue;
    context.save();
    context.beginPath();
    context.rect(left, top, span, FAULT_ROW);
    context.clip();
    context.fillStyle = colours.onFault;
    context.textAlign = 'left';
    context.fillText(`${fault.name}${fault.targets.length ? `: ${fault.targets.join(', ')}` : ''}`, left + 6, top + FAULT_ROW / 2 + 1);
    context.restore();
  }
}

// A triangle above each operation that proves an anomaly: colour is not the only sign.
function paintMark(context, x, y, colour, edge) {
  context.beginPath();
  context.moveTo(x - 5.5, y - 3);
  context.lineTo(x + 5.5, y - 3);
  context.lineTo(x, y + 5);
  context.closePath();
  context.fillStyle = colour;
  context.strokeStyle = edge;
  context.lineWidth = 2.5;
  context.stroke();
  context.fill();
}
