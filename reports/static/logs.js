// Node logs in one list, in order of time, cut to a window.

const LOG_CHUNK = 400;
const AROUND_S = 3;

function createLogs(data, viewOf) {
  const box = byId('log');
  const choice = byId('log-window');
  const contains = byId('log-text');
  const lines = data.logs.flatMap((log, node) => log.lines.map(([number, time, text]) => ({ node, number, time, text })));
  for (const fault of data.faults) {
    const still = fault.family === 'standstill';
    lines.push({ node: -1, number: 0, time: fault.start, text: still ? fault.name : `${fault.name} injected`, fault: true });
    if (fault.healed && !still) lines.push({ node: -1, number: 0, time: fault.end, text: `${fault.name} healed`, fault: true });
  }
  const inOrder = (a, b) => (a.time ?? Infinity) - (b.time ?? Infinity) || a.node - b.node || a.number - b.number;
  const hiddenNodes = new Set();
  let limit = LOG_CHUNK;
  let matching = [];

  byId('log-tools').hidden = false;
  choice.append(el('option', { value: 'all' }, 'all lines kept'), el('option', { value: 'view' }, 'the timeline’s window'));
  data.anomalies.forEach((anomaly, at) => {
    if (anomaly.start !== null) choice.append(el('option', { value: String(at) }, `around ${anomaly.title}`));
  });
  data.logs.forEach((log, node) => {
    const toggle = el('input', { type: 'checkbox', checked: '', onchange: () => {
      if (toggle.checked) hiddenNodes.delete(node);
      else hiddenNodes.add(node);
      show();
    } });
    byId('log-nodes').append(el('label', { class: `node-${node % 6}` }, toggle, log.node));
  });

  // The seconds in question: all, what the timeline shows, or a few around each operation of an anomaly.
  function wanted() {
    if (choice.value === 'all') return () => true;
    if (choice.value === 'view') {
      const { from, to } = viewOf();
      return (time) => time !== null && time >= from && time <= to;
    }
    const { start, end } = data.anomalies[Number(choice.value)];
    return (time) => time !== null && time >= start - AROUND_S && time <= end + AROUND_S;
  }

  // Lines of our own among the nodes' lines: when the anomaly's operations began and ended.
  function marksOf(anomaly) {
    if (!anomaly || anomaly.start === null) return [];
    const times = anomaly.end > anomaly.start ? [['its first operation begins', anomaly.start], ['its last operation ends', anomaly.end]] : [['its operation', anomaly.start]];
    return times.map(([word, time]) => ({ node: -1, number: 0, time, text: `${anomaly.title}: ${word}` }));
  }

  function rowOf(line) {
    const own = line.node < 0;
    return el('div', { class: own ? `mark${line.fault ? ' fault' : ''}` : null },
      el('span', { class: 'at' }, line.time === null ? '—' : line.time.toFixed(3)),
      el('span', { class: own ? 'node' : `node node-${line.node % 6}` }, own ? '▼' : data.logs[line.node].node),
      el('span', { class: 'text' }, line.text));
  }

  function show(reset = true) {
    if (reset) {
      limit = LOG_CHUNK;
      const within = wanted();
      const text = contains.value.toLowerCase();
      const marks = marksOf(data.anomalies[Number(choice.value)]);
      matching = marks.concat(lines).filter((line) => !hiddenNodes.has(line.node) && within(line.time) && (!text || line.text.toLowerCase().includes(text)));
      matching.sort(inOrder);
    }
    const rows = matching.slice(0, limit).map(rowOf);
    box.replaceChildren(...rows);
    if (reset) {
      const mark = box.querySelector('.mark:not(.fault)');
      box.scrollTop = mark ? mark.offsetTop - box.offsetTop - box.clientHeight / 3 : 0;
    }
    if (!rows.length) box.append(el('p', { class: 'empty' }, 'No lines here.'));
    byId('log-more').hidden = matching.length <= limit;
  }

  byId('log-more').addEventListener('click', () => {
    limit += LOG_CHUNK * 3;
    show(false);
  });
  choice.addEventListener('change', () => show());
  contains.addEventListener('input', () => show());
  const first = data.anomalies.findIndex((anomaly) => anomaly.start !== null);
  choice.value = first >= 0 ? String(first) : 'all';
  show();
  return {
    around: (at) => {
      choice.value = String(at);
      show();
    },
    viewChanged: () => choice.value === 'view' && show(),
  };
}
