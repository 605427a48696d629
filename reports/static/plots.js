// Latency and throughput over the whole run, as SVG drawn at the width there is.

const PLOT_HEIGHT = 190;
const MARGIN = { left: 52, right: 10, top: 10, bottom: 24 };

function plotSpecs(data, functions) {
  const { latency, rate, quantiles, width } = data.series;
  const specs = [];
  const rates = Object.entries(rate).filter(([, values]) => values.some((value) => value > 0));
  specs.push({
    title: 'Throughput', unit: 'operations/s', log: false, format: (value) => `${count(value)}/s`,
    lines: rates.map(([name, values]) => ({ name, values, colour: rateColour(name, functions) })),
  });
  for (const [name, lines] of Object.entries(latency)) {
    const colour = `--f${Math.min(3, Math.max(0, functions.indexOf(name)))}`;
    specs.push({
      title: `Latency of ${name}`, unit: 'of those that are ok', log: true, format: milliseconds,
      lines: lines.map((values, at) => ({ name: quantileName(quantiles[at]), values, colour, rank: at })),
    });
  }
  return specs.map((spec) => ({ ...spec, width }));
}

const quantileName = (quantile) => (quantile === 1 ? 'max' : `p${Math.round(quantile * 100)}`);

function rateColour(name, functions) {
  if (name === 'info' || name === 'fail') return `--${name}`;
  return `--f${Math.min(3, Math.max(0, functions.indexOf(name.replace(/ ok$/, ''))))}`;
}

function createPlots(data, functions, onBrush) {
  const area = byId('plot-area');
  const plots = plotSpecs(data, functions).map((spec) => createPlot(area, spec, data, onBrush));
  return { showView: (from, to) => plots.forEach((plot) => plot.showView(from, to)) };
}

function createPlot(area, spec, data, onBrush) {
  const legend = el('div', { class: 'legend' });
  for (const line of spec.lines) {
    const key = svg('svg', { width: 20, height: 10, 'aria-hidden': 'true' }, svg('path', { d: 'M1 5H19', class: lineClass(line) }));
    key.firstChild.style.stroke = `var(${line.colour})`;
    legend.append(el('span', {}, key, line.name));
  }
  const holder = el('div', { class: 'plot-box' });
  const reading = el('p', { class: 'reading muted' }, ' ');
  area.append(el('figure', { class: 'plot' }, el('figcaption', {}, el('strong', {}, spec.title), ` ${spec.unit}`), legend, holder, reading));
  let view = null;
  let shown = null;
  const redraw = () => {
    shown = drawPlot(holder, spec, data, onBrush, reading);
    if (view) shown.showView(...view);
  };
  new ResizeObserver(() => shown?.width !== holder.clientWidth && redraw()).observe(holder);
  redraw();
  return {
    showView: (from, to) => {
      view = [from, to];
      shown.showView(from, to);
    },
  };
}

const lineClass = (line) => `line rank-${line.rank ?? 0}`;

function valueScale(spec, height) {
  const values = spec.lines.flatMap((line) => line.values.filter((value) => value !== null && value > 0));
  const top = Math.max(...values, spec.log ? 1 : 0.1);
  const inner = height - MARGIN.top - MARGIN.bottom;
  if (!spec.log) {
    const step = niceStep(top, 4);
    const limit = Math.ceil(top / step) * step;
    const ticks = Array.from({ length: Math.round(limit / step) + 1 }, (_, at) => at * step);
    return { y: (value) => MARGIN.top + inner * (1 - value / limit), ticks };
  }
  const low = Math.floor(Math.log10(Math.max(0.01, Math.min(...values, top))));
  const high = Math.max(low + 1, Math.ceil(Math.log10(top)));
  const ticks = Array.from({ length: high - low + 1 }, (_, at) => 10 ** (low + at));
  const y = (value) => MARGIN.top + inner * (1 - (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low));
  return { y, ticks };
}

// A path through the points; empty buckets break it, a lone point becomes a dash.
function pathOf(values, x, y) {
  let path = '';
  let pen = false;
  values.forEach((value, at) => {
    if (value === null) {
      pen = false;
      return;
    }
    const px = x(at).toFixed(1);
    const py = y(value).toFixed(1);
    path += pen ? `L${px} ${py}` : `M${px} ${py}h.5`;
    pen = true;
  });
  return path;
}

function drawPlot(holder, spec, data, onBrush, reading) {
  const width = Math.max(240, holder.clientWidth);
  const duration = data.duration || 1;
  const right = width - MARGIN.right;
  const bottom = PLOT_HEIGHT - MARGIN.bottom;
  const x = (time) => MARGIN.left + (time / duration) * (right - MARGIN.left);
  const bucketX = (at) => x(Math.min(duration, (at + 0.5) * spec.width));
  const { y, ticks } = valueScale(spec, PLOT_HEIGHT);
  const root = svg('svg', { viewBox: `0 0 ${width} ${PLOT_HEIGHT}`, width: '100%', role: 'img', 'aria-label': `${spec.title} over time` });
  for (const fault of data.faults) {
    const band = svg('rect', { x: x(fault.start), y: MARGIN.top, width: Math.max(1, x(fault.end) - x(fault.start)), height: bottom - MARGIN.top, class: 'band' });
    band.style.fill = `var(${familyColour(fault.family)})`;
    band.append(svg('title', {}, fault.name));
    root.append(band);
  }
  for (const tick of ticks) {
    root.append(svg('line', { x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick), class: 'grid' }));
    root.append(svg('text', { x: MARGIN.left - 6, y: y(tick) + 4, 'text-anchor': 'end' }, spec.log ? milliseconds(tick).replace(/\.0+ /, ' ') : count(tick)));
  }
  const step = niceStep(duration, (right - MARGIN.left) / 70);
  for (let tick = 0; tick <= duration; tick += step) {
    root.append(svg('text', { x: x(tick), y: PLOT_HEIGHT - 6, 'text-anchor': 'middle' }, `${Number(tick.toFixed(6))} s`));
  }
  const window_ = svg('rect', { y: MARGIN.top, height: bottom - MARGIN.top, width: 0, x: 0, class: 'window' });
  const cursor = svg('line', { y1: MARGIN.top, y2: bottom, x1: -9, x2: -9, class: 'cursor' });
  root.append(window_);
  for (const line of spec.lines) {
    const path = svg('path', { d: pathOf(line.values, bucketX, y), class: lineClass(line) });
    path.style.stroke = `var(${line.colour})`;
    root.append(path);
  }
  root.append(cursor);
  holder.replaceChildren(root);
  const timeAt = (event) => {
    const area = root.getBoundingClientRect();
    const px = ((event.clientX - area.left) / area.width) * width;
    return clamp(((px - MARGIN.left) / (right - MARGIN.left)) * duration, 0, duration);
  };
  attachBrush(root, { timeAt, x, cursor, spec, reading, onBrush, window_ });
  const showView = (from, to) => {
    const whole = from <= 0 && to >= duration;
    window_.setAttribute('x', x(from));
    window_.setAttribute('width', whole ? 0 : Math.max(1, x(to) - x(from)));
  };
  return { width: holder.clientWidth, showView };
}

function attachBrush(root, { timeAt, x, cursor, spec, reading, onBrush, window_ }) {
  let from = null;
  root.addEventListener('pointerdown', (event) => {
    from = timeAt(event);
    if (event.pointerType === 'mouse') root.setPointerCapture(event.pointerId);
  });
  root.addEventListener('pointermove', (event) => {
    const time = timeAt(event);
    cursor.setAttribute('x1', x(time));
    cursor.setAttribute('x2', x(time));
    const at = Math.floor(time / spec.width);
    const values = spec.lines.filter((line) => line.values[at] !== null && line.values[at] !== undefined);
    reading.textContent = `${seconds(at * spec.width, 1)}: ${values.map((line) => `${line.name} ${spec.format(line.values[at])}`).join(', ') || 'nothing completed'}`;
    if (from !== null) {
      window_.setAttribute('x', x(Math.min(from, time)));
      window_.setAttribute('width', Math.abs(x(time) - x(from)));
    }
  });
  root.addEventListener('pointerup', (event) => {
    const to = timeAt(event);
    if (from !== null && Math.abs(x(to) - x(from)) > 5) onBrush(Math.min(from, to), Math.max(from, to));
    from = null;
  });
  root.addEventListener('pointercancel', () => {
    from = null;
  });
  root.addEventListener('pointerleave', () => {
    cursor.setAttribute('x1', -9);
    cursor.setAttribute('x2', -9);
    reading.textContent = ' ';
  });
}
