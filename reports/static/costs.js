// What each machine used over the run, as plain SVG: a plot for each quantity, a line for each machine, faults as bands.

const COST_HEIGHT = 120;
const COST_MARGIN = { left: 64, right: 10, top: 8, bottom: 22 };

const amountOf = {
  percent: (value) => `${Math.round(value * 10) / 10} %`,
  bytes: (value) => {
    const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
    return `${count(Math.round((value / 1024 ** power) * 10) / 10)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
  },
  'byte-rate': (value) => `${amountOf.bytes(value)}/s`,
};

// The round step of bytes is one of their units.
function costStep(top, written) {
  if (written === 'percent') return niceStep(top, 3);
  const unit = 1024 ** Math.min(4, Math.floor(Math.log2(Math.max(1, top)) / 10));
  return niceStep(top / unit, 3) * unit;
}

function drawCosts(holder, plot, data, reading) {
  const width = Math.max(240, holder.clientWidth);
  const duration = data.duration || 1;
  const right = width - COST_MARGIN.right;
  const bottom = COST_HEIGHT - COST_MARGIN.bottom;
  const top = Math.max(1, ...plot.lines.flatMap((line) => line.values));
  const step = costStep(top, plot.written);
  const limit = Math.ceil(top / step) * step;
  const x = (time) => COST_MARGIN.left + (clamp(time, 0, duration) / duration) * (right - COST_MARGIN.left);
  const y = (value) => bottom - (value / limit) * (bottom - COST_MARGIN.top);
  const root = svg('svg', { viewBox: `0 0 ${width} ${COST_HEIGHT}`, width: '100%', role: 'img', 'aria-label': `${plot.title} of each machine over time` });
  for (const fault of data.faults) {
    const band = svg('rect', { x: x(fault.start), y: COST_MARGIN.top, width: Math.max(1, x(fault.end) - x(fault.start)), height: bottom - COST_MARGIN.top, class: 'band' });
    band.style.fill = `var(${familyColour(fault.family)})`;
    band.append(svg('title', {}, fault.name));
    root.append(band);
  }
  for (let tick = 0; tick <= limit; tick += step) {
    root.append(svg('line', { x1: COST_MARGIN.left, x2: right, y1: y(tick), y2: y(tick), class: 'grid' }));
    root.append(svg('text', { x: COST_MARGIN.left - 6, y: y(tick) + 4, 'text-anchor': 'end' }, amountOf[plot.written](tick)));
  }
  const seconds_ = niceStep(duration, (right - COST_MARGIN.left) / 70);
  for (let tick = 0; tick <= duration; tick += seconds_) root.append(svg('text', { x: x(tick), y: COST_HEIGHT - 6, 'text-anchor': 'middle' }, `${Number(tick.toFixed(6))} s`));
  for (const line of plot.lines) {
    let path = '';
    line.values.forEach((value, at) => {
      if (value !== null) path += `${path && line.values[at - 1] !== null ? 'L' : 'M'}${x(line.times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
    });
    const drawn = svg('path', { d: path, class: `line rank-${line.rank}` });
    drawn.style.stroke = `var(--${line.colour})`;
    root.append(drawn);
  }
  const cursor = svg('line', { y1: COST_MARGIN.top, y2: bottom, x1: -9, x2: -9, class: 'cursor' });
  root.append(cursor);
  root.addEventListener('pointermove', (event) => {
    const area = root.getBoundingClientRect();
    const time = clamp(((((event.clientX - area.left) / area.width) * width - COST_MARGIN.left) / (right - COST_MARGIN.left)) * duration, 0, duration);
    cursor.setAttribute('x1', x(time));
    cursor.setAttribute('x2', x(time));
    const values = plot.lines.map((line) => {
      const at = line.times.findIndex((moment) => moment >= time);
      return at < 0 || line.values[at] === null ? null : `${line.name} ${amountOf[plot.written](line.values[at])}`;
    });
    reading.textContent = `${seconds(time, 1)}: ${values.filter((text) => text).join(', ') || 'not measured'}`;
  });
  root.addEventListener('pointerleave', () => {
    cursor.setAttribute('x1', -9);
    cursor.setAttribute('x2', -9);
    reading.textContent = ' ';
  });
  holder.replaceChildren(root);
}

function createCosts(data) {
  const area = byId('cost-plots');
  for (const plot of area ? data.costs : []) {
    const legend = el('div', { class: 'legend' });
    for (const line of plot.lines) {
      const key = svg('svg', { width: 20, height: 10, 'aria-hidden': 'true' }, svg('path', { d: 'M1 5H19', class: `line rank-${line.rank}` }));
      key.firstChild.style.stroke = `var(--${line.colour})`;
      legend.append(el('span', {}, key, line.name));
    }
    const holder = el('div', { class: 'plot-box' });
    const reading = el('p', { class: 'reading muted' }, ' ');
    area.append(el('figure', { class: 'plot' }, el('figcaption', {}, el('strong', {}, plot.title), ` ${plot.remark}`), legend, holder, reading));
    let drawn = 0;
    const draw = () => {
      drawn = holder.clientWidth;
      drawCosts(holder, plot, data, reading);
    };
    new ResizeObserver(() => drawn !== holder.clientWidth && draw()).observe(holder);
    draw();
  }
}
