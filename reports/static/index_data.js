// Rows of the index: the newest are in the page, older ones in files that are loaded when they are needed.

const { parts, tail, choices } = JSON.parse(byId('data').textContent);
const waiting = new Map(); // file -> what to call with its rows
const loaded = new Map(); // number of a part -> promise of its rows

// What a part of the index calls when it has been loaded.
window.stormproofRows = (name, packed) => {
  const take = waiting.get(name);
  if (take) take(unpacked(packed));
};

function unpacked({ words, columns, rows }) {
  return rows.map(([run, sentence, seed, started, report, anomalies, ...codes]) => {
    const row = { run, sentence, seed, started, report, anomalies };
    columns.forEach((column, at) => { row[column] = words[codes[at]]; });
    return row;
  });
}

const newest = unpacked(tail);
const full = parts.reduce((sum, part) => sum + part.rows, 0);
const total = full + newest.length;

function loadPart(at) {
  if (!loaded.has(at)) {
    loaded.set(at, new Promise((done, fail) => {
      const { file } = parts[at];
      waiting.set(file.split('/')[1], done);
      const broken = () => fail(new Error('The list of runs has changed: reload this page.'));
      document.head.append(el('script', { src: file, onload: broken, onerror: broken })); // done was first, if it is whole
    }));
  }
  return loaded.get(at);
}

// All rows, newest first; `tell` is called with how many of how many files have come.
async function allRows(tell) {
  let come = 0;
  const older = await Promise.all(parts.map(async (_, at) => {
    const rows = await loadPart(at);
    come += 1;
    tell(come, parts.length);
    return rows;
  }));
  return [...older.flat(), ...newest].reverse();
}

// The rows from `first` to before `last`, counted from the newest, of those files alone that hold them.
async function someRows(first, last) {
  const from = total - Math.min(last, total); // counted from the oldest
  const to = total - first;
  const found = [];
  let start = 0;
  for (let at = 0; at < parts.length; at += 1) {
    const end = start + parts[at].rows;
    if (start < to && end > from) found.push(...(await loadPart(at)).slice(Math.max(0, from - start), to - start));
    start = end;
  }
  found.push(...newest.slice(Math.max(0, from - full), Math.max(0, to - full)));
  return found.reverse();
}
