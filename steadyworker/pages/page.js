// Refreshes the parts of the page that changed, every two seconds, until the reader stops this; the page is complete without this.
(() => {
  const EVERY = 2000;
  const button = document.getElementById("pause");
  const status = document.getElementById("refresh");
  if (!button) return;
  const last = new Map();
  let paused = false, failed = 0, timer = 0;

  const show = (text) => { if (status.textContent !== text) status.textContent = text; };
  const selecting = () => { const chosen = getSelection(); return chosen && !chosen.isCollapsed; };

  function exchange(fresh) {
    for (const part of document.querySelectorAll("[data-part]")) {
      const next = fresh.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
      if (!next || next.outerHTML === last.get(part.dataset.part)) continue;
      if (part.contains(document.activeElement) && document.activeElement.matches("input")) continue; // the reader types
      last.set(part.dataset.part, next.outerHTML);
      const open = new Map([...part.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
      const focused = part.contains(document.activeElement) ? document.activeElement : null;
      const place = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.matches("a[href]") ? `a[href="${CSS.escape(focused.getAttribute("href"))}"]` : "");
      for (const each of next.querySelectorAll("details[id]")) each.open = open.get(each.id) ?? each.open;
      const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
      const typed = new Map([...part.querySelectorAll("input[id]")].map((each) => [each.id, each.value]));
      for (const each of next.querySelectorAll("input[id]")) each.value = typed.get(each.id) ?? each.value;
      part.replaceWith(next);
      next.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] ?? 0; });
      if (place) next.querySelector(place)?.focus({ preventScroll: true });
    }
  }

  async function refresh() {
    if (!paused && !document.hidden && !selecting()) {
      try {
        // Not `location.href`: the address that was opened can have a login in it.
        const response = await fetch(location.origin + location.pathname + location.search, { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(15000) });
        if (!response.ok) throw new Error(response.status);
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
        failed = 0;
        if (!paused && !selecting()) {
          exchange(fresh);
          show("");
        }
      } catch {
        failed += 1;
        if (!paused) show(`The page was not refreshed for ${failed * EVERY / 1000} s or more: the dashboard does not respond.`);
      }
    }
    timer = setTimeout(refresh, EVERY);
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
    button.textContent = paused ? "Refresh again" : "Stop refreshing";
    show(paused ? "This page no longer refreshes itself." : "");
    if (!paused) { clearTimeout(timer); refresh(); }
  });
  timer = setTimeout(refresh, EVERY);
})();
