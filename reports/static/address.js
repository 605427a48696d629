// The address tells what is shown, after its #: `t=31.8-34.2` the window, `at=33.12` the marked moment, `op=1246` the
// chosen operation (a row of the history), `log=n1:57` a line of a node's log, `by=node` the lanes. Or it is the name
// of an anomaly (`lost-1/102`) or of a section.

const QUIET_MS = 250; // browsers refuse an address that changes with every frame

function readAddress() {
  const text = location.hash.slice(1);
  if (!/^(t|at|op|log|by)=/.test(text)) {
    try {
      return { name: decodeURIComponent(text) };
    } catch {
      return { name: text };
    }
  }
  const given = new URLSearchParams(text);
  const [from, to] = (given.get('t') || '').split('-').map(Number);
  const number = (name) => (given.has(name) && Number.isFinite(Number(given.get(name))) ? Number(given.get(name)) : null);
  return {
    window: Number.isFinite(from) && Number.isFinite(to) && to > from ? [from, to] : null,
    at: number('at'), op: number('op'), log: given.get('log'), by: given.get('by'),
  };
}

function createAddress(view, told) {
  let due = 0;
  let written = location.hash;

  function current() {
    const parts = [];
    const { from, to, pin } = view.state;
    const { op, log, by } = told();
    const digits = view.digits() + 1;
    if (!view.isWhole()) parts.push(`t=${from.toFixed(digits)}-${to.toFixed(digits)}`);
    if (op !== null) parts.push(`op=${op}`);
    else if (pin !== null) parts.push(`at=${pin.toFixed(6)}`);
    if (log) parts.push(`log=${encodeURIComponent(log)}`);
    if (by !== 'thread') parts.push(`by=${by}`);
    return parts.length ? `#${parts.join('&')}` : '';
  }

  function write(since) {
    due = 0;
    if (location.hash !== since) return; // a link was followed meanwhile
    written = current();
    try {
      history.replaceState(null, '', written || location.pathname + location.search);
    } catch {
      // the browser had enough of it: the button still copies the right one
    }
  }

  return {
    current,
    changed: () => {
      clearTimeout(due);
      due = setTimeout(write, QUIET_MS, location.hash);
    },
    isOwn: () => location.hash === written,
  };
}

async function copyText(text, button, fallback) {
  const before = button.textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copyOldWay(text, fallback);
  }
  button.textContent = done ? 'Copied' : 'Not copied';
  setTimeout(() => {
    button.textContent = before;
  }, 1500);
}

// No clipboard for this page (it is a file, or served in a sandbox): select the text, and copy what is selected.
function copyOldWay(text, shown) {
  const holder = shown || document.body.appendChild(el('p', { class: 'aside' }, text));
  getSelection().selectAllChildren(holder);
  const done = document.execCommand('copy');
  if (!shown) holder.remove();
  return done;
}
