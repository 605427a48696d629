// Throughput, latency and whatever else was sampled, on the one axis. A plot is what reports/plots.py makes.

const SCREEN_HEIGHT = 132;
const PAPER_HEIGHT = 84;
const PLOT_TOP = 8;
const PLOT_BOTTOM = 6;

const WRITTEN = {
  rate: (value) => `${count(Math.round(value * 10) / 10)}/s`,
  milliseconds,
  percent: (value) => `${Math.round(value * 10) / 10} %`,
  bytes: (value) => {
    const power = Math.min(4, Math.max(0, Math.floor(Math.log(Math.max(1, value)) / Math.log(1024))));
    return `${count(Math.round((value / 1024 ** power) * 10) / 10)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
  },
  'byte-rate': (value) => `${WRITTEN.bytes(value)}/s`,
};

const FAINT = [1, 0.9, 0.7, 0.5];
const THICK = [2, 2, 1.5, 1];

function createPlots(specs, model, view) {
  const area = byId('plots');
  const columns = model ? pointColumns(model) : new Map();
  const plots = specs.map((spec) => createPlot(area, spec, spec.points >= 0 ? columns.get(spec.points) : null, view));
  const read = () => {
    const time = view.state.cursor ?? view.state.pin;
    for (const plot of plots) plot.read(time);
  };
  view.panels.push({ paint: () => {
    for (const plot of plots) if (plot.isSeen() || view.onPaper()) plot.paint();
    read();
  }, resize: () => plots.forEach((plot) => plot.resize()) });
}

function keyOf(line) {
  const key = svg('svg', { width: 18, height: 8, 'aria-hidden': 'true' }, svg('path', { d: 'M1 4H17', fill: 'none', 'stroke-width': THICK[line.rank] ?? 1, 'stroke-opacity': FAINT[line.rank] ?? 0.5, 'stroke-dasharray': line.rank ? '5 3' : 'none' }));
  key.firstChild.style.stroke = `var(--${line.colour})`;
  return key;
}

function createPlot(area, spec, points, view) {
  const write = WRITTEN[spec.written] || count;
  const canvas = el('canvas', { role: 'img', 'aria-label': `${spec.title} over time: ${summaryOf(spec, write)}` });
  const readings = spec.lines.map(() => el('b', {}));
  const legend = el('span', { class: 'legend' }, ...spec.lines.map((line, at) => el('span', {}, keyOf(line), line.name, readings[at])));
  const caption = el('figcaption', {}, el('strong', {}, spec.title), el('span', { class: 'muted' }, spec.remark), legend);
  area.append(el('figure', { class: 'plot', id: `plot-${spec.name}` }, caption, canvas));
  const layer = points ? createPointLayer() : null;
  const lines = spec.lines.map(timesOf);
  let context = null;
  let ratio = 1;
  let height = SCREEN_HEIGHT;
  let scale = null;
  let colours = {};

  function resize() {
    ratio = view.ratio();
    height = view.onPaper() ? PAPER_HEIGHT : SCREEN_HEIGHT;
    context = fitCanvas(canvas, view.width(), height, ratio);
    scale = valueScale(spec, points, height);
    colours = { line: cssColour('--line'), muted: cssColour('--muted'), info: cssColour('--info') };
    for (const line of spec.lines) colours[line.colour] = cssColour(`--${line.colour}`);
  }

  function paint() {
    const { from, to } = view.state;
    const left = view.gutter();
    const width = view.width();
    context.clearRect(0, 0, width, height);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (const tick of scale.ticks) {
      context.fillStyle = colours.line;
      context.fillRect(left, Math.round(scale.y(tick)), width - left, 1);
      context.fillStyle = colours.muted;
      context.fillText(write(tick).replace(/\.0+ /, ' '), left - 6, clamp(scale.y(tick), 7, height - 7), left - 8);
    }
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height);
    context.clip();
    if (points) {
      layer.clear(Math.round((width - left) * ratio), Math.round(height * ratio));
      const row = (ms) => scale.y(ms) * ratio;
      layer.add(points[1], from, to, view.scale() * ratio, row, colours[spec.lines[0].colour]);
      layer.add(points[3], from, to, view.scale() * ratio, row, colours.info);
      layer.done();
      context.drawImage(layer.canvas, left, 0, width - left, height);
    }
    lines.forEach(({ times, ends }, at) => {
      const { values, colour, rank } = spec.lines[at];
      context.strokeStyle = colours[colour];
      context.globalAlpha = FAINT[rank] ?? 0.5;
      context.lineWidth = THICK[rank] ?? 1;
      context.beginPath();
      let pen = false;
      for (let i = Math.max(0, lowerBound(ends, from) - 1); i < values.length && times[i] <= to; i++) {
        if (values[i] === null) {
          pen = false;
          continue;
        }
        const y = scale.y(values[i]);
        if (pen && (!rank || !spec.lines[at].width)) context.lineTo(view.x(times[i]), y); // the fainter ones would be a thicket of uprights
        else context.moveTo(view.x(times[i]), y);
        context.lineTo(view.x(spec.lines[at].width ? ends[i] : times[i]) + (spec.lines[at].width ? 0 : 0.5), y);
        pen = true;
      }
      context.stroke();
    });
    context.restore();
  }

  function read(time) {
    spec.lines.forEach((line, at) => {
      const { times, ends } = lines[at];
      const i = time === null ? -1 : lowerBound(ends, time + 1e-9);
      const value = i >= 0 && i < times.length && (line.width ? time >= times[i] : i > 0) ? line.values[i] : null;
      const text = value === null || value === undefined ? '' : ` ${write(value)}`;
      if (readings[at].textContent !== text) readings[at].textContent = text;
    });
  }

  // What is scrolled out of sight is drawn when it comes back.
  let seen = false;
  new IntersectionObserver((entries) => {
    seen = entries[entries.length - 1].isIntersecting;
    if (seen) view.request();
  }).observe(canvas);

  resize();
  return { paint, resize, read, isSeen: () => seen };
}

// When each value begins and ends to hold.
function timesOf(line) {
  if (line.width) {
    return {
      times: Float64Array.from(line.values, (_, at) => at * line.width),
      ends: Float64Array.from(line.values, (_, at) => (at + 1) * line.width),
    };
  }
  return { times: Float64Array.from(line.times), ends: Float64Array.from(line.times) };
}

// What somebody who can't see the plot is told of it.
function summaryOf(spec, write) {
  return spec.lines.map((line) => {
    const values = line.values.filter((value) => value !== null);
    return values.length ? `${line.name} from ${write(Math.min(...values))} to ${write(Math.max(...values))}` : `${line.name} none`;
  }).join('; ');
}

function valueScale(spec, points, height) {
  const values = spec.lines.flatMap((line) => line.values.filter((value) => value !== null && value > 0));
  let top = Math.max(...values, spec.logarithmic ? 1 : 0.1);
  let least = Math.min(...values, top);
  for (const column of points ? Object.values(points) : []) {
    for (const ms of column.ms) {
      if (ms > top) top = ms;
      if (ms < least && ms > 0) least = ms;
    }
  }
  const inner = height - PLOT_TOP - PLOT_BOTTOM;
  if (!spec.logarithmic) {
    const unit = spec.written.startsWith('byte') ? 1024 ** Math.min(4, Math.floor(Math.log2(Math.max(1, top)) / 10)) : 1;
    const step = niceStep(top / unit, 4) * unit; // of bytes, a round number of their unit
    const limit = Math.ceil(top / step) * step;
    const ticks = Array.from({ length: Math.round(limit / step) + 1 }, (_, at) => at * step);
    return { y: (value) => PLOT_TOP + inner * (1 - value / limit), ticks };
  }
  const low = Math.floor(Math.log10(Math.max(0.01, least)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(top)));
  const ticks = Array.from({ length: high - low + 1 }, (_, at) => 10 ** (low + at));
  const y = (value) => PLOT_TOP + inner * (1 - (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low));
  return { y, ticks };
}
