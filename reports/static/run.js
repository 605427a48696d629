// Joins the parts of a run's page.

const data = JSON.parse(byId('data').textContent);

function setUpLegend(model, lanes, view) {
  const legend = byId('legend');
  const entries = model.names.f.slice(0, 4).map((name, at) => [`${name} ok`, CLASS_OK + at, `--f${at}`]);
  entries.push(['info', CLASS_INFO, '--info'], ['fail', CLASS_FAIL, '--fail'], ['fail: empty', CLASS_QUIET, '--quiet']);
  const classes = new Set(classify(model));
  for (const [name, kind, colour] of entries) {
    if (!classes.has(kind)) continue;
    const swatch = el('i', { class: 'swatch' });
    swatch.style.background = `var(${colour})`;
    const button = el('button', { type: 'button', class: 'quiet', 'aria-pressed': 'true', onclick: () => {
      lanes.hidden[kind] = lanes.hidden[kind] ? 0 : 1;
      button.setAttribute('aria-pressed', String(!lanes.hidden[kind]));
      view.request();
    } }, swatch, name);
    legend.append(button);
  }
  for (const [kind, tone, words] of [[CLASS_MARK, 'invalid', '▼ proves an anomaly'], [CLASS_DOUBT, 'unknown', '▼ leaves the verdict open'], [CLASS_PERMITTED, 'none', '▽ noted, does not affect the verdict']]) {
    if (classes.has(kind)) legend.append(el('span', { class: `mark-key v-${tone}` }, words));
  }
}

// Paper is light, as wide as paper, and shows of what is folded up as much as belongs on paper.
function setUpPrint(view) {
  let folded = [];
  addEventListener('beforeprint', () => {
    folded = [...document.querySelectorAll('details[data-paper]:not([open])')];
    for (const part of folded) part.open = true;
    view?.setPaper(true);
  });
  addEventListener('afterprint', () => {
    for (const part of folded) part.open = false;
    view?.setPaper(false);
  });
}

// Opens whatever an element lies folded up in.
function unfold(element) {
  for (let each = element; each; each = each.parentElement) if (each.tagName === 'DETAILS') each.open = true;
}

// The parts that need a history may be missing: `model` and `lanes` are null then.
function joinParts(model, view) {
  const tip = createTip();
  const strips = createStrips(view);
  createBack(view, data.faults);
  const chosen = { log: '' };
  const toTimeline = () => byId('timeline').scrollIntoView();
  const detail = byId('detail');
  const tell = (content) => {
    detail.hidden = !content;
    detail.replaceChildren(...(content || []));
  };
  const logs = data.logs.length ? createLogs(data, view, (time, name) => {
    goTo(time, name);
    toTimeline();
  }) : null;
  const asks = {
    select: (i, story) => lanes.select(i, story),
    logsAt: (from, to) => {
      logs?.around(from, to);
      byId('logs').scrollIntoView();
    },
  };
  const onSelect = (i, story) => {
    chosen.log = '';
    tell(i < 0 ? null : operationDetail(model, data, i, story, asks));
  };
  const lanes = model ? createLanes(model, data, view, onSelect) : null;
  createPlots(data.plots, model, view);

  function goTo(time, line) {
    lanes?.select(-1);
    view.setPin(time);
    view.show(time);
    chosen.log = line || '';
    logs?.choose(chosen.log);
    address.changed();
  }

  function showAnomaly(at) {
    const anomaly = data.anomalies[at];
    if (!lanes || !anomaly || anomaly.start === null) return;
    const pad = Math.max(0.25, (anomaly.end - anomaly.start) * 0.08);
    view.setView(anomaly.start - pad, anomaly.end + pad);
    lanes.select(anomaly.proof[0] ?? anomaly.spans[0], anomaly.spans);
  }

  function showFault(fault) {
    const pad = Math.max(0.5, (fault.end - fault.start) * 0.2);
    lanes?.select(-1);
    view.setView(fault.start - pad, fault.end + pad);
    view.setPin(fault.start);
  }

  attachPointers(view, {
    clicked: (target, time, event) => {
      const strip = strips.of(target);
      const i = !strip && lanes && target.closest('#lanes') ? lanes.hit(time, event.clientY) : -1;
      if (lanes) lanes.select(i);
      if (i < 0) view.setPin(strip ? Math.max(strip.from, view.state.from) : time);
      if (strip) tell(stripDetail(strip, asks));
    },
    hovered: (target, time, event) => {
      const i = time !== null && lanes && target?.closest?.('#lanes') ? lanes.hit(time, event.clientY) : -1;
      tip(i >= 0 ? tipOf(model, i) : null, event);
    },
    left: (event) => tip(null, event),
  });
  const player = createPlayer({ model, data, view, strips, logs, lanes });
  byId('lanes')?.addEventListener('keydown', (event) => {
    const step = { n: 1, p: -1 }[event.key];
    if (step && !event.ctrlKey && !event.metaKey && !event.altKey) player.step(step);
  });
  const address = createAddress(view, () => ({
    op: lanes && lanes.state.selected >= 0 ? model.first[lanes.state.selected] : null, log: chosen.log, by: lanes ? lanes.state.by : 'thread',
  }));
  view.watchers.push(address.changed);
  return { view, model, lanes, logs, address, goTo, showAnomaly, showFault, toTimeline };
}

function setUpTools({ view, model, lanes, address }) {
  byId('axis-tools').hidden = false;
  const actions = { in: () => view.zoom(0.5), out: () => view.zoom(2), left: () => view.move(-0.4), right: () => view.move(0.4), fit: view.fit };
  for (const button of document.querySelectorAll('[data-do]')) button.addEventListener('click', actions[button.dataset.do]);
  const page = () => location.href.replace(/#.*$/s, '');
  byId('copy-link').addEventListener('click', (event) => copyText(page() + address.current(), event.target));
  for (const button of document.querySelectorAll('[data-link]')) {
    button.hidden = false;
    button.addEventListener('click', () => copyText(`${page()}#${encodeURIComponent(button.dataset.link).replaceAll('%2F', '/')}`, button));
  }
  if (!lanes) return;
  byId('lanes-by').addEventListener('change', (event) => {
    lanes.setLanes(event.target.value);
    address.changed();
  });
  byId('find').addEventListener('submit', (event) => {
    event.preventDefault();
    const text = byId('find-text').value.trim();
    const i = findMessage(model, text);
    byId('lanes-note').textContent = i < 0 ? `No operation has the value ${text}.` : '';
    if (i >= 0) lanes.select(i);
  });
  if (model.n < model.total) {
    byId('lanes-note').textContent = `${count(model.n)} of ${count(model.total)} operations are drawn: all that belong to anomalies, and an even sample of the others.`;
  }
}

function setUpButtons({ logs, showAnomaly, showFault, toTimeline }) {
  const at = (ident) => data.anomalies.findIndex((anomaly) => anomaly.ident === ident);
  const each = (name, act) => {
    for (const button of document.querySelectorAll(`[data-${name}]`)) button.addEventListener('click', () => act(button.getAttribute(`data-${name}`)));
  };
  each('lanes', (ident) => {
    showAnomaly(at(ident));
    toTimeline();
    byId('lanes').focus({ preventScroll: true });
  });
  each('logs', (ident) => {
    logs?.aroundAnomaly(at(ident));
    byId('logs').scrollIntoView();
  });
  each('fault', (place) => {
    showFault(data.faults[Number(place)]);
    toTimeline();
  });
  each('fault-logs', (place) => {
    const fault = data.faults[Number(place)];
    logs?.around(fault.start, fault.start);
    byId('logs').scrollIntoView();
  });
}

// Shows what the address asks for; of a name, the element and, where it is an anomaly's, its stretch of the timeline.
function follow({ view, model, lanes, logs, goTo, showAnomaly, toTimeline }, asked) {
  if (asked.name !== undefined) {
    const target = asked.name && byId(asked.name);
    if (!target) return;
    unfold(target);
    showAnomaly(data.anomalies.findIndex((anomaly) => anomaly.ident === asked.name));
    target.scrollIntoView();
    return;
  }
  if (lanes && ['thread', 'process', 'node'].includes(asked.by)) {
    byId('lanes-by').value = asked.by;
    lanes.setLanes(asked.by);
  }
  if (asked.window) view.setView(...asked.window);
  const i = lanes && asked.op !== null ? findRow(model, asked.op) : -1;
  if (i >= 0) lanes.select(i);
  else if (asked.at !== null) {
    if (asked.window) {
      view.setPin(asked.at);
      logs?.choose(asked.log);
    } else goTo(asked.at, asked.log);
  } else if (asked.op !== null) byId('lanes-note').textContent = `The operation of row ${asked.op} is not drawn.`;
  toTimeline();
}

async function start() {
  setUpTheme();
  const copy = byId('copy');
  if (copy) {
    copy.hidden = false;
    copy.addEventListener('click', () => copyText(byId('command').textContent, copy, byId('command')));
  }
  for (const swatch of document.querySelectorAll('[data-family]')) swatch.style.background = `var(${familyColour(swatch.dataset.family)})`;
  const view = byId('axis') ? createView(data.start, data.duration) : null;
  setUpPrint(view);
  if (view) {
    const parts = joinParts(data.spans ? await loadModel(data) : null, view);
    setUpTools(parts);
    setUpButtons(parts);
    if (parts.model) setUpLives(data, parts.model, await loadTrace(data.trace));
    if (parts.lanes) setUpLegend(parts.model, parts.lanes, view);
    view.resize();
    if (location.hash) follow(parts, readAddress());
    addEventListener('hashchange', () => !parts.address.isOwn() && follow(parts, readAddress()));
  }
  document.documentElement.dataset.ready = 'yes';
}

start().catch((error) => {
  document.documentElement.dataset.ready = 'failed';
  const note = byId('lanes-note');
  if (note) note.textContent = `The timeline could not be drawn: ${error.message}.`;
  throw error;
});
