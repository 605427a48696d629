// The life of a message: as a list, as a sequence diagram, and, of any message, from the marks of the trace.

const LIFE_WORDS = {
  sent: 'had it', copied: 'had a copy', logged: 'had it in the log', started: 'started with it', replaced: 'had it with another’s state',
  closed: 'put it back when a client’s connection was closed', returned: 'put it back when a client returned it',
};
const LIFE_GONE = {
  acknowledged: 'removed it after an acknowledgement', closed: 'removed it when a client’s connection was closed', started: 'restarted without it',
  replaced: 'had its state replaced by one that lacked it', reset: 'discarded it when its queue was reset', copied: 'removed it at another node’s request',
  returned: 'removed it when a client returned it', deleted: 'removed it with its queue', truncated: 'removed it from its log',
};

async function loadTrace(packed) {
  if (!packed) return null;
  const buffer = await inflate(packed.block);
  const column = {};
  packed.columns.forEach((name, at) => {
    column[name] = new Int32Array(buffer, at * packed.count * 4, packed.count);
  });
  const time = new Float64Array(packed.count);
  let ticks = 0;
  for (let i = 0; i < packed.count; i++) {
    ticks += column.time[i];
    time[i] = ticks / 1e4;
  }
  return { ...column, time, names: packed };
}

// What became of a message, from the operations that carry it and the marks of the trace.
function lifeOf(value, model, trace) {
  const events = [];
  for (let i = 0; i < model.n; i++) {
    if (model.high[i] === -1 || valueText(model, i) !== value) continue;
    const f = model.names.f[model.f[i]];
    const client = `client ${model.process[i]}`;
    const node = nameOf(model.names.nodes, model.node[i]) || '?';
    const type = TYPES[model.type[i]];
    const error = nameOf(model.names.errors, model.error[i]);
    if (model.names.sends[model.f[i]]) {
      events.push([model.start[i], 'send', client, [node], `${client} sent it to ${node} (${f}).`]);
      if (type === 'ok') events.push([model.end[i], 'receipt', node, [client], `${node} confirmed it.`]);
      else if (type !== 'open') events.push([model.end[i], 'receipt', '', [client], `${client}: ${type}${error ? ` (${error})` : ''}.`]);
    } else if (type !== 'open') {
      events.push([model.end[i], 'delivery', node, [client], `${node} delivered it to ${client} (${f}): ${type}${error ? ` (${error})` : ''}.`]);
    }
  }
  const message = trace ? trace.names.messages.indexOf(value) : -1;
  const held = {};
  if (message >= 0) {
    for (let i = 0; i < trace.time.length; i++) {
      if (trace.message[i] !== message) continue;
      const [node, cause, place] = [trace.names.nodes[trace.node[i]], trace.names.causes[trace.cause[i]], trace.names.places[trace.place[i]]];
      const words = (trace.put[i] ? LIFE_WORDS : LIFE_GONE)[cause] ?? (trace.put[i] ? `had it (${cause})` : `removed it (${cause})`);
      events.push([trace.time[i], trace.put[i] ? 'here' : 'away', '', [node], `${node} ${words}, in ${place}.`]);
      (held[node] ??= []).push([trace.time[i], trace.put[i] ? 1 : -1, cause, place]);
    }
    for (const [node, starts] of Object.entries(trace.names.starts)) {
      for (const start of starts) {
        const before = (held[node] ?? []).filter(([time, , , place]) => time < start && place !== 'log').reduce((sum, [, change]) => sum + change, 0);
        const again = (held[node] ?? []).some(([time, , cause]) => cause === 'started' && time >= start && time <= start + 2);
        if (before > 0 && !again) events.push([start, 'away', '', [node], `${node} restarted without it.`]);
      }
    }
  }
  return events.sort((a, b) => a[0] - b[0]);
}

function lifeList(events) {
  const list = el('ol', { class: 'story life' });
  for (const [time, kind, , , text] of events) list.append(el('li', { class: `k-${kind}` }, el('span', { class: 'at' }, seconds(time)), ` ${text}`));
  return list;
}

const [ROW_H, COLUMN_W, HEAD_H, TIME_W] = [26, 110, 30, 84];

// Clients and nodes as columns, time downwards (one row an event, not to scale).
function sequenceDiagram(events, about) {
  const isClient = (name) => name.startsWith('client ');
  const names = [...new Set(events.flatMap(([, , source, targets]) => [source, ...targets]).filter(Boolean))];
  const order = (a, b) => isClient(b) - isClient(a) || a.localeCompare(b, 'en', { numeric: true });
  const columns = names.sort(order);
  const x = Object.fromEntries(columns.map((name, at) => [name, TIME_W + COLUMN_W * (at + 0.5)]));
  const width = TIME_W + COLUMN_W * columns.length + 470;
  const height = HEAD_H + ROW_H * events.length + 12;
  const root = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Sequence diagram of message ${about}` });
  for (const name of columns) {
    root.append(svg('text', { x: x[name], y: 18, class: 'head' }, name), svg('line', { x1: x[name], x2: x[name], y1: HEAD_H - 4, y2: height - 8, class: 'line' }));
  }
  const since = {};
  const bar = (name, from, to) => root.append(svg('line', { x1: x[name], x2: x[name], y1: from, y2: to, class: 'has' }));
  const shapes = [];
  events.forEach(([time, kind, source, targets, text], at) => {
    const y = HEAD_H + ROW_H * (at + 0.5);
    shapes.push(svg('text', { x: TIME_W - 10, y: y + 4, class: 'when' }, seconds(time)));
    const gone = kind === 'away' || (kind === 'state' && text.includes('which lacked it'));
    for (const name of targets) {
      if (source && x[source] !== undefined && x[name] !== undefined) {
        const right = x[name] > x[source] ? 1 : -1;
        shapes.push(svg('line', { x1: x[source], x2: x[name] - 7 * right, y1: y, y2: y, class: `arrow${kind === 'state' ? ' dash' : ''}` }));
        shapes.push(svg('path', { d: `M${x[name]} ${y} l${-8 * right} -4 v8 z`, class: 'tip' }));
      }
      if (isClient(name)) continue;
      if (gone) {
        if (since[name] !== undefined) bar(name, since[name], y);
        delete since[name];
        shapes.push(svg('path', { d: `M${x[name] - 5} ${y - 5} l10 10 m0 -10 l-10 10`, class: 'cross' }));
      } else if (kind === 'here' || kind === 'state') {
        since[name] ??= y;
        shapes.push(svg('circle', { cx: x[name], cy: y, r: 4.5, class: 'dot' }));
      } else if (kind === 'role' || kind === 'fault' || kind === 'note') {
        shapes.push(svg('rect', { x: x[name] - 4, y: y - 4, width: 8, height: 8, class: 'note' }));
      }
    }
    shapes.push(svg('text', { x: TIME_W + COLUMN_W * columns.length + 6, y: y + 4, class: 'note' }, text.length > 76 ? `${text.slice(0, 75)}…` : text, svg('title', {}, text)));
  });
  for (const [name, from] of Object.entries(since)) bar(name, from, height - 8);
  root.append(...shapes);
  return el('div', { class: 'sequence', tabindex: '0', role: 'region', 'aria-label': `Sequence diagram of message ${about}` }, root);
}

function setUpLives(data, model, trace) {
  for (const box of document.querySelectorAll('[data-life]')) {
    box.addEventListener('toggle', () => {
      const events = data.lives[box.dataset.life];
      if (box.open && box.children.length === 1 && events) box.append(sequenceDiagram(events, box.dataset.life));
    });
  }
  const form = byId('message-find');
  if (!form) return;
  form.hidden = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const value = byId('message-text').value.trim();
    const events = data.lives[value] ?? lifeOf(value, model, trace);
    const box = byId('message-life');
    byId('message-note').textContent = events.length ? '' : `No operation of this run has the value ${value}.`;
    box.hidden = !events.length;
    box.replaceChildren(...(events.length ? [el('h3', {}, `Message ${value}`), lifeList(events), sequenceDiagram(events, value)] : []));
    if (events.length && !trace) box.append(el('p', { class: 'muted' }, 'The places of the message were not recorded. Some systems record them with --set trace=true.'));
  });
}
