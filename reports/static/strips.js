// The strips above the operations: phases, faults, groups, roles. The page has them from the start; here they follow
// the window.

const LEAST_TEXT = 24; // pixels; longer texts are cut where their strip ends

function createStrips(view) {
  const all = [];
  for (const row of document.querySelectorAll('#axis .strips .axis-row')) {
    const lane = row.querySelector('.axis-label').title;
    const kind = [...row.classList].find((name) => name.startsWith('lane-')).slice(5);
    for (const element of row.querySelectorAll('.role')) {
      const text = element.querySelector('text');
      all.push({
        element, text, lane, kind, label: text.textContent, title: element.querySelector('title').textContent,
        from: Number(element.dataset.from), to: Number(element.dataset.to), shown: true,
        colour: [...element.classList].find((name) => /^g-?\d+$/.test(name)) || '',
        leads: element.classList.contains('leads'), tight: null,
      });
    }
  }
  view.panels.push({ paint: () => {
    const { from, to } = view.state;
    const perSecond = 100 / (to - from);
    const pixels = (view.width() - view.gutter()) / 100;
    for (const strip of all) {
      const seen = strip.to >= from && strip.from <= to;
      if (seen !== strip.shown) {
        strip.element.style.display = seen ? '' : 'none';
        strip.shown = seen;
      }
      if (!seen) continue;
      const left = (Math.max(strip.from, from) - from) * perSecond;
      const wide = (Math.min(strip.to, to) - Math.max(strip.from, from)) * perSecond;
      strip.element.setAttribute('x', `${left.toFixed(4)}%`);
      strip.element.setAttribute('width', `${wide.toFixed(4)}%`);
      const tight = wide * pixels < LEAST_TEXT;
      if (tight === strip.tight) continue;
      strip.text.classList.toggle('tight', tight);
      strip.tight = tight;
    }
  } });
  const of = (target) => {
    const element = target?.closest?.('.role');
    return element ? all.find((strip) => strip.element === element) : undefined;
  };
  return { all, of };
}
