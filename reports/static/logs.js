// Node logs in one list, in order of time, cut to a window. A line leads to its moment of the timeline, and back.

const LOG_CHUNK = 400;
const AROUND_S = 3;

function createLogs(data, view, onLine) {
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
  const moment = el('option', { value: 'moment', hidden: '' }, '');
  let asked = { from: 0, to: 0 };
  let limit = LOG_CHUNK;
  let matching = [];

  byId('log-tools').hidden = false;
  choice.append(el('option', { value: 'all' }, 'all lines kept'), el('option', { value: 'view' }, 'the timeline’s window'), moment);
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

  // The seconds in question: all, what the timeline shows, or a few around a moment or the operations of an anomaly.
  function wanted() {
    if (choice.value === 'all') return () => true;
    if (choice.value === 'view') {
      const { from, to } = view.state;
      return (time) => time !== null && time >= from && time <= to;
    }
    const { start, end, death = null } = choice.value === 'moment' ? { start: asked.from, end: asked.to } : data.anomalies[Number(choice.value)];
    return (time) => time !== null && time >= start - AROUND_S && time <= Math.max(end, death ?? 0) + AROUND_S;
  }

  // Lines of our own among the nodes' lines: what the list is about.
  function marksOf() {
    if (choice.value === 'moment') return [{ node: -1, number: 0, time: asked.from, text: 'the chosen moment' }];
    const anomaly = data.anomalies[Number(choice.value)];
    if (!anomaly || anomaly.start === null) return [];
    const times = anomaly.end > anomaly.start ? [['its first operation begins', anomaly.start], ['its last operation ends', anomaly.end]] : [['its operation', anomaly.start]];
    if (anomaly.death !== null) times.push(['the last node that had it removed it', anomaly.death]);
    return times.map(([word, time]) => ({ node: -1, number: 0, time, text: `${anomaly.title}: ${word}`, death: time === anomaly.death }));
  }

  const nameOfLine = (line) => (line.number ? `${data.logs[line.node].node}:${line.number}` : '');

  function rowOf(line) {
    const own = line.node < 0;
    const name = nameOfLine(line);
    const at = line.time === null ? '—' : el('a', { href: `#at=${line.time.toFixed(6)}${name ? `&log=${encodeURIComponent(name)}` : ''}`, title: 'Show in timeline' }, line.time.toFixed(3));
    const row = el('div', { class: own ? `mark${line.fault ? ' fault' : ''}${line.death ? ' death' : ''}` : null },
      el('span', { class: 'at' }, at),
      el('span', { class: own ? 'node' : `node node-${line.node % 6}` }, own ? '▼' : data.logs[line.node].node),
      el('span', { class: 'text' }, line.text));
    if (name) row.dataset.line = name;
    if (line.time !== null) row.addEventListener('click', (event) => !getSelection().toString() && !event.target.closest('a') && onLine(line.time, name));
    return row;
  }

  function show(reset = true) {
    if (reset) {
      limit = LOG_CHUNK;
      const within = wanted();
      const text = contains.value.toLowerCase();
      matching = marksOf().concat(lines).filter((line) => !hiddenNodes.has(line.node) && within(line.time) && (!text || line.text.toLowerCase().includes(text)));
      matching.sort(inOrder);
    }
    const rows = matching.slice(0, limit).map(rowOf);
    box.replaceChildren(...rows);
    if (reset) scrollTo(box.querySelector('.mark.death') ?? box.querySelector('.mark:not(.fault)'));
    if (!rows.length) box.append(el('p', { class: 'empty' }, 'No lines here.'));
    byId('log-more').hidden = matching.length <= limit;
  }

  function scrollTo(row) {
    box.scrollTop = row ? row.offsetTop - box.offsetTop - box.clientHeight / 3 : 0;
  }

  // Chooses a line, if the list shows it or can.
  function choose(name) {
    for (const row of box.querySelectorAll('.here')) row.classList.remove('here');
    const line = name && lines.find((each) => nameOfLine(each) === name);
    if (!line) return;
    const find = () => [...box.children].find((row) => row.dataset.line === name);
    if (!find() && line.time !== null) around(line.time, line.time);
    const row = find();
    if (!row) return;
    row.classList.add('here');
    const above = row.offsetTop - box.offsetTop - box.scrollTop;
    if (above < 0 || above > box.clientHeight - 20) scrollTo(row);
  }

  function around(from, to) {
    asked = { from, to };
    moment.textContent = `around ${seconds(from)}`;
    moment.hidden = false;
    choice.value = 'moment';
    show();
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
  let due = 0;
  view.watchers.push(() => {
    if (choice.value !== 'view' || due) return;
    due = setTimeout(() => {
      due = 0;
      show();
    }, 120); // not with every frame of a zoom
  });
  return {
    lines, choose, around,
    aroundAnomaly: (at) => {
      choice.value = String(at);
      show();
    },
  };
}
