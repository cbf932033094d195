"use strict";

/* Sort: numbers as numbers, text as text, cells without a value last either way. */
function valueOf(row, column) {
  const cell = row.cells[column];
  const raw = cell.dataset.value;
  const number = Number(raw);
  return raw === "" ? null : Number.isNaN(number) ? raw : number;
}

function compare(a, b) {
  if (typeof a === typeof b && typeof a === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortBy(table, column, heading) {
  const descending = heading.getAttribute("aria-sort") === "ascending";
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [row, valueOf(row, column)]);
  const there = rows.filter(([, value]) => value !== null);
  const absent = rows.filter(([, value]) => value === null);
  there.sort(([, a], [, b]) => (descending ? compare(b, a) : compare(a, b)));
  body.append(...there.concat(absent).map(([row]) => row));
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[table.tHead.rows.length - 1].cells).forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortBy(table, column, heading));
    heading.append(button);
  });
}

/* Filter heads by layer, and by what holds for them. */
for (const heads of document.querySelectorAll(".heads")) {
  const selects = Array.from(heads.querySelectorAll("select"));
  const rows = Array.from(heads.querySelector("tbody").rows);
  const output = heads.querySelector("output");
  const filter = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = selects.some(({ value, dataset }) => value !== "" && !row.dataset[dataset.key].split(" ").includes(value));
      shown += row.hidden ? 0 : 1;
    }
    output.textContent = `${shown} of ${rows.length} heads`;
  };
  for (const select of selects) select.addEventListener("change", filter);
  heads.querySelector(".filters").hidden = false;
  filter(); // a browser that comes back to the page keeps what was selected
}
