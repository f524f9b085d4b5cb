"use strict";
(() => {
  const MOST_ROWS = 200;
  const MOST_PROBLEMS = 20;
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);

  const number = (digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const whole = number(0), tenth = number(1);
  const percent = new Intl.NumberFormat("en", { style: "percent", minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
  const orEmpty = (format) => (value) => (value === null ? "" : format.format(value));
  const share = orEmpty(percent), count = orEmpty(whole), rate = orEmpty(tenth);
  const seconds = (value) => (value === null ? "" : `${whole.format(value)} s`);

  // Class, title, sort key, and formatter of each column; the cells of the first two columns are built from elements.
  const COLUMNS = [
    ["queue", "queue", (row) => row.queue],
    ["picture", "", null],
    ["n", "exact", (row) => row.exact, share],
    ["n", "now", (row) => row.observed, share],
    ["n", "1 min", (row) => row.minutes["1"], share],
    ["n", "5 min", (row) => row.minutes["5"], share],
    ["n", "15 min", (row) => row.minutes["15"], share],
    ["n", "in/s", (row) => row.rate_in, rate],
    ["n", "out/s", (row) => row.rate_out, rate],
    ["n", "depth", (row) => row.depth, count],
    ["n", "oldest", (row) => row.oldest, seconds],
    ["n", "consumers", (row) => row.consumers, count],
    ["active", "active consumer", (row) => row.active_consumer, (value) => value ?? ""],
  ];

  let newest = null; // the interval to show
  let colours = {};
  let held = null; // during a pause: the newest event of each name
  let sort = { column: null, down: false };
  let showAll = false; // whether to show more than MOST_ROWS
  let receivedAt = 0; // when the newest event arrived
  let connected = true;
  const rowOf = new Map(); // the parts of each queue's row

  function createElement(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function setText(element, text) { // a screen reader announces a status whenever its text is set, even to the same text
    if (element.textContent !== text) element.textContent = text;
  }

  // -- the table ---------------------------------------------------------------------------------

  function createHeader() {
    for (const [kind, title, key] of COLUMNS) {
      const cell = createElement("th", { scope: "col", role: "columnheader", class: kind });
      if (key) {
        const button = createElement("button", { type: "button" }, title);
        button.addEventListener("click", () => {
          const again = sort.column === title;
          sort = { column: title, down: again ? !sort.down : kind === "n" };
          for (const other of $("head").children) other.removeAttribute("aria-sort");
          cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
          show();
        });
        cell.append(button);
      } else {
        cell.append(createElement("span", { class: "skip" }, "picture of the shares"));
      }
      $("head").append(cell);
    }
  }

  function createRow(queue) {
    const row = createElement("tr", { role: "row" });
    const parts = { row, cells: [] };
    for (const [kind, title] of COLUMNS) {
      const cell = createElement("td", { role: "cell", class: kind, "data-label": title });
      if (kind === "queue") {
        parts.dot = createElement("span", { class: "dot", "aria-hidden": "true" });
        parts.marks = createElement("span", { class: "marks" });
        cell.append(parts.dot, createElement("bdi", {}, queue), parts.marks);
      } else if (kind === "picture") {
        parts.bar = createElement("i");
        parts.tick = createElement("b");
        cell.append(createElement("span", { class: "bars", "aria-hidden": "true" }, parts.bar, parts.tick));
      }
      parts.cells.push(cell);
      row.append(cell);
    }
    return parts;
  }

  function updateRow(parts, row, largest) {
    const colour = colours[row.queue];
    parts.dot.setAttribute("class", colour === undefined ? "" : `dot c${colour % 12}`);
    parts.row.classList.toggle("off", row.marks.length > 0);
    setText(parts.marks, row.marks.join(", "));
    parts.bar.style.width = `${(100 * (row.observed ?? 0)) / largest}%`;
    parts.tick.style.left = `${(100 * (row.exact ?? 0)) / largest}%`;
    parts.tick.hidden = row.exact === null;
    COLUMNS.forEach(([, , key, text], index) => {
      if (text) setText(parts.cells[index], text(key(row)));
    });
  }

  function filteredAndSorted() {
    const wanted = $("find").value.toLowerCase();
    const found = newest.rows.filter(
      (row) => row.queue.toLowerCase().includes(wanted) && (!$("marked").checked || row.marks.length),
    );
    const column = COLUMNS.find(([, title]) => title && title === sort.column);
    if (!column) return found;
    const key = column[2], sign = sort.down ? -1 : 1;
    return found.sort((left, right) => {
      const a = key(left), b = key(right);
      if (a === null || b === null) return (a === null) - (b === null); // unknown values last
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    });
  }

  function showTable() {
    const found = filteredAndSorted();
    const shown = showAll ? found : found.slice(0, MOST_ROWS);
    const largest = newest.rows.reduce((most, row) => Math.max(most, row.observed ?? 0, row.exact ?? 0), 0) || 1;
    const body = $("rows");
    const visible = new Set(shown.map((row) => row.queue));
    for (const [queue, parts] of rowOf) {
      if (!visible.has(queue)) {
        parts.row.remove();
        rowOf.delete(queue);
      }
    }
    shown.forEach((row, index) => {
      if (!rowOf.has(row.queue)) rowOf.set(row.queue, createRow(row.queue));
      const parts = rowOf.get(row.queue);
      updateRow(parts, row, largest);
      if (body.children[index] !== parts.row) body.insertBefore(parts.row, body.children[index] ?? null);
    });
    const total = newest.rows.length;
    const queues = total === 1 ? "1 queue" : `${count(total)} queues`;
    setText($("count"), found.length === total ? queues : `${count(found.length)} of ${queues}`);
    $("more").hidden = found.length <= MOST_ROWS;
    setText($("more"), showAll ? `Show the first ${MOST_ROWS}` : `Show all ${count(found.length)}`);
  }

  // -- the rest of the page ----------------------------------------------------------------------

  function showFacts() {
    const { totals, release } = newest;
    setText($("exchange"), newest.exchange);
    const parts = [`virtual host ${newest.vhost}`];
    if (release) parts.push(`RabbitMQ ${release}`);
    const isKnown = (key) => newest.rows.some((row) => row[key] !== null);
    if (isKnown("rate_in")) parts.push(`${rate(totals.rate_in)} messages/s in, ${rate(totals.rate_out)} out`);
    if (isKnown("depth")) parts.push(`${count(totals.depth)} waiting`);
    setText($("facts"), parts.join(" · "));
    const time = new Date(newest.time * 1000);
    $("time").dateTime = time.toISOString();
    setText($("time"), time.toLocaleTimeString());
  }

  function showProblems() {
    const found = newest.problems;
    setText($("verdict"), found.length === 0 ? "No problems." : found.length === 1 ? "1 problem:" : `${count(found.length)} problems:`);
    document.title = `${found.length ? `(${found.length}) ` : ""}${newest.exchange} · rabbit-chx watch`;
    const lines = found.slice(0, MOST_PROBLEMS).map((problem) => `${problem.where}: ${problem.message}`);
    const names = found.slice(0, MOST_PROBLEMS).map((problem) => problem.name);
    if (found.length > MOST_PROBLEMS) lines.push(`and ${count(found.length - MOST_PROBLEMS)} more`);
    const list = $("problems");
    while (list.children.length > lines.length) list.lastChild.remove();
    lines.forEach((line, index) => {
      if (!list.children[index]) list.append(createElement("li", {}, createElement("bdi"), " ", createElement("code")));
      const [text, name] = list.children[index].children;
      setText(text, line);
      setText(name, names[index] ?? "");
      name.hidden = !names[index];
    });
  }

  function showRing() {
    const { text, why } = newest.ring;
    setText($("ring"), why ? `${text}: ${why}` : text);
  }

  function createSvg([tag, attributes, ...children]) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children.map((child) => (Array.isArray(child) ? createSvg(child) : child)));
    return element;
  }

  function showPictures(found) {
    colours = found.colours;
    $("pictures").replaceChildren(
      ...found.pictures.map(({ caption, svg, wide }) => {
        const attributes = { class: "wide", tabindex: "0", role: "region", "aria-label": caption };
        const picture = wide ? createElement("div", attributes, createSvg(svg)) : createSvg(svg);
        return createElement("figure", { class: wide ? "whole" : "" }, picture, createElement("figcaption", {}, caption));
      }),
    );
  }

  function show() {
    if (newest === null) return;
    showFacts();
    showProblems();
    showRing();
    showTable();
  }

  // -- events ------------------------------------------------------------------------------------

  const HANDLERS = {
    interval: (value) => { newest = value; },
    pictures: showPictures,
  };

  function receive(name, value) {
    receivedAt = Date.now();
    if (held) held[name] = value;
    else HANDLERS[name](value);
  }

  function showConnection() {
    const length = newest?.seconds || 100; // the first interval has no length
    const silent = newest && Date.now() - receivedAt > 1000 * Math.max(30, 3 * length);
    const text = held ? "Paused" : silent ? "Connected, but no new intervals" : "Live";
    setText($("link"), connected ? text : "Connection lost, trying again");
    $("link").classList.toggle("off", !connected || Boolean(held) || Boolean(silent));
  }

  function connect() {
    const source = new EventSource("events");
    for (const name of Object.keys(HANDLERS)) {
      source.addEventListener(name, (event) => {
        receive(name, JSON.parse(event.data));
        if (!held) show();
        showConnection();
      });
    }
    source.addEventListener("open", () => { connected = true; receivedAt = Date.now(); showConnection(); });
    source.addEventListener("error", () => {
      connected = false;
      showConnection();
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 5000); // after some errors, browsers do not retry
    });
  }

  $("pause").addEventListener("click", () => {
    const resumed = held;
    held = resumed ? null : {};
    $("pause").setAttribute("aria-pressed", String(!resumed));
    for (const [name, value] of Object.entries(resumed ?? {})) HANDLERS[name](value);
    show();
    showConnection();
  });
  $("more").addEventListener("click", () => { showAll = !showAll; show(); });
  $("find").addEventListener("input", show);
  $("marked").addEventListener("change", show);
  setInterval(showConnection, 1000);
  createHeader();
  connect();
})();
