// What the reader chose, in words below the timeline.

function pairsOf(rows) {
  const list = el('dl', { class: 'pairs' });
  for (const [label, text] of rows) list.append(el('div', {}, el('dt', {}, label), el('dd', {}, String(text))));
  return list;
}

const faultsDuring = (faults, from, to) => faults.filter((fault) => fault.start <= to && fault.end >= from);

function operationDetail(model, data, i, story, { select, logsAt }) {
  const { names } = model;
  const error = nameOf(names.errors, model.error[i]);
  const open = model.type[i] === 4;
  const during = faultsDuring(data.faults, model.start[i], model.end[i]).map((fault) => fault.name);
  const rows = [
    ['Rows of the history', model.first[i] === model.last[i] ? model.first[i] : `${model.first[i]}, ${model.last[i]}`],
    ['Time', open ? `${seconds(model.start[i], 6)}, no completion` : `${seconds(model.start[i], 6)} – ${seconds(model.end[i], 6)} (${milliseconds((model.end[i] - model.start[i]) * 1000)})`],
    ['Process', model.process[i]], ['Node', nameOf(names.nodes, model.node[i]) || '—'],
    ['Object', model.key[i] >= 0 ? model.key[i] : '—'], ['Value', valueText(model, i) || '—'],
    ['Error', error || '—'], ['During', during.join(', ') || 'no fault'],
  ];
  const others = el('ol', { class: 'story' });
  for (const j of story) {
    const text = `${seconds(model.start[j])}: ${names.f[model.f[j]]} by process ${model.process[j]} ${nameOf(names.nodes, model.node[j])}: ${TYPES[model.type[j]]} ${nameOf(names.errors, model.error[j])}`;
    others.append(el('li', {}, j === i ? el('strong', {}, text) : el('button', { type: 'button', class: 'link', onclick: () => select(j, story) }, text)));
  }
  const title = el('h3', {}, `${names.f[model.f[i]]} ${valueText(model, i)} `, el('span', { class: `type t-${TYPES[model.type[i]]}` }, TYPES[model.type[i]]));
  return [title, pairsOf(rows), ...(story.length > 1 ? [el('h4', {}, 'All operations of this message'), others] : []), logButton(() => logsAt(model.start[i], model.end[i]))];
}

const logButton = (onclick) => el('p', { class: 'actions' }, el('button', { type: 'button', onclick }, 'Node logs at that time'));

function stripDetail(strip, { logsAt }) {
  return [el('h3', {}, strip.title), logButton(() => logsAt(strip.from, strip.from))];
}
