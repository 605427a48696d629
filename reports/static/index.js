// The list of runs: filtered, sorted and paged; the address says how, after its #.

const PAGE = 100;
const ICONS = {
  valid: 'M5 12.5l4.6 4.6L19.4 7.2', invalid: 'M6.5 6.5l11 11M17.5 6.5l-11 11',
  unknown: 'M8.2 8.6a3.9 3.9 0 1 1 5.6 3.5c-1.3.7-1.8 1.4-1.8 2.7M12 18.6v.2', none: 'M6 12h12',
};
const NEWEST = '-started';
const CONTROLS = { system: 'by-system', nemesis: 'by-nemesis', backend: 'by-backend', night: 'by-night', seed: 'by-seed', text: 'by-text' };
const FILTERS = ['verdict', 'guarantee', 'shows', 'status', ...Object.keys(CONTROLS)];
const GRAVITY = { invalid: 3, unknown: 2, none: 1, valid: 0 };
const found = (run) => run.anomalies.reduce((sum, [, n]) => sum + (typeof n === 'number' ? n : 0), 0);
const SORTS = {
  verdict: (run) => GRAVITY[run.verdict] ?? 1,
  started: (run) => run.started,
  test: (run) => [run.system, run.workload, run.nemesis].join(' '),
  seed: (run) => Number(run.seed),
  anomalies: found,
};
let asked = {};
let turn = 0; // of what was asked: an answer that comes after the next question is none

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  asked = { page: 1, sort: NEWEST };
  for (const name of FILTERS) asked[name] = given.get(name) ?? '';
  const sort = given.get('sort') ?? '';
  if (Object.hasOwn(SORTS, sort.replace(/^-/, ''))) asked.sort = sort;
  const page = Number(given.get('page'));
  if (Number.isSafeInteger(page) && page > 0) asked.page = page;
}

// Go to what is asked with these changes; typing replaces the address, all else can be gone back from.
function go(changes, typing = false) {
  const next = { ...asked, page: 1, ...changes };
  const said = new URLSearchParams();
  for (const name of FILTERS) if (next[name]) said.set(name, next[name]);
  if (next.sort !== NEWEST) said.set('sort', next.sort);
  if (next.page > 1) said.set('page', next.page);
  const address = `#${said}`;
  if (typing) history.replaceState(null, '', address);
  else history.pushState(null, '', address);
  show();
}

const wordOf = (verdict) => (verdict === 'none' ? 'no verdict' : verdict);

function rowOf(run) {
  const icon = svg('svg', { class: 'icon', viewBox: '0 0 24 24', 'aria-hidden': 'true' }, svg('path', { d: ICONS[run.verdict] }));
  const folder = encodeURIComponent(run.run);
  const live = run.report || location.protocol.startsWith('http'); // the server writes a report that is missing
  const name = live ? el('a', { href: `${folder}/report.html` }, run.run) : el('span', { title: `stormproof report ${run.run}` }, run.run);
  const anomalies = run.anomalies.map(([anomaly, n]) => el('span', {}, `${anomaly} ${count(n)}`));
  return el('tr', {},
    el('td', {}, el('span', { class: `pill v-${run.verdict}` }, icon, wordOf(run.verdict))),
    el('td', {}, name, el('small', {}, run.started.replace('T', ' ').slice(0, 19), run.night ? ` · night ${run.night}` : '')),
    el('td', {},
      el('span', {}, [run.system, run.workload, run.nemesis].filter(Boolean).join(' · ')),
      el('small', {}, `${run.options} ${run.backend}`.trim())),
    el('td', { class: run.seed.length > 9 ? 'n seed long' : 'n seed' }, run.seed),
    el('td', {}, el('span', {}, run.sentence), anomalies.length ? el('span', { class: `anomalies v-${run.verdict}` }, ...anomalies) : null));
}

function haystack(run) {
  run.text ??= [run.run, run.sentence, run.options, run.system, run.workload, run.nemesis, run.backend, run.seed, run.night, run.status,
    ...run.anomalies.map(([name]) => name)].join(' ').toLowerCase();
  return run.text;
}

// Whether a run is one of those that the matrix counts: with a verdict, and without a bug switched on.
function shows(run) {
  if (!asked.guarantee) return true;
  if (run.options.startsWith('bug=') || !['valid', 'invalid'].includes(run.verdict)) return false;
  return run.guarantees.split(', ').some((each) => {
    const [name, what, ...status] = each.split(' ');
    return name === asked.guarantee && (!asked.shows || what === asked.shows) && (!asked.status || status.join(' ') === asked.status);
  });
}

function matching(runs) {
  const words = asked.text.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => (!asked.verdict || run.verdict === asked.verdict)
    && (!asked.system || run.system === asked.system)
    && (!asked.nemesis || run.nemesis.split(',').includes(asked.nemesis))
    && (!asked.backend || run.backend === asked.backend)
    && (!asked.night || run.night === asked.night)
    && (!asked.seed || run.seed === asked.seed)
    && shows(run)
    && words.every((word) => haystack(run).includes(word)));
}

function sorted(runs) {
  if (asked.sort === NEWEST) return runs;
  const down = asked.sort.startsWith('-');
  const key = SORTS[asked.sort.replace(/^-/, '')];
  const keyed = runs.map((run, at) => [key(run), at, run]);
  const order = (a, b) => {
    if (a === b || (a !== a && b !== b)) return 0;
    if (a !== a || b !== b) return a !== a ? 1 : -1; // what is no number comes last
    return (a < b) === down ? 1 : -1;
  };
  return keyed.sort((a, b) => order(a[0], b[0]) || a[1] - b[1]).map(([, , run]) => run);
}

async function show() {
  turn += 1;
  const mine = turn;
  read();
  const filtered = FILTERS.some((name) => asked[name]);
  drawControls(filtered);
  try {
    let rows;
    let size = total;
    const from = () => (asked.page - 1) * PAGE;
    if (filtered || asked.sort !== NEWEST) {
      const all = await allRows((come, of) => { if (mine === turn && come < of) byId('shown').textContent = `reading ${come} of ${of}`; });
      if (mine !== turn) return;
      const kept = sorted(matching(all));
      size = kept.length;
      asked.page = clamp(asked.page, 1, Math.max(1, Math.ceil(size / PAGE)));
      rows = kept.slice(from(), from() + PAGE);
    } else {
      asked.page = clamp(asked.page, 1, Math.max(1, Math.ceil(size / PAGE)));
      rows = await someRows(from(), from() + PAGE);
      if (mine !== turn) return;
    }
    draw(rows, size, filtered);
  } catch (error) {
    if (mine === turn) byId('shown').textContent = error.message;
  }
}

function draw(rows, size, filtered) {
  byId('rows').replaceChildren(...rows.map(rowOf));
  byId('shown').textContent = filtered ? `${count(size)} of ${count(total)}` : '';
  byId('none').hidden = rows.length > 0 || total === 0;
  const pages = Math.ceil(size / PAGE);
  byId('pager').hidden = pages <= 1;
  byId('place').textContent = `page ${count(asked.page)} of ${count(pages)}`;
  for (const [id, page] of Object.entries({ first: 1, previous: asked.page - 1, next: asked.page + 1, last: pages })) {
    byId(id).disabled = page < 1 || page > pages || page === asked.page;
    byId(id).onclick = () => {
      go({ page });
      byId('table').scrollIntoView();
    };
  }
  document.documentElement.dataset.ready = 'yes';
}

function drawControls(filtered) {
  for (const [name, id] of Object.entries(CONTROLS)) if (byId(id).value !== asked[name]) byId(id).value = asked[name];
  for (const button of document.querySelectorAll('[data-verdict]')) button.setAttribute('aria-pressed', String(button.dataset.verdict === asked.verdict));
  for (const button of document.querySelectorAll('[data-sort]')) {
    const down = asked.sort === `-${button.dataset.sort}`;
    const mine = down || asked.sort === button.dataset.sort;
    button.closest('th').setAttribute('aria-sort', mine ? (down ? 'descending' : 'ascending') : 'none');
  }
  byId('sort').value = asked.sort;
  byId('clear').hidden = !filtered;
  byId('guarantee').hidden = !asked.guarantee;
  byId('guarantee').textContent = asked.guarantee ? `guarantee ${asked.guarantee}${asked.shows ? `: ${asked.shows}` : ''}${asked.status ? ` (${asked.status})` : ''}` : '';
}

function setUp() {
  for (const [name, id] of Object.entries(CONTROLS)) {
    const control = byId(id);
    if (choices[name]) {
      control.append(el('option', { value: '' }, 'all'), ...choices[name].map((value) => el('option', { value }, value)));
      control.closest('label').hidden = choices[name].length === 0;
      control.addEventListener('change', () => go({ [name]: control.value }));
    } else {
      control.addEventListener('input', () => go({ [name]: control.value.trim() }, true));
    }
  }
  for (const button of document.querySelectorAll('[data-verdict]')) {
    button.addEventListener('click', () => go({ verdict: asked.verdict === button.dataset.verdict ? '' : button.dataset.verdict }));
  }
  for (const button of document.querySelectorAll('[data-sort]')) {
    const name = button.dataset.sort;
    button.addEventListener('click', () => go({ sort: asked.sort === `-${name}` ? name : `-${name}` }));
  }
  byId('sort').addEventListener('change', () => go({ sort: byId('sort').value }));
  byId('clear').addEventListener('click', () => go(Object.fromEntries(FILTERS.map((name) => [name, '']))));
  addEventListener('hashchange', show);
  addEventListener('popstate', show);
  byId('filters').hidden = total === 0;
}

setUpTheme();
setUp();
show();
