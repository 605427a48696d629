// The one axis: which stretch of the run is shown, where the pointer is, which moment is marked. Every panel draws
// itself from it, and one frame draws all of them.

const LEAST_SPAN = 20e-6;
const PAPER_WIDTH = 702; // what A4 has between usual margins, in pixels

function createView(start, duration) {
  const root = byId('axis');
  const cursor = byId('axis-cursor');
  const pin = byId('axis-pin');
  const panels = [];
  const watchers = [];
  const state = { from: start, to: duration, start, duration, cursor: null, pin: null };
  let gutter = 0;
  let width = 0;
  let asked = false;

  function measure() {
    gutter = parseFloat(getComputedStyle(root).getPropertyValue('--gutter')) || 0;
    width = root.clientWidth;
  }

  const scale = () => (width - gutter) / (state.to - state.from);
  const x = (time) => gutter + (time - state.from) * scale();
  const timeAt = (px) => state.from + (px - gutter) / scale();
  const digits = () => clamp(Math.ceil(-Math.log10((state.to - state.from) / 400)), 1, 6);

  function request() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      paint();
    });
  }

  function paint() {
    for (const panel of panels) panel.paint();
    place(cursor, state.cursor);
    place(pin, state.pin);
  }

  function place(line, time) {
    const seen = time !== null && time >= state.from && time <= state.to;
    line.hidden = !seen;
    if (!seen) return;
    line.style.transform = `translateX(${x(time).toFixed(1)}px)`;
    line.firstChild.textContent = seconds(time, digits());
    line.classList.toggle('flip', x(time) > width - 90);
  }

  // The axis begins with the load; what was before can be reached by moving there.
  function setView(from, to) {
    const low = from < start - 1e-9 ? 0 : start;
    const span = clamp(to - from, LEAST_SPAN, duration - low);
    state.from = clamp(from, low, duration - span);
    state.to = state.from + span;
    request();
    for (const watcher of watchers) watcher();
  }

  function zoom(factor, around = (state.from + state.to) / 2) {
    const low = Math.min(start, state.from);
    setView(Math.max(low, around - (around - state.from) * factor), around + (state.to - around) * factor);
  }

  function setPin(time) {
    state.pin = time === null ? null : clamp(time, 0, duration);
    request();
    for (const watcher of watchers) watcher();
  }

  // Bring a moment into the window, keeping its width unless the window is the whole run.
  function show(time, span = 0) {
    const now = state.to - state.from;
    const wanted = span || (now > (duration - start) * 0.6 ? Math.min(now, Math.max(2, (duration - start) / 12)) : now);
    if (span || time < state.from || time > state.to || wanted !== now) setView(time - wanted / 2, time + wanted / 2);
  }

  const resize = () => {
    measure();
    for (const panel of panels) panel.resize?.();
    paint(); // at once: a printer does not wait for the next frame
  };

  measure();
  new ResizeObserver(() => root.clientWidth !== width && resize()).observe(root);
  themeListeners.push(resize);
  return {
    state, panels, watchers, setView, zoom, setPin, show, request, resize, x, timeAt, digits, scale,
    gutter: () => gutter, width: () => width,
    fit: () => setView(start, duration),
    isWhole: () => state.from <= start && state.to >= duration,
    move: (share) => setView(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from)),
    setCursor: (time) => {
      state.cursor = time;
      request();
    },
    setPaper: (on) => {
      root.style.width = on ? `${PAPER_WIDTH}px` : '';
      resize();
    },
    onPaper: () => root.style.width !== '',
    ratio: () => (root.style.width ? 2 : Math.min(3, devicePixelRatio || 1)),
  };
}

// A canvas in the size of its place, sharp on the screen and on paper.
function fitCanvas(canvas, width, height, ratio) {
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// Times, their lines through all panels, and bands for the faults.
function createBack(view, faults) {
  const back = byId('axis-back');
  const ticks = byId('axis-ticks');
  const setup = byId('axis-setup');
  const told = setup.textContent;
  const bands = faults.map((fault) => {
    const band = svg('rect', { y: 0, height: '100%', class: 'band' });
    band.style.fill = `var(${familyColour(fault.family)})`;
    back.append(band);
    return band;
  });
  const lines = svg('g');
  back.append(lines);
  view.panels.push({ paint: () => {
    const { from, to } = view.state;
    const inner = view.width() - view.gutter();
    faults.forEach((fault, at) => {
      const left = view.x(clamp(fault.start, from, to));
      const right = view.x(clamp(fault.end, from, to));
      bands[at].setAttribute('x', left);
      bands[at].setAttribute('width', fault.end < from || fault.start > to ? 0 : Math.max(1, right - left));
    });
    const step = niceStep(to - from, inner / 90);
    const digits = clamp(Math.ceil(-Math.log10(step) - 1e-9), 0, 6);
    const grid = [];
    const texts = [];
    for (let n = Math.ceil(from / step - 1e-9); n * step <= to + 1e-12; n++) {
      const px = (n * step - from) * view.scale();
      grid.push(svg('line', { x1: view.gutter() + px, x2: view.gutter() + px, y1: 22, y2: '100%', class: 'grid' }));
      const anchor = px < 24 ? 'start' : px > inner - 28 ? 'end' : 'middle';
      texts.push(svg('text', { x: px, y: 15, 'text-anchor': anchor }, seconds(n * step, digits)));
    }
    lines.replaceChildren(...grid);
    ticks.replaceChildren(...texts);
    setup.textContent = Math.abs(from - view.state.start) < 1e-9 ? told : '';
  } });
}

// Dragging moves, two fingers zoom, a drag along the times or with Shift chooses a stretch; a click without a drag asks
// the panel under it. `clicked(target, time, event)` and `hovered(target, time, event)` are told the rest.
function attachPointers(view, { clicked, hovered, left }) {
  const root = byId('axis');
  const chosen = root.appendChild(el('div', { class: 'chosen', hidden: '' }));
  const down = new Map();
  let moved = false;
  let stretch = null; // where a stretch that is being chosen began
  const local = (event) => event.clientX - root.getBoundingClientRect().left;
  const onAxis = (event) => !event.target.closest('button, a, input, select, .legend');

  function markStretch(px) {
    const [from, to] = [Math.min(stretch, px), Math.max(stretch, px)];
    chosen.hidden = false;
    chosen.style.left = `${Math.max(view.gutter(), from)}px`;
    chosen.style.width = `${to - Math.max(view.gutter(), from)}px`;
  }

  root.addEventListener('pointerdown', (event) => {
    if (event.button !== 0 || !onAxis(event)) return;
    down.set(event.pointerId, { x: local(event), target: event.target });
    moved = false;
    stretch = event.shiftKey || event.target.closest('.ruler') ? local(event) : null;
  });
  root.addEventListener('pointermove', (event) => {
    const px = local(event);
    const before = down.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== 'mouse') return;
      const time = px >= view.gutter() ? view.timeAt(px) : null;
      view.setCursor(time);
      hovered(event.target, time, event);
      return;
    }
    if (!moved && Math.abs(px - before.x) < 4) return;
    if (!moved) {
      moved = true;
      hovered(null, null, event);
      root.setPointerCapture(event.pointerId);
    }
    if (stretch !== null) {
      markStretch(px);
      return;
    }
    if (down.size === 2) {
      const [other] = [...down.entries()].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const factor = Math.abs(before.x - other.x) / Math.max(8, Math.abs(px - other.x));
      view.zoom(clamp(factor, 0.5, 2), view.timeAt((px + other.x) / 2));
    } else {
      const shift = (before.x - px) / view.scale();
      view.setView(view.state.from + shift, view.state.to + shift);
    }
    before.x = px;
  });
  const up = (event) => {
    const before = down.get(event.pointerId);
    down.delete(event.pointerId);
    chosen.hidden = true;
    if (!before || event.type !== 'pointerup') return;
    const px = local(event);
    if (stretch !== null && moved) view.setView(...[view.timeAt(Math.max(view.gutter(), Math.min(stretch, px))), view.timeAt(Math.max(stretch, px))]);
    else if (!moved && px >= view.gutter()) clicked(before.target, view.timeAt(px), event);
  };
  root.addEventListener('pointerup', up);
  root.addEventListener('pointercancel', up);
  root.addEventListener('pointerleave', (event) => {
    view.setCursor(null);
    left(event);
  });
  root.addEventListener('dblclick', (event) => onAxis(event) && view.zoom(0.4, view.timeAt(local(event))));
  root.addEventListener('wheel', (event) => {
    if (event.ctrlKey || event.metaKey) view.zoom(Math.exp(clamp(event.deltaY, -100, 100) / 200), view.timeAt(local(event)));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.move((event.deltaX || event.deltaY) / view.width());
    else return;
    event.preventDefault();
  }, { passive: false });
}
