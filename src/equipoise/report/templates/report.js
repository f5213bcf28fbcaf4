/* The page works without this file; it adds the coverage curves, their toggles and readout, and sortable columns. */
(() => {
  "use strict";

  const data = JSON.parse(document.getElementById("data").textContent);
  const MISSING = 65535;
  const SVG = "http://www.w3.org/2000/svg";
  const SIZE = { width: 300, height: 272, left: 38, right: 10, top: 10, bottom: 36 };
  const MINUS = "\u2212";

  // ---------------------------------------------------------------- numbers

  /* Curves travel as unsigned 16-bit integers, little endian: value × data.scale, 65535 where missing. */
  function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
  }
  const share = (q) => (q === MISSING ? NaN : q / data.scale);

  /* Bands come as curves of their own or, where they follow from the coverage alone, as a table of it. */
  const whole = unpack(data.coverage);
  const curves = { coverage: Float64Array.from(whole, share) };
  for (const end of ["lower", "upper"]) {
    if (data.band) {
      const at = unpack(data.band.at), ends = unpack(data.band[end]);
      const table = new Map(Array.from(at, (q, i) => [q, share(ends[i])]));
      curves[end] = Float64Array.from(whole, (q) => table.get(q));
    } else {
      curves[end] = data[end] ? Float64Array.from(unpack(data[end]), share) : curves.coverage;
    }
  }
  const levels = data.levels;
  const sizes = [data.tasks.length, data.methods.length, data.budgets.length, data.runs.length];

  /* One run's values along the levels, or null where the cell is missing. */
  function cell(name, t, m, b, r) {
    const start = (((t * sizes[1] + m) * sizes[2] + b) * sizes[3] + r) * levels.length;
    const values = curves[name].subarray(start, start + levels.length);
    return values.some(Number.isNaN) ? null : values;
  }

  function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

  /* What is drawn of a setting: the curve and its band, over all runs or for one of them. */
  function setting(t, m, b, run) {
    const present = data.runs.map((_, r) => r).filter((r) => cell("coverage", t, m, b, r) !== null);
    const chosen = run === "all" ? present : present.filter((r) => r === Number(run));
    if (!chosen.length) return null;
    if (chosen.length === 1) {
      const [r] = chosen;
      const middle = cell("coverage", t, m, b, r);
      return { runs: 1, middle, low: cell("lower", t, m, b, r) ?? middle, high: cell("upper", t, m, b, r) ?? middle };
    }
    const all = chosen.map((r) => cell("coverage", t, m, b, r));
    const over = (f) => levels.map((_, i) => f(all.map((values) => values[i])));
    return { runs: all.length, middle: over(median), low: over((v) => Math.min(...v)), high: over((v) => Math.max(...v)) };
  }

  function shown(value, signed) {
    const text = Math.abs(value).toFixed(3);
    const sign = Number(text) === 0 ? "" : value < 0 ? MINUS : signed ? "+" : "";
    return sign + text;
  }

  // ---------------------------------------------------------------- drawing

  function element(name, attributes, ...children) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  function html(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  function swatch(look) {
    return element("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" },
      element("line", { x1: 1, x2: 25, y1: 5, y2: 5, style: `stroke:${look.colour}`, "stroke-dasharray": look.dash }));
  }

  const x = (level) => SIZE.left + level * (SIZE.width - SIZE.left - SIZE.right);
  function scale(view, extent) {
    const [low, high] = view === "difference" ? [-extent, extent] : [0, 1];
    return (value) => SIZE.height - SIZE.bottom - ((value - low) / (high - low)) * (SIZE.height - SIZE.top - SIZE.bottom);
  }
  const path = (points) => "M" + points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");

  function axes(svg, state, y) {
    const bottom = SIZE.height - SIZE.bottom;
    const difference = state.view === "difference";
    const tick = (value) => (Math.abs(value) < 1e-9 ? "0" : (value < 0 ? MINUS : difference ? "+" : "") + Number(Math.abs(value).toFixed(2)));
    const step = difference ? state.extent / 2 : 0.25;
    for (let v = difference ? -state.extent : 0; v <= (difference ? state.extent : 1) + 1e-9; v += step) {
      svg.append(element("line", { class: "grid", x1: x(0), x2: x(1), y1: y(v), y2: y(v) }),
        element("text", { class: "tick", x: SIZE.left - 6, y: y(v) + 3.5, "text-anchor": "end" }, tick(v)));
    }
    for (const v of [0, 0.25, 0.5, 0.75, 1]) {
      svg.append(element("line", { class: "grid", x1: x(v), x2: x(v), y1: SIZE.top, y2: bottom }),
        element("text", { class: "tick", x: x(v), y: bottom + 15, "text-anchor": "middle" }, String(v)));
    }
    svg.append(element("text", { class: "axis", x: x(0.5), y: SIZE.height - 4, "text-anchor": "middle" }, "credibility level"));
    if (data.calibration) {
      const edge = (values) => values.map((v, i) => [x(levels[i]), y(difference ? v - levels[i] : v)]);
      svg.append(element("path", { class: "calibration", d: path([...edge(data.calibration.low), ...edge(data.calibration.high).reverse()]) + "Z" }));
    }
    svg.append(element("path", { class: "diagonal", d: path([[x(0), y(0)], [x(1), y(difference ? 0 : 1)]]) }),
      element("text", { class: "side", x: x(0) + 6, y: SIZE.top + 13 }, "conservative"),
      element("text", { class: "side", x: x(1) - 6, y: bottom - 7, "text-anchor": "end" }, "overconfident"));
  }

  function panel(state, title, subtitle, lines) {
    const difference = state.view === "difference";
    const y = scale(state.view, state.extent);
    const svg = element("svg", {
      viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, tabindex: "0", role: "slider", "aria-orientation": "horizontal",
      "aria-label": `${title}, ${subtitle}: ${difference ? "coverage minus level" : "coverage"} at a credibility level; arrow keys move along the levels`,
      "aria-valuemin": levels[0], "aria-valuemax": levels[levels.length - 1], "aria-valuenow": levels[0],
    });
    axes(svg, state, y);
    const height = (value, i) => y(difference ? value - levels[i] : value);
    const along = (values) => Array.from(values, (v, i) => [x(levels[i]), height(v, i)]);
    if (state.bands) {
      for (const line of lines) {
        svg.append(element("path", { class: "band", style: `fill:${line.look.colour}`, d: path([...along(line.low), ...along(line.high).reverse()]) + "Z" }));
      }
    }
    for (const line of lines) {
      svg.append(element("path", { class: "curve", style: `stroke:${line.look.colour}`, "stroke-dasharray": line.look.dash, d: path(along(line.middle)) }));
    }
    const cursor = element("g", { class: "cursor", visibility: "hidden" },
      element("line", { y1: SIZE.top, y2: SIZE.height - SIZE.bottom }),
      ...lines.map((line) => element("circle", { r: 3.5, style: `fill:${line.look.colour}` })));
    svg.append(cursor);

    let at = levels.reduce((best, level, i) => (Math.abs(level - 0.95) < Math.abs(levels[best] - 0.95) ? i : best), 0);
    const words = () => lines.map((line) => {
      const shift = difference ? levels[at] : 0;
      const [c, lo, hi] = [line.middle[at], line.low[at], line.high[at]].map((v) => shown(v - shift, difference));
      return `${line.name}: ${difference ? "difference" : "coverage"} ${c}, from ${lo} to ${hi}`;
    });
    function move(index) {
      at = Math.max(0, Math.min(levels.length - 1, index));
      cursor.setAttribute("visibility", "visible");
      const [rule, ...dots] = cursor.children;
      rule.setAttribute("x1", x(levels[at]));
      rule.setAttribute("x2", x(levels[at]));
      dots.forEach((dot, i) => {
        dot.setAttribute("cx", x(levels[at]));
        dot.setAttribute("cy", height(lines[i].middle[at], at));
      });
      svg.setAttribute("aria-valuenow", levels[at]);
      svg.setAttribute("aria-valuetext", `level ${shown(levels[at])}. ${words().join(". ")}`);
      readout(svg, at, lines, difference);
    }
    function leave() {
      cursor.setAttribute("visibility", "hidden");
      hideReadout();
    }
    svg.setAttribute("aria-valuenow", levels[at]);
    svg.setAttribute("aria-valuetext", `level ${shown(levels[at])}. ${words().join(". ")}`);
    const nearest = (event) => {
      const box = svg.getBoundingClientRect();
      const level = (((event.clientX - box.left) / box.width) * SIZE.width - SIZE.left) / (SIZE.width - SIZE.left - SIZE.right);
      return levels.reduce((best, value, i) => (Math.abs(value - level) < Math.abs(levels[best] - level) ? i : best), 0);
    };
    svg.addEventListener("pointermove", (event) => move(nearest(event)));
    svg.addEventListener("pointerdown", (event) => move(nearest(event)));
    svg.addEventListener("pointerleave", () => { if (document.activeElement !== svg) leave(); });
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) move(at); });
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const stride = event.shiftKey ? 10 : 1;
      const target = { ArrowLeft: at - stride, ArrowDown: at - stride, ArrowRight: at + stride, ArrowUp: at + stride,
        PageDown: at - 10, PageUp: at + 10, Home: 0, End: levels.length - 1 }[event.key];
      if (event.key === "Escape") leave();
      if (target === undefined) return;
      event.preventDefault();
      move(target);
    });
    return html("figure", { class: "panel" },
      html("figcaption", {}, html("strong", {}, title), " ", html("span", { class: "quiet" }, subtitle)), svg);
  }

  // ---------------------------------------------------------------- readout

  const box = document.getElementById("readout");
  function readout(svg, at, lines, difference) {
    const rows = lines.map((line) => {
      const shift = difference ? levels[at] : 0;
      const [c, lo, hi] = [line.middle[at], line.low[at], line.high[at]].map((v) => shown(v - shift, difference));
      const row = html("tr", { "data-curve": line.key }, html("th", { scope: "row" }, swatch(line.look), line.name),
        html("td", { class: "value" }, c), html("td", { class: "interval" }, `${lo} to ${hi}`));
      return row;
    });
    const several = lines.some((line) => line.runs > 1);
    const head = html("tr", {}, html("td", {}), html("th", { scope: "col" }, (several ? "median " : "") + (difference ? "coverage \u2212 level" : "coverage")),
      html("th", { scope: "col" }, several ? "range over runs" : `${data.confidence} band`));
    box.replaceChildren(html("p", { class: "level" }, "level ", html("strong", {}, shown(levels[at]))),
      html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)));
    box.hidden = false;
    const rect = svg.getBoundingClientRect();
    const px = rect.left + (x(levels[at]) / SIZE.width) * rect.width;
    const room = document.documentElement.clientWidth;
    const width = box.offsetWidth;
    const left = px + 16 + width < room ? px + 16 : px - 16 - width > 0 ? px - 16 - width : Math.max(4, (room - width) / 2);
    const below = rect.bottom + 6 + box.offsetHeight < window.innerHeight;
    const beside = px + 16 + width < room || px - 16 - width > 0;
    box.style.left = `${left}px`;
    box.style.top = `${beside ? rect.top + 24 : below ? rect.bottom + 6 : Math.max(4, rect.top - box.offsetHeight - 6)}px`;
  }
  function hideReadout() { box.hidden = true; }
  window.addEventListener("scroll", hideReadout, { passive: true });

  // ---------------------------------------------------------------- coverage

  const form = document.getElementById("choices");
  const panels = document.getElementById("panels");
  const checked = (name) => [...form.querySelectorAll(`input[name="${name}"]:checked`)].map((input) => Number(input.value));
  const radio = (name, fallback) => form.querySelector(`input[name="${name}"]:checked`)?.value ?? fallback;

  function draw() {
    hideReadout();
    const state = { view: radio("view", "coverage"), by: radio("by", "method"), run: form.querySelector('select[name="run"]')?.value ?? "all",
      bands: form.querySelector('input[name="bands"]').checked, extent: 0.1 };
    const [ts, ms, bs] = ["task", "method", "budget"].map(checked);
    const byMethod = state.by === "method";
    const budgetName = (b) => `${data.budgets[b].label} simulations`;
    const groups = ts.map((t) => ({
      title: data.tasks[t].label,
      panels: (byMethod ? ms : bs).map((outer) => ({
        title: byMethod ? data.methods[outer].label : budgetName(outer),
        lines: (byMethod ? bs : ms).map((inner) => {
          const [m, b] = byMethod ? [outer, inner] : [inner, outer];
          const found = setting(t, m, b, state.run);
          return found && { ...found, look: byMethod ? data.budgets[b] : data.methods[m], name: byMethod ? data.budgets[b].label : data.methods[m].label,
            key: `${data.tasks[t].id}/${data.methods[m].id}/${data.budgets[b].id}` };
        }).filter(Boolean),
      })).filter((one) => one.lines.length),
    })).filter((group) => group.panels.length);
    let widest = 0;
    for (const group of groups) for (const one of group.panels) for (const line of one.lines) {
      levels.forEach((level, i) => {
        const [low, high] = state.bands ? [line.low[i], line.high[i]] : [line.middle[i], line.middle[i]];
        widest = Math.max(widest, Math.abs(low - level), Math.abs(high - level));
      });
    }
    state.extent = Math.max(0.1, Math.ceil(widest * 10) / 10);
    panels.replaceChildren(...groups.map((group) => html("section", { class: "group", "aria-label": group.title },
      ...(groups.length > 1 ? [html("h3", {}, group.title)] : []),
      html("div", { class: "row" }, ...group.panels.map((one) => panel(state, one.title, group.title, one.lines))))));
    if (!groups.length) {
      const asked = ts.length && ms.length && bs.length;
      panels.replaceChildren(html("p", { class: "empty" }, asked ? "None of these cells has been computed." : "Nothing is selected: tick at least one task, method and budget."));
    }
  }

  form.addEventListener("change", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of form.querySelectorAll("button[data-all]")) {
    button.addEventListener("click", () => {
      const inputs = [...form.querySelectorAll(`input[name="${button.dataset.all}"]`)];
      const tick = inputs.some((input) => !input.checked);
      for (const input of inputs) input.checked = tick;
      draw();
    });
  }
  form.hidden = false;
  draw();

  // ---------------------------------------------------------------- tables

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = html("button", { type: "button" }, ...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        const compare = (a, b) => {
          const [p, q] = [key(a), key(b)];
          if (p === "" || q === "") return p === q ? 0 : p === "" ? 1 : -1; // what is unknown stays last
          const order = Number.isNaN(Number(p)) || Number.isNaN(Number(q)) ? p.localeCompare(q) : Number(p) - Number(q);
          return down ? -order : order;
        };
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort(compare));
      });
    });
  }

  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });

  const filter = document.getElementById("filter");
  filter?.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll("#verdict-table tbody tr")];
    let left = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      left += !row.hidden;
    }
    document.getElementById("filtered").textContent = words.length ? `${left} of ${rows.length} rows` : "";
  });
})();
