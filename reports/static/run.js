// Joins the parts of a run's page.

const data = JSON.parse(byId('data').textContent);

function setUpCopy() {
  const button = byId('copy');
  if (!button) return;
  button.hidden = false;
  button.addEventListener('click', async () => {
    const text = byId('command').textContent;
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(byId('command')); // no clipboard for this page: select, and copy the old way
      done = document.execCommand('copy');
    }
    button.textContent = done ? 'Copied' : 'Selected';
    setTimeout(() => {
      button.textContent = 'Copy';
    }, 1500);
  });
}

function setUpLegend(model, lanes) {
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
      lanes.draw();
    } }, swatch, name);
    legend.append(button);
  }
  if (classes.has(CLASS_MARK)) legend.append(el('span', { class: 'mark-key' }, '▼ proves an anomaly'));
}

function detailOf(model, i, story, lanes) {
  const { names } = model;
  const error = nameOf(names.errors, model.error[i]);
  const open = model.type[i] === 4;
  const during = data.faults.filter((fault) => fault.start <= model.end[i] && fault.end >= model.start[i]).map((fault) => fault.name);
  const rows = [
    ['Rows of the history', model.first[i] === model.last[i] ? model.first[i] : `${model.first[i]}, ${model.last[i]}`],
    ['Time', open ? `${seconds(model.start[i], 6)}, no completion` : `${seconds(model.start[i], 6)} – ${seconds(model.end[i], 6)} (${milliseconds((model.end[i] - model.start[i]) * 1000)})`],
    ['Process', model.process[i]], ['Node', nameOf(names.nodes, model.node[i]) || '—'],
    ['Object', model.key[i] >= 0 ? model.key[i] : '—'], ['Value', valueText(model, i) || '—'],
    ['Error', error || '—'], ['During', during.join(', ') || 'no fault'],
  ];
  const list = el('dl', { class: 'pairs' });
  for (const [label, text] of rows) list.append(el('div', {}, el('dt', {}, label), el('dd', {}, String(text))));
  const others = el('ol', { class: 'story' });
  for (const j of story) {
    const text = `${seconds(model.start[j])}: ${names.f[model.f[j]]} by process ${model.process[j]} ${nameOf(names.nodes, model.node[j])}: ${TYPES[model.type[j]]} ${nameOf(names.errors, model.error[j])}`;
    others.append(el('li', {}, j === i ? el('strong', {}, text) : el('button', { type: 'button', class: 'link', onclick: () => lanes.select(j, story) }, text)));
  }
  const title = el('h3', {}, `${names.f[model.f[i]]} ${valueText(model, i)} `, el('span', { class: `type t-${TYPES[model.type[i]]}` }, TYPES[model.type[i]]));
  return [title, list, ...(story.length > 1 ? [el('h4', {}, 'All operations of this message'), others] : [])];
}

function showAnomaly(at, model, lanes) {
  const anomaly = data.anomalies[at];
  if (anomaly.start === null) return;
  const pad = Math.max(0.25, (anomaly.end - anomaly.start) * 0.08);
  lanes.setView(anomaly.start - pad, anomaly.end + pad);
  lanes.select(anomaly.proof[0] ?? anomaly.spans[0], anomaly.spans);
  byId('timeline').scrollIntoView();
  byId('lanes').focus({ preventScroll: true });
}

function setUpTimelineTools(model, lanes) {
  byId('lanes-tools').hidden = false;
  const actions = { in: () => lanes.zoom(0.5), out: () => lanes.zoom(2), left: () => lanes.move(-0.4), right: () => lanes.move(0.4), fit: lanes.fit };
  for (const button of document.querySelectorAll('[data-do]')) button.addEventListener('click', actions[button.dataset.do]);
  byId('lanes-by').addEventListener('change', (event) => lanes.setLanes(event.target.value));
  byId('find').addEventListener('submit', (event) => {
    event.preventDefault();
    const text = byId('find-text').value.trim();
    const i = findMessage(model, text);
    byId('lanes-note').textContent = i < 0 ? `No operation carries the value ${text}.` : '';
    if (i >= 0) lanes.select(i);
  });
  if (model.n < model.total) {
    byId('lanes-note').textContent = `${count(model.n)} of ${count(model.total)} operations are drawn: all that belong to anomalies, and an even sample of the others.`;
  }
}

// What is folded up on the screen belongs on paper.
function setUpPrint() {
  let folded = [];
  addEventListener('beforeprint', () => {
    folded = [...document.querySelectorAll('details:not([open])')].slice(0, 60);
    for (const part of folded) part.open = true;
  });
  addEventListener('afterprint', () => {
    for (const part of folded) part.open = false;
  });
}

async function start() {
  setUpTheme();
  setUpCopy();
  setUpPrint();
  for (const swatch of document.querySelectorAll('[data-family]')) swatch.style.background = `var(${familyColour(swatch.dataset.family)})`;
  createCosts(data);
  let lanes = null;
  const logs = data.logs.length ? createLogs(data, () => (lanes ? lanes.state : { from: 0, to: data.duration })) : null;
  if (data.spans) {
    const model = await loadModel(data);
    let plots = null;
    const onView = (from, to) => {
      plots?.showView(from, to);
      logs?.viewChanged();
    };
    const onSelect = (i, story) => {
      const detail = byId('detail');
      detail.hidden = i < 0;
      detail.replaceChildren(...(i < 0 ? [] : detailOf(model, i, story, lanes)));
    };
    lanes = createLanes(model, data, onView, onSelect);
    plots = createPlots(data, model.names.f, (from, to) => lanes.setView(from, to));
    setUpTimelineTools(model, lanes);
    setUpLegend(model, lanes);
    const at = (ident) => data.anomalies.findIndex((anomaly) => anomaly.ident === ident);
    for (const button of document.querySelectorAll('[data-lanes]')) button.addEventListener('click', () => showAnomaly(at(button.dataset.lanes), model, lanes));
    for (const button of document.querySelectorAll('[data-logs]')) {
      button.addEventListener('click', () => {
        logs?.around(at(button.dataset.logs));
        byId('logs').scrollIntoView();
      });
    }
    for (const button of document.querySelectorAll('[data-fault]')) {
      button.addEventListener('click', () => {
        const fault = data.faults[Number(button.dataset.fault)];
        const pad = Math.max(0.5, (fault.end - fault.start) * 0.2);
        lanes.setView(fault.start - pad, fault.end + pad);
        byId('timeline').scrollIntoView();
      });
    }
  }
  let target = location.hash && byId(location.hash.slice(1));
  for (; target; target = target.parentElement) if (target.tagName === 'DETAILS') target.open = true;
  document.documentElement.dataset.ready = 'yes';
}

start().catch((error) => {
  document.documentElement.dataset.ready = 'failed';
  const note = byId('lanes-note');
  if (note) note.textContent = `The timeline could not be drawn: ${error.message}.`;
  throw error;
});
