// The timeline: zoom, move, hover, choose with pointer or keyboard.

function createLanes(model, data, onView, onSelect) {
  const box = byId('lanes');
  const canvas = byId('lanes-canvas');
  const context = canvas.getContext('2d');
  const tip = document.body.appendChild(el('div', { class: 'tip', hidden: '' }));
  const classes = classify(model);
  const faultRows = stackFaults(data.faults);
  const faultTop = AXIS + (data.phases.length ? PHASE_ROW : 0);
  const head = faultTop + FAULT_ROW * (Math.max(-1, ...faultRows) + 1);
  const hidden = new Uint8Array(CLASS_MARK + 1);
  const state = { from: 0, to: model.duration, selected: -1, story: new Set(), lanes: [], by: 'thread', colours: null };
  const laneOf = new Int32Array(model.n);
  const proofs = [...new Set(data.anomalies.flatMap((anomaly) => anomaly.proof))].sort((a, b) => a - b);
  let width = 0;
  let height = 0;
  let asked = false;

  const gutter = () => (width < 600 ? 58 : 84);
  const viewOf = () => {
    const left = gutter();
    return { from: state.from, to: state.to, left, scale: (width - left) / (state.to - state.from) };
  };

  function readColours() {
    const faults = { other: cssColour('--fault-3') };
    for (const family of FAMILIES) faults[family] = cssColour(familyColour(family));
    state.colours = {
      faults, line: cssColour('--line'), muted: cssColour('--muted'), ink: cssColour('--ink'), paper: cssColour('--card'),
      onFault: cssColour('--on-fault'), mark: cssColour('--invalid'),
      classes: ['--quiet', '--f0', '--f1', '--f2', '--f3', '--fail', '--info', '--invalid'].map(cssColour),
    };
  }

  function resize() {
    const lanesHeight = head + state.lanes.length * LANE + 6;
    width = box.clientWidth;
    height = Math.min(lanesHeight, Math.max(220, Math.min(460, innerHeight * 0.7)));
    const ratio = Math.min(3, devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    box.style.height = `${height}px`;
    byId('lanes-space').style.height = `${lanesHeight - height}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw();
  }

  function draw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      paint();
    });
  }

  function paint() {
    const { colours, lanes } = state;
    const view = viewOf();
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, width, height);
    paintAxis(context, view, width, height, colours);
    paintPhases(context, view, data.phases, colours);
    paintBands(context, view, faultTop, height, data.faults, faultRows, colours);
    context.save();
    context.beginPath();
    context.rect(0, head, width, height - head);
    context.clip();
    const layers = Array.from({ length: CLASS_MARK + 1 }, () => []);
    const top = (at) => head + at * LANE - box.scrollTop;
    const first = Math.max(0, Math.floor(box.scrollTop / LANE));
    const last = Math.min(lanes.length, first + Math.ceil((height - head) / LANE) + 1);
    for (let at = first; at < last; at++) layLane(model, classes, lanes[at], top(at), view, layers, hidden);
    layers.forEach((rectangles, kind) => {
      context.fillStyle = colours.classes[kind];
      for (let r = 0; r < rectangles.length; r += 4) {
        context.fillRect(rectangles[r], rectangles[r + 1], rectangles[r + 2], rectangles[r + 3]);
      }
    });
    paintMarks(view, top, first, last);
    context.textAlign = 'left';
    for (let at = first; at < last; at++) {
      context.fillStyle = colours.paper;
      context.fillRect(0, top(at), gutter() - 4, LANE);
      context.fillStyle = colours.muted;
      const label = width < 600 ? lanes[at].label.replace('client', 'cl.').replace('process', 'p.') : lanes[at].label;
      context.fillText(label, 6, top(at) + LANE / 2);
    }
    context.restore();
    paintFaults(context, view, faultTop, data.faults, faultRows, colours);
    context.fillStyle = colours.muted;
    context.textAlign = 'left';
    if (data.phases.length) context.fillText('phase', 6, AXIS + PHASE_ROW / 2 - 1);
    if (data.faults.length) context.fillText('faults', 6, faultTop + FAULT_ROW / 2);
  }

  function paintMarks(view, top, first, last) {
    const place = (i) => view.left + (clamp((model.start[i] + model.end[i]) / 2, view.from, view.to) - view.from) * view.scale;
    const inView = (i) => laneOf[i] >= first && laneOf[i] < last && model.end[i] >= view.from && model.start[i] <= view.to;
    const taken = new Set(); // one mark per lane and dozen pixels: more would hide the operations
    for (const i of proofs) {
      const spot = `${laneOf[i]}/${Math.round(place(i) / 12)}`;
      if (!inView(i) || taken.has(spot)) continue;
      taken.add(spot);
      paintMark(context, place(i), top(laneOf[i]) + 3, state.colours.mark, state.colours.paper);
    }
    context.strokeStyle = state.colours.ink;
    for (const i of state.story) {
      if (!inView(i)) continue;
      const x = view.left + (Math.max(model.start[i], view.from) - view.from) * view.scale;
      const end = view.left + (Math.min(model.end[i], view.to) - view.from) * view.scale;
      context.lineWidth = i === state.selected ? 2 : 1;
      context.strokeRect(x - 2.5, top(laneOf[i]) + 1.5, Math.max(5, end - x + 4), LANE - 3);
    }
  }

  function setView(from, to) {
    const least = 20e-6;
    const span = clamp(to - from, least, model.duration);
    state.from = clamp(from, 0, model.duration - span);
    state.to = state.from + span;
    draw();
    onView(state.from, state.to);
  }

  function zoom(factor, around = (state.from + state.to) / 2) {
    setView(around - (around - state.from) * factor, around + (state.to - around) * factor);
  }

  const move = (share) => setView(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));
  const timeAt = (x) => state.from + (x - gutter()) / viewOf().scale;

  function hit(x, y) {
    const lane = state.lanes[Math.floor((y - head + box.scrollTop) / LANE)];
    if (!lane || y < head || x < gutter()) return -1;
    const slack = 4 / viewOf().scale;
    const time = timeAt(x);
    let best = -1;
    let bestScore = Infinity;
    for (let at = lowerBound(lane.reach, time - slack); at < lane.items.length; at++) {
      const i = lane.items[at];
      if (model.start[i] > time + slack) break;
      if (hidden[classes[i]] || model.end[i] < time - slack) continue;
      const distance = Math.max(0, model.start[i] - time, time - model.end[i]) / slack;
      const score = distance - (model.marked[i] ? 2 : 0) - classes[i] / 100;
      if (score < bestScore) [best, bestScore] = [i, score];
    }
    return best;
  }

  function select(i, story = null) {
    state.selected = i;
    state.story = new Set(story || (i >= 0 ? sameMessage(model, i) : []));
    if (i >= 0) {
      if (model.end[i] < state.from || model.start[i] > state.to) {
        const span = state.to - state.from;
        setView(model.start[i] - span / 2, model.start[i] + span / 2);
      }
      const y = laneOf[i] * LANE;
      if (y < box.scrollTop || y + LANE > box.scrollTop + height - head) box.scrollTop = Math.max(0, y - (height - head) / 2);
    }
    draw();
    onSelect(i, [...state.story]);
  }

  function setLanes(by) {
    state.by = by;
    state.lanes = groupLanes(model, by);
    state.lanes.forEach((lane, at) => lane.items.forEach((i) => {
      laneOf[i] = at;
    }));
    resize();
  }

  // The next operation along the lane (step 1 or -1) or the nearest in the lane above or below.
  function step(along, across) {
    if (state.selected < 0) {
      const middle = state.lanes[0];
      if (middle) select(middle.items[Math.min(middle.items.length - 1, lowerBound(middle.reach, state.from))]);
      return;
    }
    const lane = state.lanes[clamp(laneOf[state.selected] + across, 0, state.lanes.length - 1)];
    const here = lowerBound(lane.items, model.start[state.selected], (i) => model.start[i]);
    const at = across ? here : lane.items.indexOf(state.selected) + along;
    select(lane.items[clamp(at, 0, lane.items.length - 1)]);
  }

  const keys = {
    ArrowRight: (event) => (event.shiftKey ? move(0.25) : step(1, 0)),
    ArrowLeft: (event) => (event.shiftKey ? move(-0.25) : step(-1, 0)),
    ArrowUp: () => step(0, -1),
    ArrowDown: () => step(0, 1),
    '+': () => zoom(0.5),
    '=': () => zoom(0.5),
    '-': () => zoom(2),
    0: () => setView(0, model.duration),
    Escape: () => select(-1),
  };
  box.addEventListener('keydown', (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key](event);
  });
  box.addEventListener('scroll', draw);
  box.addEventListener('wheel', (event) => {
    const x = event.clientX - box.getBoundingClientRect().left;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(clamp(event.deltaY, -100, 100) / 200), timeAt(x));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / width);
    else return;
    event.preventDefault();
  }, { passive: false });
  attachPointers(box, { timeAt, hit, zoom, setView, select, state, showTip, scaleOf: () => viewOf().scale });

  function showTip(i, event) {
    tip.hidden = i < 0;
    if (i < 0) return;
    const { names } = model;
    const error = nameOf(names.errors, model.error[i]);
    tip.replaceChildren(
      el('strong', {}, `${names.f[model.f[i]]} ${valueText(model, i)} ${TYPES[model.type[i]]}`),
      el('span', {}, `${seconds(model.start[i])}, ${milliseconds((model.end[i] - model.start[i]) * 1000)}, process ${model.process[i]} ${nameOf(names.nodes, model.node[i])}`),
      error ? el('span', {}, error) : null,
    );
    tip.style.left = `${clamp(event.clientX + 12, 4, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${clamp(event.clientY + 16, 4, innerHeight - tip.offsetHeight - 8)}px`;
  }

  readColours();
  themeListeners.push(() => {
    readColours();
    paint(); // at once: a printer does not wait for the next frame
  });
  setLanes('thread');
  new ResizeObserver(() => box.clientWidth !== width && resize()).observe(box);
  return { setView, zoom, move, select, setLanes, hidden, draw, state, fit: () => setView(0, model.duration) };
}

// Dragging moves, two fingers zoom, a click without a drag selects, hovering tells.
function attachPointers(box, lanes) {
  const down = new Map();
  let moved = false;
  const local = (event) => {
    const area = box.getBoundingClientRect();
    return { x: event.clientX - area.left, y: event.clientY - area.top };
  };
  box.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    down.set(event.pointerId, local(event));
    moved = false;
  });
  box.addEventListener('pointermove', (event) => {
    const now = local(event);
    const before = down.get(event.pointerId);
    if (!before) {
      if (event.pointerType === 'mouse') lanes.showTip(lanes.hit(now.x, now.y), event);
      return;
    }
    if (!moved && Math.abs(now.x - before.x) < 4) return;
    if (!moved) {
      moved = true;
      lanes.showTip(-1);
      box.setPointerCapture(event.pointerId);
    }
    if (down.size === 2) {
      const [other] = [...down.entries()].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const factor = Math.abs(before.x - other.x) / Math.max(8, Math.abs(now.x - other.x));
      lanes.zoom(clamp(factor, 0.5, 2), lanes.timeAt((now.x + other.x) / 2));
    } else {
      const shift = (before.x - now.x) / lanes.scaleOf();
      lanes.setView(lanes.state.from + shift, lanes.state.to + shift);
    }
    down.set(event.pointerId, now);
  });
  const up = (event) => {
    const at = down.get(event.pointerId);
    down.delete(event.pointerId);
    if (at && !moved && event.type === 'pointerup') lanes.select(lanes.hit(at.x, at.y));
  };
  box.addEventListener('pointerup', up);
  box.addEventListener('pointercancel', up);
  box.addEventListener('pointerleave', () => lanes.showTip(-1));
  box.addEventListener('dblclick', (event) => lanes.zoom(0.4, lanes.timeAt(local(event).x)));
}
