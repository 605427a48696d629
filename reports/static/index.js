// The list of runs: filtered in the page, drawn a chunk at a time.

const CHUNK = 200;
const { runs } = JSON.parse(byId('data').textContent);
const ICONS = {
  valid: 'M5 12.5l4.6 4.6L19.4 7.2', invalid: 'M6.5 6.5l11 11M17.5 6.5l-11 11',
  unknown: 'M8.2 8.6a3.9 3.9 0 1 1 5.6 3.5c-1.3.7-1.8 1.4-1.8 2.7M12 18.6v.2', none: 'M6 12h12',
};
let matching = runs;
let limit = CHUNK;
let verdict = '';

const wordOf = (verdict) => (verdict === 'none' ? 'no verdict' : verdict);

function rowOf(run) {
  const icon = svg('svg', { class: 'icon', viewBox: '0 0 24 24', 'aria-hidden': 'true' }, svg('path', { d: ICONS[run.verdict] }));
  const folder = encodeURIComponent(run.run);
  const live = run.report || location.protocol.startsWith('http'); // the server writes a report that is missing
  const name = live ? el('a', { href: `${folder}/report.html` }, run.run) : el('span', { title: `stormproof report ${run.run}` }, run.run);
  const found = Object.entries(run.anomalies).map(([anomaly, n]) => el('span', {}, `${anomaly} ${count(n)}`));
  return el('tr', {},
    el('td', {}, el('span', { class: `pill v-${run.verdict}` }, icon, wordOf(run.verdict))),
    el('td', {}, name, el('small', {}, run.started.replace('T', ' ').slice(0, 19))),
    el('td', {},
      el('span', {}, [run.system, run.workload, run.nemesis].filter(Boolean).join(' · ')),
      el('small', {}, `${run.options} seed ${run.seed} ${run.backend}`.trim())),
    el('td', {}, el('span', {}, run.sentence), found.length ? el('span', { class: `anomalies v-${run.verdict}` }, ...found) : null));
}

function draw() {
  byId('rows').replaceChildren(...matching.slice(0, limit).map(rowOf));
  byId('more').hidden = matching.length <= limit;
  byId('shown').textContent = matching.length === runs.length ? '' : `${count(matching.length)} of ${count(runs.length)}`;
}

function filter() {
  const system = byId('by-system').value;
  const nemesis = byId('by-nemesis').value;
  const text = byId('by-text').value.toLowerCase();
  matching = runs.filter((run) => (!verdict || run.verdict === verdict)
    && (!system || run.system === system)
    && (!nemesis || run.nemesis.split(',').includes(nemesis))
    && (!text || [run.run, run.sentence, run.options, run.workload, run.seed, ...Object.keys(run.anomalies)].join(' ').toLowerCase().includes(text)));
  for (const button of document.querySelectorAll('[data-verdict]')) button.setAttribute('aria-pressed', String(button.dataset.verdict === verdict));
  limit = CHUNK;
  draw();
}

function setUpFilters() {
  const choices = {
    'by-system': [...new Set(runs.map((run) => run.system))].filter(Boolean).sort(),
    'by-nemesis': [...new Set(runs.flatMap((run) => run.nemesis.split(',')))].sort(),
  };
  for (const [id, names] of Object.entries(choices)) {
    byId(id).append(el('option', { value: '' }, 'all'), ...names.map((name) => el('option', { value: name }, name)));
    byId(id).addEventListener('change', filter);
  }
  byId('by-text').addEventListener('input', filter);
  for (const button of document.querySelectorAll('[data-verdict]')) {
    button.addEventListener('click', () => {
      verdict = verdict === button.dataset.verdict ? '' : button.dataset.verdict;
      filter();
    });
  }
  byId('more').addEventListener('click', () => {
    limit += CHUNK * 5;
    draw();
  });
  byId('filters').hidden = runs.length === 0;
}

setUpTheme();
setUpFilters();
draw();
document.documentElement.dataset.ready = 'yes';
