"use strict";
// Everything a name of a model goes into is text or an attribute, never markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);
  const element = (tag, attributes, text, space) => {
    const made = space ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const svg = (tag, attributes, text) => element(tag, attributes, text, true);
  const us = (ns) => (ns / 1000).toFixed(1) + " us";

  function copy(text, button) {
    const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
    if (navigator.clipboard && window.isSecureContext) { navigator.clipboard.writeText(text).then(done, () => select(button)); } else { select(button); }
    function select(at) {  // a page opened from a file may not write to the clipboard: select, so that a key copies
      getSelection().selectAllChildren(at.parentElement.querySelector("pre"));
      if (document.execCommand("copy")) done(); else button.textContent = "Press Ctrl+C";
    }
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copy-button");
    if (button) copy(button.parentElement.querySelector("pre").textContent, button);
  });

  function show(panel, title, rows, command, more) {
    const list = element("dl");
    for (const [key, value] of rows) list.append(element("dt", {}, key), element("dd", {}, value));
    panel.replaceChildren(element("h3", {}, title), list);
    if (command) {
      const box = element("div", { class: "copy" });
      box.append(element("pre", { tabindex: "0" }, command), element("button", { type: "button", class: "copy-button" }, "Copy"));
      panel.append(element("p", { class: "hint" }, "Write this model:"), box);
    }
    if (more) panel.append(more);
  }

  // --- charts: one tab stop each, arrow keys between points ----------------------------------------------------------
  function chart(section, panel) {
    const marks = [...section.querySelectorAll(".mark")];
    marks.sort((a, b) => a.querySelector(".target").getAttribute("cx") - b.querySelector(".target").getAttribute("cx"));
    const choose = (mark) => {
      for (const other of marks) { other.classList.toggle("chosen", other === mark); other.setAttribute("tabindex", other === mark ? "0" : "-1"); }
      show(panel, mark.dataset.label, JSON.parse(mark.dataset.details), mark.dataset.command);
    };
    marks.forEach((mark, at) => {
      mark.addEventListener("click", () => choose(mark));
      mark.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (event.key === "Enter" || event.key === " ") choose(mark);
        else if (step) { const next = marks[(at + step + marks.length) % marks.length]; choose(next); next.focus(); } else return;
        event.preventDefault();
      });
    });
  }
  if ($("front-details")) chart($("front"), $("front-details"));
  if ($("trace-details")) chart($("search"), $("trace-details"));

  // --- table of units ------------------------------------------------------------------------------------------------
  const table = $("unit-table");
  if (table) {
    const body = table.tBodies[0];
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") !== "descending";
      const numeric = heading.classList.contains("n");
      const key = (row) => { const text = row.cells[column].textContent; return numeric ? (text === "" ? NaN : Number(text)) : text; };
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (numeric) { if (Number.isNaN(a)) return Number.isNaN(b) ? 0 : 1; if (Number.isNaN(b)) return -1; return down ? b - a : a - b; }
        return down ? (a < b ? 1 : a > b ? -1 : 0) : (a < b ? -1 : a > b ? 1 : 0);
      });
      for (const other of headings) other.setAttribute("aria-sort", other === heading ? (down ? "descending" : "ascending") : "none");
      body.append(...rows.map(([, row]) => row));
    }));
    $("unit-filter").addEventListener("input", (event) => {
      const wanted = event.target.value.trim().toLowerCase();
      let left = 0;
      for (const row of body.rows) { row.hidden = !row.textContent.toLowerCase().includes(wanted); left += !row.hidden; }
      $("unit-found").textContent = `${left} of ${body.rows.length} units`;
    });
  }

  // --- graph ---------------------------------------------------------------------------------------------------------
  if (!$("graph-data")) return;
  const data = JSON.parse($("graph-data").textContent);
  const units = JSON.parse($("unit-data").textContent);
  const view = $("graph-view"), panel = $("graph-details");
  const WIDTH = 132, HEIGHT = 34, COLUMN = 150, ROW = 64, MOST_SHOWN = 400;
  const regions = new Map(data.regions.map(([id, parent, label]) => [id, { id, parent, label, size: 0 }]));
  const nodes = data.nodes.map(([name, op, layer, x, ran, unit, region], id) => ({ id, name, op, layer, x, ran, unit, region }));
  for (const node of nodes) for (let at = regions.get(node.region); at; at = regions.get(at.parent)) at.size += 1;
  const folded = new Set();
  let boxes = new Map(), links = [], chosen = null, found = [], at = -1;
  const camera = { x: 0, y: 0, scale: 1 };
  const scene = svg("g");
  view.append(scene);

  const top = (node) => {  // the outermost folded region that holds a node, or the node itself
    let result = "n" + node.id;
    for (let region = regions.get(node.region); region; region = regions.get(region.parent)) if (folded.has(region.id)) result = "r" + region.id;
    return result;
  };

  function place() {
    boxes = new Map();
    for (const node of nodes) {
      const key = top(node);
      const box = boxes.get(key) || { key, members: [], layer: Infinity, x: 0 };
      box.members.push(node);
      box.layer = Math.min(box.layer, node.layer);
      boxes.set(key, box);
    }
    const rows = new Map();
    for (const box of boxes.values()) {
      box.x = box.members.reduce((sum, node) => sum + node.x, 0) / box.members.length;
      if (!rows.has(box.layer)) rows.set(box.layer, []);
      rows.get(box.layer).push(box);
    }
    [...rows.keys()].sort((a, b) => a - b).forEach((layer, index) => {  // layers without a box take no room
      const row = rows.get(layer).sort((a, b) => a.x - b.x);
      const middle = row.reduce((sum, box) => sum + box.x, 0) / row.length;
      for (let i = 1; i < row.length; i += 1) row[i].x = Math.max(row[i].x, row[i - 1].x + 1);
      const shift = middle - row.reduce((sum, box) => sum + box.x, 0) / row.length;
      row.forEach((box, order) => { box.x += shift; box.row = index; box.order = order; });
    });
    const merged = new Map();
    for (const [producer, reader, value, low, price] of data.edges) {
      const a = top(nodes[producer]), b = top(nodes[reader]);
      if (a === b) continue;
      const key = a + ">" + b;
      const link = merged.get(key) || { a: boxes.get(a), b: boxes.get(b), values: new Set(), low: 0, prices: new Map() };
      link.values.add(value);
      link.low |= low;
      if (price) link.prices.set(value, price);
      merged.set(key, link);
    }
    links = [...merged.values()];
    const priced = new Set();  // a value that several read is converted once: its price is shown once
    for (const link of links) {
      link.price = 0;
      for (const [value, price] of link.prices) if (!priced.has(value)) { priced.add(value); link.price += price; }
    }
  }

  const ranAs = (box) => {
    const ways = new Set(box.members.map((node) => node.ran).filter((ran) => ran !== "none"));
    return ways.size === 0 ? "none" : ways.size === 1 ? [...ways][0] : "mixed";
  };
  const time = (box) => {
    let sum = 0;
    for (const node of box.members) if (node.unit >= 0 && units[node.unit][0] === node.name) sum += units[node.unit][4] || 0;  // at the anchor
    return sum;
  };
  const fused = (node) => node.unit >= 0 && units[node.unit][0] !== node.name;
  const title = (box) => box.key[0] === "r" ? regions.get(Number(box.key.slice(1))).label : box.members[0].op;
  const short = (text, most) => text.length > most ? "…" + text.slice(text.length - most + 1) : text;

  function draw() {
    place();
    const lines = svg("g"), labels = svg("g"), shapes = svg("g");
    for (const link of links) {
      const x1 = link.a.x * COLUMN + WIDTH / 2, y1 = link.a.row * ROW + HEIGHT, x2 = link.b.x * COLUMN + WIDTH / 2, y2 = link.b.row * ROW;
      const bend = Math.max(18, Math.min(60, Math.abs(y2 - y1) / 2));
      lines.append(svg("path", { class: "edge" + (link.price ? " priced" : link.low ? " low" : ""), d: `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}` }));
      if (link.price) labels.append(svg("text", { class: "price", x: (x1 + x2) / 2 + 5, y: (y1 + y2) / 2 + 3 }, us(link.price)));
    }
    for (const box of boxes.values()) {
      const group = svg("g", { class: `node ${ranAs(box)}${box.key[0] === "r" ? " folded" : ""}${box.members[0].unit < 0 && box.key[0] === "n" ? " end" : ""}`, transform: `translate(${box.x * COLUMN} ${box.row * ROW})`, "data-key": box.key });
      const spent = time(box);
      const below = box.key[0] === "r" ? `${box.members.length} operators${spent ? ", " + us(spent) : ""}` : spent ? us(spent) : fused(box.members[0]) ? "fused" : short(box.members[0].name, 22);
      group.append(svg("rect", { width: WIDTH, height: HEIGHT, rx: 5 }), svg("text", { x: WIDTH / 2, y: 14, "text-anchor": "middle" }, short(title(box), 20)), svg("text", { class: "sub", x: WIDTH / 2, y: 27, "text-anchor": "middle" }, below));
      group.append(svg("title", {}, box.key[0] === "r" ? title(box) : box.members[0].name));
      box.group = group;
      shapes.append(group);
    }
    scene.replaceChildren(lines, shapes, labels);
    mark();
  }

  function mark() {
    const hits = new Set(found.map((node) => top(node)));
    for (const box of boxes.values()) {
      box.group.classList.toggle("found", hits.has(box.key));
      box.group.classList.toggle("chosen", box.key === chosen);
    }
  }

  const move = () => scene.setAttribute("transform", `translate(${camera.x} ${camera.y}) scale(${camera.scale})`);
  function zoom(factor, x, y) {
    const next = Math.max(0.02, Math.min(4, camera.scale * factor)), change = next / camera.scale;
    camera.x = x - (x - camera.x) * change;
    camera.y = y - (y - camera.y) * change;
    camera.scale = next;
    move();
  }
  const middle = () => [view.clientWidth / 2, view.clientHeight / 2];
  function fit(whole) {
    let left = Infinity, right = -Infinity, bottom = 0;
    for (const box of boxes.values()) { left = Math.min(left, box.x * COLUMN); right = Math.max(right, box.x * COLUMN + WIDTH); bottom = Math.max(bottom, box.row * ROW + HEIGHT); }
    const across = (view.clientWidth - 24) / (right - left), down = (view.clientHeight - 24) / bottom;
    camera.scale = Math.min(1.2, whole ? Math.min(across, down) : Math.max(Math.min(across, 1), 0.55));
    camera.x = (view.clientWidth - (left + right) * camera.scale) / 2;
    camera.y = 12;
    move();
  }
  function bring(box) {
    if (camera.scale < 0.5) camera.scale = 0.8;
    camera.x = view.clientWidth / 2 - (box.x * COLUMN + WIDTH / 2) * camera.scale;
    camera.y = view.clientHeight / 2 - (box.row * ROW + HEIGHT / 2) * camera.scale;
    move();
  }

  function parentOf(box) {  // the region that folding from here would fold
    const region = box.key[0] === "r" ? regions.get(Number(box.key.slice(1))).parent : box.members[0].region;
    return regions.get(region);
  }
  function refold(change, keep) {
    const before = keep && boxes.get(keep);
    const was = before && [before.x * COLUMN * camera.scale + camera.x, before.row * ROW * camera.scale + camera.y];
    const member = before && before.members[0];
    change();
    chosen = member ? top(member) : null;
    draw();
    const after = chosen && boxes.get(chosen);
    if (after && was) { camera.x = was[0] - after.x * COLUMN * camera.scale; camera.y = was[1] - after.row * ROW * camera.scale; move(); }
    if (after) details(after);
  }
  const toggle = (box) => {
    if (box.key[0] === "r") refold(() => folded.delete(Number(box.key.slice(1))), box.key);
    else if (parentOf(box)) refold(() => folded.add(parentOf(box).id), box.key);
  };

  function details(box) {
    const around = links.filter((link) => link.a === box || link.b === box);
    const price = (link) => link.price ? ` (${us(link.price)} of conversions)` : link.low ? " (Q/DQ)" : "";
    const rows = [];
    if (box.key[0] === "r") rows.push(["region", `${box.members.length} operators`], ["ran", ranAs(box)]);
    else {
      const node = box.members[0], unit = units[node.unit];
      rows.push(["operator", node.op], ["ran", node.ran === "none" ? "no kernel of its own" : node.ran]);
      if (unit) {
        if (fused(node)) rows.push(["fused with", unit[0]]);
        rows.push(["placed", unit[2]]);
        if (unit[5] !== null) rows.push(["saved", us(unit[5])]);
        if (unit[6]) rows.push(["why not INT8", unit[6]]);
      }
    }
    if (time(box)) rows.push(["kernels take", us(time(box))]);
    for (const link of around.slice(0, 12)) rows.push([link.b === box ? "reads" : "feeds", (link.b === box ? title(link.a) : title(link.b)) + price(link)]);
    const button = element("button", { type: "button" }, box.key[0] === "r" ? "Unfold" : "Fold its region");
    button.addEventListener("click", () => toggle(boxes.get(chosen)));
    show(panel, box.key[0] === "r" ? title(box) : box.members[0].name, rows, "", box.key[0] === "r" || parentOf(box) ? button : undefined);
  }
  function choose(key, quiet) { chosen = key; mark(); if (!quiet) details(boxes.get(key)); }

  let drag = null, moved = false;
  view.addEventListener("pointerdown", (event) => { drag = { x: event.clientX - camera.x, y: event.clientY - camera.y, x0: event.clientX, y0: event.clientY }; moved = false; });
  window.addEventListener("pointermove", (event) => {
    if (!drag) return;
    if (Math.abs(event.clientX - drag.x0) + Math.abs(event.clientY - drag.y0) > 4) moved = true;
    if (moved) { camera.x = event.clientX - drag.x; camera.y = event.clientY - drag.y; move(); }
  });
  window.addEventListener("pointerup", () => { drag = null; });
  view.addEventListener("click", (event) => {
    const group = event.target.closest(".node");
    if (group && !moved) choose(group.dataset.key);
  });
  view.addEventListener("dblclick", (event) => { const group = event.target.closest(".node"); if (group) toggle(boxes.get(group.dataset.key)); });
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;  // the wheel alone scrolls the page
    event.preventDefault();
    const box = view.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  view.addEventListener("keydown", (event) => {
    const box = boxes.get(chosen);
    if (event.key === "+" || event.key === "=") zoom(1.25, ...middle());
    else if (event.key === "-") zoom(0.8, ...middle());
    else if (event.key === "0") fit(true);
    else if (event.key.startsWith("Arrow")) {
      let next = null;
      if (!box) next = [...boxes.values()].sort((a, b) => a.row - b.row || a.x - b.x)[0];
      else if (event.key === "ArrowDown") next = links.filter((link) => link.a === box).map((link) => link.b).sort((a, b) => a.row - b.row)[0];
      else if (event.key === "ArrowUp") next = links.filter((link) => link.b === box).map((link) => link.a).sort((a, b) => b.row - a.row)[0];
      else next = [...boxes.values()].find((other) => other.row === box.row && other.order === box.order + (event.key === "ArrowRight" ? 1 : -1));
      if (next) { choose(next.key); bring(next); }
    } else if (event.key === "Enter" && box) details(box);
    else if ((event.key === "f" || event.key === "F") && box && !event.ctrlKey && !event.metaKey) toggle(box);
    else return;
    event.preventDefault();
  });
  $("zoom-in").addEventListener("click", () => zoom(1.25, ...middle()));
  $("zoom-out").addEventListener("click", () => zoom(0.8, ...middle()));
  $("zoom-fit").addEventListener("click", () => fit(true));
  $("fold-all").addEventListener("click", () => { refold(() => { for (const id of regions.keys()) folded.add(id); }); fit(false); });
  $("unfold-all").addEventListener("click", () => { refold(() => folded.clear()); fit(false); });

  const search = $("graph-search");
  function look() {
    const wanted = search.value.trim().toLowerCase();
    found = wanted ? nodes.filter((node) => node.name.toLowerCase().includes(wanted) || node.op.toLowerCase().includes(wanted)) : [];
    at = -1;
    $("graph-found").textContent = wanted ? `${found.length} found${found.length ? "; Enter goes to them" : ""}` : "";
    mark();
  }
  search.addEventListener("input", look);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.length) return;
    event.preventDefault();
    at = (at + (event.shiftKey ? found.length - 1 : 1)) % found.length;
    const node = found[at];
    let hidden = false;
    for (let region = regions.get(node.region); region; region = regions.get(region.parent)) hidden = folded.delete(region.id) || hidden;
    if (hidden) draw();
    choose("n" + node.id);
    bring(boxes.get(chosen));
    $("graph-found").textContent = `${at + 1} of ${found.length}`;
  });

  if (nodes.length > MOST_SHOWN) for (const id of regions.keys()) folded.add(id);
  draw();
  fit(false);
})();
