/* The page works without this file; it makes tables sortable, adds the filter, and the buttons "all / none". */
(() => {
  "use strict";

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
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
        table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
      });
    });
  }

  const filter = document.getElementById("filter");
  filter?.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll("#verdict-table tbody tr")];
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const left = rows.filter((row) => !row.hidden).length;
    document.getElementById("filtered").textContent = words.length ? `${left} of ${rows.length} rows` : "";
  });

  for (const button of document.querySelectorAll("button[data-all]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const inputs = [...document.querySelectorAll(`input[name="${button.dataset.all}"]`)];
      const tick = inputs.some((input) => !input.checked);
      for (const input of inputs) input.checked = tick;
    });
  }

  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
