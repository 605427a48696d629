// The operations on the axis: drawing, hovering, choosing with pointer or keyboard.

const TALL_LANE = 18;
const LOW_LANE = 12;
const MOST_TALL = 24; // lanes; where there are more, they are lower
const MOST_PIXELS = 540; // where they need more, they scroll

function createLanes(model, data, view, onSelect) {
  const box = byId('lanes');
  const canvas = byId('lanes-canvas');
  const classes = classify(model);
  const hidden = new Uint8Array(CLASS_MARK + 1);
  const state = { selected: -1, story: new Set(), lanes: [], by: 'thread', colours: null };
  const laneOf = new Int32Array(model.n);
  const proofs = [...new Set(data.anomalies.flatMap((anomaly) => anomaly.proof))].sort((a, b) => a - b);
  let context = null;
  let height = 0;
  let tall = TALL_LANE;

  function resize() {
    tall = state.lanes.length > MOST_TALL ? LOW_LANE : TALL_LANE;
    const whole = state.lanes.length * tall + 2;
    height = whole <= MOST_PIXELS ? whole : Math.floor(MOST_PIXELS / tall) * tall;
    box.style.height = `${height}px`;
    context = fitCanvas(canvas, view.width(), height, view.ratio());
    byId('lanes-space').style.height = `${whole - height}px`;
    state.colours = {
      muted: cssColour('--muted'), ink: cssColour('--ink'), paper: cssColour('--card'), line: cssColour('--line'),
      classes: CLASS_COLOURS.map(cssColour),
    };
  }

  const top = (at) => at * tall - box.scrollTop + 1;
  const inSight = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / tall));
    return [first, Math.min(state.lanes.length, first + Math.ceil(height / tall) + 1)];
  };

  function paint() {
    const { colours, lanes } = state;
    const { from, to } = view.state;
    const left = view.gutter();
    const part = { from, to, left, scale: view.scale() };
    const width = view.width();
    context.clearRect(0, 0, width, height);
    const [first, last] = inSight();
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height);
    context.clip();
    const layers = Array.from({ length: CLASS_MARK + 1 }, () => []);
    for (let at = first; at < last; at++) layLane(model, classes, lanes[at], top(at), tall, part, layers, hidden);
    layers.forEach((rectangles, kind) => {
      context.fillStyle = colours.classes[kind];
      for (let r = 0; r < rectangles.length; r += 4) {
        context.fillRect(rectangles[r], rectangles[r + 1], rectangles[r + 2], rectangles[r + 3]);
      }
    });
    paintMarks(first, last);
    context.restore();
    context.font = `${tall > 14 ? 11 : 10}px system-ui, sans-serif`;
    context.textBaseline = 'middle';
    context.fillStyle = colours.muted;
    for (let at = first; at < last; at++) {
      const label = left < 70 ? lanes[at].label.replace('client', 'cl.').replace('process', 'p.') : lanes[at].label;
      context.fillText(fitText(context, label, left - 8), 0, top(at) + tall / 2);
    }
  }

  function paintMarks(first, last) {
    const { from, to } = view.state;
    const place = (i) => view.x(clamp((model.start[i] + model.end[i]) / 2, from, to));
    const seen = (i) => laneOf[i] >= first && laneOf[i] < last && model.end[i] >= from && model.start[i] <= to;
    const taken = new Set(); // one mark per lane and dozen pixels: more would hide the operations
    for (const i of proofs) {
      if (!seen(i) || hidden[classes[i]]) continue;
      const spot = `${laneOf[i]}/${Math.round(place(i) / 12)}/${model.marked[i]}`;
      if (taken.has(spot)) continue;
      taken.add(spot);
      paintMark(context, place(i), top(laneOf[i]) + 3, state.colours.classes[classes[i]], state.colours.paper, model.marked[i] === 1);
    }
    context.strokeStyle = state.colours.ink;
    for (const i of state.story) {
      if (!seen(i)) continue;
      const x = view.x(Math.max(model.start[i], from));
      context.lineWidth = i === state.selected ? 2 : 1;
      context.strokeRect(x - 2.5, top(laneOf[i]) + 1, Math.max(5, view.x(Math.min(model.end[i], to)) - x + 4), tall - 2);
    }
  }

  // The operation at a moment, in the lane at a height of the page; -1 where there is none.
  function hit(time, clientY) {
    const y = clientY - canvas.getBoundingClientRect().top;
    const lane = state.lanes[Math.floor((y + box.scrollTop) / tall)];
    if (!lane || y < 0 || y > height) return -1;
    const slack = 4 / view.scale();
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
      if (model.end[i] < view.state.from || model.start[i] > view.state.to) view.show(model.start[i]);
      const y = laneOf[i] * tall;
      if (y < box.scrollTop || y + tall > box.scrollTop + height) box.scrollTop = Math.max(0, y - height / 2);
    }
    view.setPin(i >= 0 ? model.start[i] : null);
    onSelect(i, [...state.story]);
  }

  function setLanes(by) {
    state.by = by;
    state.lanes = groupLanes(model, by);
    state.lanes.forEach((lane, at) => lane.items.forEach((i) => {
      laneOf[i] = at;
    }));
    resize();
    view.request();
  }

  // The next operation along the lane (step 1 or -1) or the nearest in the lane above or below.
  function step(along, across) {
    if (state.selected < 0) {
      const middle = state.lanes[0];
      if (middle) select(middle.items[Math.min(middle.items.length - 1, lowerBound(middle.reach, view.state.from))]);
      return;
    }
    const lane = state.lanes[clamp(laneOf[state.selected] + across, 0, state.lanes.length - 1)];
    const here = lowerBound(lane.items, model.start[state.selected], (i) => model.start[i]);
    const at = across ? here : lane.items.indexOf(state.selected) + along;
    select(lane.items[clamp(at, 0, lane.items.length - 1)]);
  }

  const keys = {
    ArrowRight: (event) => (event.shiftKey ? view.move(0.25) : step(1, 0)),
    ArrowLeft: (event) => (event.shiftKey ? view.move(-0.25) : step(-1, 0)),
    ArrowUp: () => step(0, -1),
    ArrowDown: () => step(0, 1),
    '+': () => view.zoom(0.5),
    '=': () => view.zoom(0.5),
    '-': () => view.zoom(2),
    0: view.fit,
    Escape: () => select(-1),
  };
  box.addEventListener('keydown', (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key](event);
  });
  box.addEventListener('scroll', view.request);
  view.panels.push({ paint, resize });
  setLanes('thread');
  return { hit, select, setLanes, hidden, state, keys };
}

// What hovering over an operation tells.
function tipOf(model, i) {
  const { names } = model;
  const error = nameOf(names.errors, model.error[i]);
  return [
    el('strong', {}, `${names.f[model.f[i]]} ${valueText(model, i)} ${TYPES[model.type[i]]}`),
    el('span', {}, `${seconds(model.start[i])}, ${milliseconds((model.end[i] - model.start[i]) * 1000)}, process ${model.process[i]} ${nameOf(names.nodes, model.node[i])}`),
    error ? el('span', {}, error) : null,
  ];
}

// One box beside the pointer; nothing hides it.
function createTip() {
  const tip = document.body.appendChild(el('div', { class: 'tip', hidden: '' }));
  return (content, event) => {
    tip.hidden = !content;
    if (!content) return;
    tip.replaceChildren(...content.filter(Boolean));
    tip.style.left = `${clamp(event.clientX + 12, 4, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${clamp(event.clientY + 16, 4, innerHeight - tip.offsetHeight - 8)}px`;
  };
}
