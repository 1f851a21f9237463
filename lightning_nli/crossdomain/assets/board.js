"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const ours = byId("ours");
  const rows = [...ours.rows];
  const headings = all("#table thead th");
  const names = new Map(rows.map((row) => [row.dataset.m, row.cells[0].querySelector("a").textContent]));
  const collator = new Intl.Collator("en", { numeric: true });
  const parts = new Map(rows.map((row) => [row.dataset.m, []]));
  for (const part of all("[data-m]")) parts.get(part.dataset.m).push(part);
  let order = "";

  const valueOf = (row, column) => {
    const value = row.cells[column].dataset.v;
    return value === undefined ? null : Number(value);
  };

  const compare = (column, sign) => (first, second) => {
    const byName = collator.compare(names.get(first.dataset.m), names.get(second.dataset.m));
    if (column === 0) return sign * byName;
    const [a, b] = [valueOf(first, column), valueOf(second, column)];
    if (a === null || b === null) return (a === null) - (b === null) || byName;
    return sign * (a - b) || byName;
  };

  const sort = (column) => {
    const heading = headings[column];
    const button = heading.querySelector("button");
    const turned = { ascending: "descending", descending: "ascending", none: button.dataset.first };
    const direction = turned[heading.getAttribute("aria-sort")];
    for (const one of headings) if (one.hasAttribute("aria-sort")) one.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", direction);
    rows.sort(compare(column, direction === "ascending" ? 1 : -1));
    for (const row of rows) {
      for (const part of parts.get(row.dataset.m)) if (part.matches("tr, details")) part.parentNode.append(part);
    }
    order = `, sorted by ${button.textContent}, ${direction}; blank cells last`;
    tell();
  };

  const tell = () => {
    const shown = rows.filter((row) => !row.hidden).length;
    byId("status").textContent = `${shown} of ${rows.length} models shown${order}.`;
  };

  const filter = () => {
    const words = byId("f-name").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const name = names.get(row.dataset.m).toLowerCase();
      const fits =
        words.every((word) => name.includes(word)) &&
        ["", row.dataset.kind].includes(byId("f-kind").value) &&
        ("whole" in row.dataset || !byId("f-whole").checked);
      for (const part of parts.get(row.dataset.m)) part.toggleAttribute("hidden", !fits);
    }
    tell();
  };

  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([byId("data").textContent], { type: "application/json" }));
    link.download = "board.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const copyButton = (block) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy command";
    button.addEventListener("click", async () => {
      const range = document.createRange();
      range.selectNodeContents(block);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      try {
        await navigator.clipboard.writeText(block.textContent);
        byId("status").textContent = button.textContent = "Copied";
      } catch {
        button.textContent = "Selected: press Ctrl+C";
      }
    });
    block.after(button);
  };

  const openTarget = () => {
    const target = location.hash.startsWith("#m") && byId(location.hash.slice(1));
    if (target && target.matches("details")) {
      target.open = true;
      target.scrollIntoView();
    }
  };

  headings.forEach((heading, column) => heading.querySelector("button")?.addEventListener("click", () => sort(column)));
  byId("f-name").addEventListener("input", filter);
  for (const id of ["f-kind", "f-whole"]) byId(id).addEventListener("change", filter);
  byId("f-pub")?.addEventListener("change", (event) => {
    byId("published").hidden = !event.target.checked;
  });
  byId("save").addEventListener("click", save);
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  all(".cmd").forEach(copyButton);
  for (const item of all(".plot [data-m]")) {
    const mark = (on) => all(`.plot [data-m="${item.dataset.m}"]`).forEach((one) => one.classList.toggle("on", on));
    item.addEventListener("mouseenter", () => mark(true));
    item.addEventListener("mouseleave", () => mark(false));
  }
  window.addEventListener("hashchange", openTarget);
  document.querySelector(".controls").hidden = false;
  openTarget();
  tell();
  performance.mark("board-ready");
})();
