"use strict";
// The page is complete without this: it adds zoom, and the reading of values from the time line.
for (const box of document.querySelectorAll(".wide")) {
  const picture = box.querySelector("svg.lanes");
  const bar = document.createElement("div");
  bar.className = "zoom";
  const told = document.createElement("span");
  told.className = "quiet";
  told.setAttribute("role", "status");
  const buttons = [1, 4, 16].map((times) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = times === 1 ? "whole" : times + "×";
    button.setAttribute("aria-pressed", String(times === 1));
    button.addEventListener("click", () => {
      const middle = (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
      picture.setAttribute("width", times * 100 + "%");
      box.scrollLeft = middle * box.scrollWidth - box.clientWidth / 2;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    });
    return button;
  });
  bar.append(...buttons, told);
  box.before(bar);

  const rows = [...box.parentElement.querySelectorAll(".frames > li[data-t]")];
  const start = Number(picture.dataset.start);
  const length = Number(picture.dataset.end) - start;
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.setAttribute("class", "cursor");
  line.setAttribute("y1", "0");
  line.setAttribute("y2", "100%");
  let at = null;

  const level = (path, share) => {
    // The outline is made of steps: "V height", then "H end of the bin".
    const inner = path.ownerSVGElement.viewBox.baseVal;
    let height = 0;
    for (const step of path.getAttribute("d").matchAll(/V([\d.]+)H([\d.]+)/g)) {
      height = inner.height - Number(step[1]);
      if (Number(step[2]) >= share * inner.width) break;
    }
    return Math.round((height / (inner.height - 4)) * Number(path.dataset.most)).toLocaleString("en");
  };
  const nearest = (t) => rows.reduce((best, row) => (Math.abs(row.dataset.t - t) < Math.abs(best.dataset.t - t) ? row : best), rows[0]);
  const show = (share) => {
    at = Math.min(Math.max(share, 0), 1);
    line.setAttribute("x1", at * 100 + "%");
    line.setAttribute("x2", at * 100 + "%");
    picture.append(line);
    const values = [...picture.querySelectorAll(".area")].map((path) => path.dataset.name + " " + level(path, at));
    told.textContent = ["at " + (start + at * length).toFixed(3) + " s", ...values, "Enter or a click goes to this moment"].join(" · ");
  };
  const go = () => {
    const row = at === null || !rows.length ? null : nearest(start + at * length);
    if (!row) return;
    row.closest("details").open = true;
    row.scrollIntoView({ block: "center" });
    row.tabIndex = -1;
    row.focus({ preventScroll: true });
  };
  picture.addEventListener("pointermove", (event) => {
    const place = picture.getBoundingClientRect();
    show((event.clientX - place.left) / place.width);
  });
  picture.addEventListener("click", (event) => {
    if (!event.target.closest("a")) go();
  });
  box.addEventListener("keydown", (event) => {
    if (event.target.closest("a")) return;
    const step = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
    if (step) {
      show((at ?? 0) + step);
      event.preventDefault();
    } else if (event.key === "Enter") {
      go();
    }
  });
}
for (const link of document.querySelectorAll('a[href^="#flag"]')) {
  link.addEventListener("click", () => {
    const details = document.getElementById(link.getAttribute("href").slice(1))?.closest("details");
    if (details) details.open = true;
  });
}
