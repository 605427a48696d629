// The operations of the run, unpacked into typed arrays.

const TYPES = ['invoke', 'ok', 'fail', 'info', 'open'];
const TICKS_PER_SECOND = 1e6;

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Response(stream).arrayBuffer();
}

async function loadModel(data) {
  const packed = data.spans;
  const n = packed.count;
  const buffer = await inflate(packed.block);
  const column = {};
  packed.columns.forEach((name, at) => {
    column[name] = new Int32Array(buffer, at * n * 4, n);
  });
  const start = new Float64Array(n);
  const end = new Float64Array(n);
  let ticks = 0;
  for (let i = 0; i < n; i++) {
    ticks += column.start[i];
    start[i] = ticks / TICKS_PER_SECOND;
    const open = column.duration[i] < 0;
    end[i] = open ? data.duration : (ticks + column.duration[i]) / TICKS_PER_SECOND;
  }
  const marked = new Uint8Array(n); // by the gravest of the anomalies that an operation proves
  const grave = { none: 1, unknown: 2, invalid: 3 };
  for (const anomaly of data.anomalies) {
    for (const i of anomaly.proof) marked[i] = Math.max(marked[i], grave[anomaly.tone] ?? 1);
  }
  return {
    ...column, n, start, end, marked,
    total: packed.total, names: packed, duration: data.duration || 1, concurrency: data.concurrency,
  };
}

function valueText(model, i) {
  if (model.high[i] === -1) return '';
  if (model.high[i] < 0) return model.text[i] >= 0 ? model.names.texts[model.text[i]] : '?';
  const low = model.low[i] >>> 0;
  return model.names.pairs[model.f[i]] ? `${model.high[i]}/${low}` : String(model.high[i] * 2 ** 32 + low);
}

const nameOf = (table, code) => (code >= 0 ? table[code] : '');

// All operations that carry the value of operation i on the same object.
function sameMessage(model, i) {
  const found = [];
  if (model.high[i] < 0) return [i];
  for (let j = 0; j < model.n && found.length < 200; j++) {
    if (model.low[j] === model.low[i] && model.high[j] === model.high[i] && model.key[j] === model.key[i]) found.push(j);
  }
  return found;
}

// The operation with this row of the history; -1 where the page holds none.
function findRow(model, row) {
  for (let i = 0; i < model.n; i++) if (model.first[i] === row || model.last[i] === row) return i;
  return -1;
}

function findMessage(model, text) {
  for (let i = 0; i < model.n; i++) if (valueText(model, i) === text) return i;
  return -1;
}
