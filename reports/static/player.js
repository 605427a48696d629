// Stepping through the time of a run: what happened at a moment, how things stood, what comes next.

const NEAR = 4; // events told before and after the moment
const IN_FLIGHT = 8; // operations under way that are named

// Everything that happened beside operations, in order of time: {time, text, node}.
function notableEvents(data, strips, logs) {
  const events = [];
  for (const fault of data.faults) {
    const on = fault.targets.length ? ` on ${fault.targets.join(', ')}` : '';
    events.push({ time: fault.start, text: `${fault.name}${on}: in force`, kind: 'fault' });
    if (fault.healed) events.push({ time: fault.end, text: `${fault.name}${on}: healed`, kind: 'fault' });
  }
  for (const strip of strips.all) {
    if (strip.kind === 'phases') events.push({ time: strip.from, text: `phase ${strip.label} begins`, kind: 'phase' });
    if (strip.kind === 'roles') events.push({ time: strip.from, text: strip.title.replace(/, [\d.,]+\s*s – .*$/, ''), kind: 'role' });
  }
  for (const line of logs?.lines ?? []) {
    if (line.node >= 0 && line.time !== null) events.push({ time: line.time, text: `${data.logs[line.node].node}: ${line.text}`, kind: 'log' });
  }
  return events.sort((a, b) => a.time - b.time);
}

function createPlayer({ model, data, view, strips, logs, lanes }) {
  const panel = byId('player');
  const now = byId('now');
  const button = byId('play-button');
  const choice = byId('play-events');
  let events = null;
  let ends = null; // positions of the operations in order of their ends
  let playing = 0;

  function prepare() {
    if (events) return;
    events = notableEvents(data, strips, logs);
    ends = model ? Int32Array.from({ length: model.n }, (_, i) => i).sort((a, b) => model.end[a] - model.end[b]) : null;
    if (!model) for (const value of ['all', 'story']) choice.querySelector(`[value=${value}]`).remove();
  }

  const time = () => view.state.pin ?? view.state.from;
  const operationText = (i, ending) => `${model.names.f[model.f[i]]} ${valueText(model, i)} ${ending ? TYPES[model.type[i]] : 'invoked'} by process ${model.process[i]} ${nameOf(model.names.nodes, model.node[i])}`;

  // Up to `most` events from a moment on, in one direction, nearest first; the moment itself is not among them.
  function from(moment, direction, most) {
    const found = [];
    const take = (list, read, text, filter = () => true) => {
      const at = direction > 0 ? lowerBound(list, moment + 1e-9, read) : lowerBound(list, moment - 1e-9, read) - 1;
      for (let k = at, n = 0; k >= 0 && k < list.length && n < most; k += direction) {
        if (!filter(list[k])) continue;
        found.push({ time: read(list[k]), ...text(list[k]) });
        n++;
      }
    };
    if (choice.value !== 'story') take(events, (event) => event.time, (event) => event);
    if (model && choice.value !== 'nodes') {
      const story = choice.value === 'story';
      const begun = story ? [...lanes.state.story].sort((a, b) => model.start[a] - model.start[b]) : model.start;
      const ended = story ? [...lanes.state.story].sort((a, b) => model.end[a] - model.end[b]) : ends;
      if (story) take(begun, (i) => model.start[i], (i) => ({ text: operationText(i, false), kind: 'op', i }));
      else takeStarts(moment, direction, most, found);
      take(ended, (i) => model.end[i], (i) => ({ text: operationText(i, true), kind: 'op', i }), (i) => model.type[i] !== 4);
    }
    return found.sort((a, b) => direction * (a.time - b.time)).slice(0, most);
  }

  function takeStarts(moment, direction, most, found) {
    const first = direction > 0 ? lowerBound(model.start, moment + 1e-9) : lowerBound(model.start, moment - 1e-9) - 1;
    for (let i = first, n = 0; i >= 0 && i < model.n && n < most; i += direction, n++) {
      found.push({ time: model.start[i], text: operationText(i, false), kind: 'op', i });
    }
  }

  // All that happened at the very moment.
  const at = (moment) => from(moment - 2e-9, 1, 40).filter((event) => Math.abs(event.time - moment) < 2e-9);

  function underWay(moment) {
    const found = [];
    for (const lane of model ? lanes.state.lanes : []) {
      for (let k = lowerBound(lane.reach, moment); k < lane.items.length; k++) {
        const i = lane.items[k];
        if (model.start[i] > moment) break;
        if (model.end[i] >= moment) found.push(i);
      }
    }
    return found;
  }

  function nodeCards(moment) {
    return strips.all.filter((strip) => strip.kind === 'roles').reduce((cards, strip) => {
      if (!cards.has(strip.lane)) cards.set(strip.lane, null);
      if (strip.from <= moment && moment < strip.to) cards.set(strip.lane, strip);
      return cards;
    }, new Map());
  }

  function show() {
    if (panel.hidden) return;
    const moment = time();
    const faults = faultsDuring(data.faults, moment, moment).map((fault) => fault.name);
    const cards = el('div', { class: 'nodes' });
    for (const [node, strip] of nodeCards(moment)) {
      const last = lastLine(node, moment);
      cards.append(el('div', { class: `node-card ${strip?.colour ?? ''}` },
        el('strong', {}, node), el('span', {}, strip ? `${strip.label}${strip.leads ? ' ★' : ''}` : 'not running, or no role reported'),
        last ? el('small', { class: 'mono' }, last) : null));
    }
    const busy = underWay(moment);
    const told = [faults.length ? `In force: ${faults.join(', ')}.` : 'No fault in force.'];
    if (model) told.push(`${count(busy.length)} operation${busy.length === 1 ? '' : 's'} in progress${busy.length ? `: ${busy.slice(0, IN_FLIGHT).map((i) => `${model.names.f[model.f[i]]} ${valueText(model, i)}`.trim()).join(', ')}${busy.length > IN_FLIGHT ? ' …' : ''}` : ''}.`);
    const list = el('ol', { class: 'events' });
    const row = (event, here) => el('li', { class: here ? 'here' : null }, el('button', { type: 'button', class: 'link', onclick: () => go(event) }, seconds(event.time, 6)), ` ${event.text}`);
    list.append(...from(moment, -1, NEAR).reverse().map((event) => row(event, false)),
      ...at(moment).slice(0, 6).map((event) => row(event, true)), ...from(moment, 1, NEAR).map((event) => row(event, false)));
    now.replaceChildren(el('p', { role: 'status' }, el('strong', {}, seconds(moment, 6)), ` ${told.join(' ')}`), cards, list);
  }

  function lastLine(node, moment) {
    const at = lowerBound(events, moment + 1e-9, (event) => event.time);
    const mine = (event) => event.kind === 'log' && event.text.startsWith(`${node}: `);
    for (let k = at - 1; k >= 0 && k > at - 5000; k--) if (mine(events[k])) return events[k].text.slice(node.length + 2);
    return '';
  }

  function go(event) {
    if (event.i !== undefined && choice.value === 'story') lanes.select(event.i, [...lanes.state.story]);
    view.setPin(event.time);
    if (event.time < view.state.from || event.time > view.state.to) view.show(event.time, view.state.to - view.state.from);
    show();
  }

  function step(direction) {
    open();
    stop();
    const [next] = from(time(), direction, 1);
    if (next) go(next);
  }

  function stop() {
    playing = 0;
    button.textContent = 'Play';
  }

  function play() {
    if (playing) {
      stop();
      return;
    }
    if (time() >= view.state.duration - 1e-6) view.setPin(view.state.start);
    button.textContent = 'Pause';
    const mine = ++turns;
    playing = mine;
    let before = performance.now();
    let told = 0;
    const frame = (stamp) => {
      if (playing !== mine) return;
      const next = Math.min(view.state.duration, time() + Math.max(0, ((stamp - before) / 1000) * Number(byId('play-speed').value)));
      before = stamp;
      view.setPin(next);
      const span = view.state.to - view.state.from;
      if (next < view.state.from || next > view.state.from + span * 0.85) view.setView(next - span * 0.15, next + span * 0.85);
      if (stamp - told > 80) {
        told = stamp; // twelve times a second is as much as anyone reads
        show();
      }
      if (next >= view.state.duration) stop();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
  let turns = 0;

  function open() {
    if (!panel.hidden) return;
    prepare();
    panel.hidden = false;
    byId('play-open').setAttribute('aria-expanded', 'true');
    if (view.state.pin === null) view.setPin(view.state.from);
    show();
  }

  byId('play-open').addEventListener('click', () => {
    if (panel.hidden) {
      open();
      return;
    }
    stop();
    panel.hidden = true;
    byId('play-open').setAttribute('aria-expanded', 'false');
  });
  const actions = { previous: () => step(-1), play, next: () => step(1) };
  for (const each of panel.querySelectorAll('[data-play]')) each.addEventListener('click', actions[each.dataset.play]);
  choice.addEventListener('change', show);
  view.watchers.push(() => !playing && show());
  return { step };
}
