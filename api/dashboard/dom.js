// Elements. What comes from clients gets into the page as text only.

/**
 * An element. `what` has its properties: `class`, `text`, `on…` for listeners, anything else is an attribute; `false`
 * and `null` leave it out.
 */
export function el(name, what = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(what)) {
    if (value === false || value === null || value === undefined) continue;
    if (key === "class") element.className = value;
    else if (key === "text") element.textContent = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets a text, if it is another one: what does not change costs no layout. */
export function put(element, text) {
  if (element.firstChild?.nodeValue !== text || element.childNodes.length > 1) element.textContent = text;
}

/** A line of terms and what they are. */
export function facts(...pairs) {
  const rows = pairs.map(([term, what, title]) =>
    el("div", {}, el("dt", { text: term, title }), el("dd", {}, what)));
  return el("dl", { class: "facts" }, ...rows);
}

/** A table; each row is an array of texts and elements. */
export function table(caption, columns, rows) {
  const cell = (content, place) => {
    const column = columns[place];
    return el("td", { class: column.class ?? null, "data-label": column.name }, content);
  };
  return el("div", { class: "table-frame" }, el("table", {},
    el("caption", { class: "hidden-text", text: caption }),
    el("thead", {}, el("tr", {}, ...columns.map((column) =>
      el("th", { scope: "col", text: column.name, class: column.class ?? null, title: column.title })))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell)))),
  ));
}

/** Tells those who listen to the page, politely. */
export function announce(text) {
  put(document.getElementById("announcer"), text);
}
