// What every view uses: elements, requests, tables. Contents of records, names and messages reach the page through text
// nodes only; the content security policy forbids every other way.
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => child instanceof Node ? child : document.createTextNode(String(child))));
  return made;
}

// Replaces the contents of a part only if they changed, so that the focus, a selection and the scroll position survive.
export function put(place, ...children) {
  const next = make(place.tagName, {}, ...children);
  if (next.innerHTML !== place.innerHTML) {
    const label = place.contains(document.activeElement) ? document.activeElement.getAttribute("data-key") : null;
    place.replaceChildren(...next.childNodes);
    if (label) place.querySelector(`[data-key="${CSS.escape(label)}"]`)?.focus();
  }
}

// A table that scrolls by itself. Columns are names, with a trailing # for numbers; a row is a <tr> or a list of cells.
export function table(label, columns, rows) {
  const number = columns.map((name) => name.endsWith("#") ? "number" : null);
  const head = columns.map((name, column) => make("th", { scope: "col", class: number[column] }, name.replace(/#$/, "")));
  const body = rows.map((row) => row instanceof Node ? row : make("tr", {}, ...row.map((cell, column) => make("td", { class: number[column] }, cell))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label, "data-key": label },
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}

export async function request(path, body = null, method = body ? "POST" : "GET") {
  const options = { method, headers: { Accept: "application/json" }, signal: AbortSignal.timeout(body ? 35000 : 8000) };
  if (body) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const response = await fetch(path, options);
  const value = await response.json();
  if (!response.ok) throw Object.assign(new Error(`${value.error ?? response.status}: ${value.detail ?? value.title}`), { status: response.status });
  return value;
}

// Repeats an action while the page is visible, the next time only when the last has ended; returns what ends it.
export function repeat(periodMs, act) {
  let timer = 0;
  let ended = false;
  async function once() {
    if (!document.hidden) await act();
    if (!ended) timer = setTimeout(once, periodMs);
  }
  once();
  return () => { ended = true; clearTimeout(timer); };
}

export function explain(text) {
  const box = document.getElementById("explain");
  box.replaceChildren(make("p", {}, text), make("button", { onclick: () => box.hidePopover() }, "Close"));
  box.showPopover();
}

export function health(sentence) {
  const place = document.getElementById("health");
  if (place.textContent !== sentence) place.textContent = sentence;
}

export const at = (topic, partition) => `/v1/topics/${encodeURIComponent(topic)}/partitions/${partition}`;
export const link = (topic, partition, tab = "") => `#/t/${encodeURIComponent(topic)}/${partition}${tab && `/${tab}`}`;
export const shown = (value) => value === null || value === undefined ? "unknown" : String(value);

// Local time with milliseconds. Timestamps are whatever a producer wrote: not every one is a time.
export function moment(ms) {
  if (!Number.isSafeInteger(ms)) return Number.isNaN(ms) ? "unknown time" : "beyond 2^53 ms";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  return `${date.toLocaleDateString("sv")} ${date.toLocaleTimeString("sv")}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

// The heading of a partition's three views, with links from each to the others.
export function partitionHead(topic, number, present) {
  const tabs = [["", "Lanes"], ["records", "Records"], ["events", "Events"]].map(([tab, name]) =>
    make("a", { href: link(topic, number, tab), "aria-current": tab === present ? "page" : null }, name));
  return [make("h1", {}, `${topic}-${number}`), make("nav", { class: "tabs", "aria-label": `Views of ${topic}-${number}` }, ...tabs)];
}
