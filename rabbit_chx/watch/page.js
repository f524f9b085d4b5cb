"use strict";
(() => {
  const MOST_ROWS = 200;
  const MOST_PROBLEMS = 20;
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);

  const number = (digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const whole = number(0), tenth = number(1);
  const percent = new Intl.NumberFormat("en", { style: "percent", minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
  const known = (format) => (value) => (value === null ? "" : format.format(value));
  const share = known(percent), count = known(whole), rate = known(tenth);
  const seconds = (value) => (value === null ? "" : `${whole.format(value)} s`);

  // Name, title, what is sorted by, and the text of a cell; the first two columns have more than text.
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
  let waiting = null; // the events that arrived during a pause
  let sort = { column: null, down: false };
  let all = false; // whether to show more than MOST_ROWS
  let heard = 0; // when the newest event arrived
  const rows = new Map(); // the row of each queue

  function made(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function say(element, text) { // a screen reader reads a status again whenever its text is set
    if (element.textContent !== text) element.textContent = text;
  }

  // -- the table ---------------------------------------------------------------------------------

  function head() {
    for (const [kind, title, key] of COLUMNS) {
      const cell = made("th", { scope: "col", role: "columnheader", class: kind });
      if (key) {
        const button = made("button", { type: "button" }, title);
        button.addEventListener("click", () => {
          const again = sort.column === title;
          sort = { column: title, down: again ? !sort.down : kind === "n" };
          for (const other of $("head").children) other.removeAttribute("aria-sort");
          cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
          show();
        });
        cell.append(button);
      } else {
        cell.append(made("span", { class: "skip" }, "picture of the shares"));
      }
      $("head").append(cell);
    }
  }

  function newRow(queue) {
    const row = made("tr", { role: "row" });
    const parts = { row, cells: [] };
    for (const [kind, title] of COLUMNS) {
      const cell = made("td", { role: "cell", class: kind, "data-label": title });
      if (kind === "queue") {
        parts.dot = made("span", { class: "dot", "aria-hidden": "true" });
        parts.marks = made("span", { class: "marks" });
        cell.append(parts.dot, made("bdi", {}, queue), parts.marks);
      } else if (kind === "picture") {
        parts.bar = made("i");
        parts.tick = made("b");
        cell.append(made("span", { class: "bars", "aria-hidden": "true" }, parts.bar, parts.tick));
      }
      parts.cells.push(cell);
      row.append(cell);
    }
    return parts;
  }

  function fill(parts, row, largest) {
    const colour = colours[row.queue];
    parts.dot.setAttribute("class", colour === undefined ? "" : `dot c${colour % 12}`);
    parts.row.classList.toggle("off", row.marks.length > 0);
    say(parts.marks, row.marks.join(", "));
    parts.bar.style.width = `${(100 * (row.observed ?? 0)) / largest}%`;
    parts.tick.style.left = `${(100 * (row.exact ?? 0)) / largest}%`;
    parts.tick.hidden = row.exact === null;
    COLUMNS.forEach(([, , key, text], place) => {
      if (text) say(parts.cells[place], text(key(row)));
    });
  }

  function chosen() {
    const wanted = $("find").value.toLowerCase();
    const found = newest.rows.filter(
      (row) => row.queue.toLowerCase().includes(wanted) && (!$("marked").checked || row.marks.length),
    );
    const column = COLUMNS.find(([, title]) => title && title === sort.column);
    if (!column) return found;
    const key = column[2], sign = sort.down ? -1 : 1;
    return found.sort((one, other) => {
      const a = key(one), b = key(other);
      if (a === null || b === null) return (a === null) - (b === null); // what is not known comes last
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    });
  }

  function table() {
    const found = chosen();
    const shown = all ? found : found.slice(0, MOST_ROWS);
    const largest = newest.rows.reduce((most, row) => Math.max(most, row.observed ?? 0, row.exact ?? 0), 0) || 1;
    const body = $("rows");
    const kept = new Set(shown.map((row) => row.queue));
    for (const [queue, parts] of rows) {
      if (!kept.has(queue)) {
        parts.row.remove();
        rows.delete(queue);
      }
    }
    shown.forEach((row, place) => {
      if (!rows.has(row.queue)) rows.set(row.queue, newRow(row.queue));
      const parts = rows.get(row.queue);
      fill(parts, row, largest);
      if (body.children[place] !== parts.row) body.insertBefore(parts.row, body.children[place] ?? null);
    });
    const of = newest.rows.length;
    say($("count"), found.length === of ? `${count(of)} queues` : `${count(found.length)} of ${count(of)} queues`);
    $("more").hidden = found.length <= MOST_ROWS;
    say($("more"), all ? `Show the first ${MOST_ROWS}` : `Show all ${count(found.length)}`);
  }

  // -- everything else ---------------------------------------------------------------------------

  function facts() {
    const { totals, release } = newest;
    say($("exchange"), newest.exchange);
    const parts = [`virtual host ${newest.vhost}`];
    if (release) parts.push(`RabbitMQ ${release}`);
    parts.push(`${rate(totals.rate_in)} messages/s in, ${rate(totals.rate_out)} out`, `${count(totals.depth)} waiting`);
    say($("facts"), parts.join(" · "));
    const time = new Date(newest.time * 1000);
    $("time").dateTime = time.toISOString();
    say($("time"), time.toLocaleTimeString());
  }

  function problems() {
    const found = newest.problems;
    say($("verdict"), found.length === 0 ? "No problems." : found.length === 1 ? "1 problem:" : `${count(found.length)} problems:`);
    document.title = `${found.length ? `(${found.length}) ` : ""}${newest.exchange} · rabbit-chx watch`;
    const lines = found.slice(0, MOST_PROBLEMS).map((problem) => `${problem.where}: ${problem.message}`);
    const names = found.slice(0, MOST_PROBLEMS).map((problem) => problem.name);
    if (found.length > MOST_PROBLEMS) lines.push(`and ${count(found.length - MOST_PROBLEMS)} more`);
    const list = $("problems");
    while (list.children.length > lines.length) list.lastChild.remove();
    lines.forEach((line, place) => {
      if (!list.children[place]) list.append(made("li", {}, made("bdi"), made("code")));
      const [text, name] = list.children[place].children;
      say(text, line);
      say(name, names[place] ?? "");
      name.hidden = !names[place];
    });
  }

  function ring() {
    const { status, against, misrouted, why } = newest.ring;
    const file = against === "file";
    const moved = misrouted === null ? "" : `: ${percent.format(misrouted)} of the keys go to another queue`;
    const texts = {
      same: file ? "As in the file." : "Unchanged since this watch began.",
      drifted: `${file ? "Differs from the file" : "Has changed since this watch began"}${moved}.`,
      unknown: `The order of its buckets is unknown${why ? `: ${why}` : ""}.`,
    };
    say($("ring"), texts[status]);
  }

  function drawn([tag, attributes, ...children]) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children.map((child) => (Array.isArray(child) ? drawn(child) : child)));
    return element;
  }

  function pictures(found) {
    colours = found.colours;
    $("pictures").replaceChildren(
      ...found.pictures.map(({ caption, svg, wide }) => {
        const scrolls = { class: "wide", tabindex: "0", role: "region", "aria-label": caption };
        const picture = wide ? made("div", scrolls, drawn(svg)) : drawn(svg);
        return made("figure", { class: wide ? "whole" : "" }, picture, made("figcaption", {}, caption));
      }),
    );
  }

  function show() {
    if (newest === null) return;
    facts();
    problems();
    ring();
    table();
  }

  // -- events ------------------------------------------------------------------------------------

  const SHOWN = {
    interval: (value) => { newest = value; },
    pictures,
  };

  function hear(name, value) {
    heard = Date.now();
    if (waiting) waiting[name] = value;
    else SHOWN[name](value);
  }

  function link() {
    const silent = newest && Date.now() - heard > 1000 * Math.max(30, 3 * newest.seconds);
    const text = waiting ? "Paused" : silent ? "Connected, but the watch sends nothing" : "Live";
    say($("link"), open ? text : "Connection lost, trying again");
    $("link").classList.toggle("off", !open || Boolean(waiting) || Boolean(silent));
  }

  let open = true;

  function connect() {
    const source = new EventSource("events");
    for (const name of Object.keys(SHOWN)) {
      source.addEventListener(name, (event) => {
        hear(name, JSON.parse(event.data));
        if (!waiting) show();
        link();
      });
    }
    source.addEventListener("open", () => { open = true; heard = Date.now(); link(); });
    source.addEventListener("error", () => {
      open = false;
      link();
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 5000); // a browser tries again only after some errors
    });
  }

  $("pause").addEventListener("click", () => {
    const held = waiting;
    waiting = held ? null : {};
    $("pause").setAttribute("aria-pressed", String(!held));
    for (const [name, value] of Object.entries(held ?? {})) SHOWN[name](value);
    show();
    link();
  });
  $("more").addEventListener("click", () => { all = !all; show(); });
  $("find").addEventListener("input", show);
  $("marked").addEventListener("change", show);
  setInterval(link, 1000);
  head();
  connect();
})();
