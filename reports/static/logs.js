// Node logs in one list, in order of time, cut to a window.

const LOG_CHUNK = 400;
const AROUND_S = 3;

function createLogs(data, viewOf) {
  const box = byId('log');
  const choice = byId('log-window');
  const contains = byId('log-text');
  const lines = data.logs.flatMap((log, node) => log.lines.map(([number, time, text]) => ({ node, number, time, text })));
  lines.sort((a, b) => (a.time ?? Infinity) - (b.time ?? Infinity) || a.node - b.node || a.number - b.number);
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

  function show(reset = true) {
    if (reset) {
      limit = LOG_CHUNK;
      const within = wanted();
      const text = contains.value.toLowerCase();
      matching = lines.filter((line) => !hiddenNodes.has(line.node) && within(line.time) && (!text || line.text.toLowerCase().includes(text)));
      box.scrollTop = 0;
    }
    const rows = matching.slice(0, limit).map((line) => el('div', {},
      el('span', { class: 'at' }, line.time === null ? '—' : line.time.toFixed(3)),
      el('span', { class: `node node-${line.node % 6}` }, data.logs[line.node].node),
      el('span', { class: 'text' }, line.text)));
    box.replaceChildren(...rows);
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
