// Dark or light: what the system says, until the reader chooses.

const themeListeners = [];

function setUpTheme() {
  const button = byId('theme');
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;
  try {
    chosen = localStorage.getItem('stormproof-theme');
  } catch {
    chosen = null; // pages from files may have no storage: the choice then lasts as long as the page
  }
  let printing = false;
  const apply = () => {
    const dark = !printing && (chosen ? chosen === 'dark' : system.matches);
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    button.textContent = dark ? 'Light' : 'Dark';
    button.setAttribute('aria-label', dark ? 'Use light colours' : 'Use dark colours');
    for (const listener of themeListeners) listener();
  };
  button.hidden = false;
  button.addEventListener('click', () => {
    chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    try {
      localStorage.setItem('stormproof-theme', chosen);
    } catch {
      // see above
    }
    apply();
  });
  system.addEventListener('change', apply);
  for (const [event, now] of [['beforeprint', true], ['afterprint', false]]) {
    addEventListener(event, () => {
      printing = now; // paper is light
      apply();
    });
  }
  apply();
}
