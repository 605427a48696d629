// Building elements and writing numbers. Text from a run only ever reaches the page as text nodes.

const byId = (id) => document.getElementById(id);

function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = 'http://www.w3.org/2000/svg';

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const seconds = (value, digits = 3) => `${value.toFixed(digits)} s`;

function milliseconds(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms >= 10000 ? 1 : 2)} s`;
  if (ms >= 100) return `${ms.toFixed(0)} ms`;
  if (ms >= 1) return `${ms.toFixed(1)} ms`;
  return `${(ms * 1000).toFixed(0)} µs`;
}

const count = (value) => value.toLocaleString('en-US');

// The round step that cuts `span` into at most `most` pieces.
function niceStep(span, most) {
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const FAMILIES = ['partition', 'pause', 'kill'];

// Name of the CSS variable with the colour of a fault family.
function familyColour(family) {
  const known = FAMILIES.indexOf(family);
  return known >= 0 ? `--fault-${known}` : '--fault-3';
}
