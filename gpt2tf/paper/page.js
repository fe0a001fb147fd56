"use strict";
// Makes the tokens of what comes into sight, and shows what is known of the one that is pointed at or gone to.
// What it is given: layout.py for the text, page.py for the data.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const arrays = { Uint8Array, Uint16Array, Uint32Array, Float32Array };
  function unpack([kind, packed]) {
    const raw = atob(packed);
    const bytes = new Uint8Array(raw.length);
    for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
    return new arrays[kind](bytes.buffer);
  }
  const [tokens, bits, ranks, widths, lineBits, lineTokens, alternatives, alternativeBits] =
    ["tokens", "bits", "ranks", "widths", "lineBits", "lineTokens", "alternatives", "alternativeBits"]
      .map((name) => unpack(data[name]));
  const blocks = [...document.querySelectorAll(".b")];
  const starts = blocks.map((block) => Number(block.dataset.t)); // the first token of each
  const panel = document.getElementById("panel");
  const rendered = new WeakSet();
  let shown = null; // the first token of the sign that the panel is about
  let kept = null; // the one that was clicked or gone to

  function make(tag, className, ...content) {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...content);
    return element;
  }

  const half = (h) => (h >> 10 ? 2 ** ((h >> 10) - 15) * (1 + (h & 1023) / 1024) : (h & 1023) * 2 ** -24); // float16
  const after = (token) => { // the first token of the next sign
    do token++; while (token < tokens.length && !widths[token]);
    return token;
  };
  const before = (token) => {
    do token--; while (token > 0 && !widths[token]);
    return token;
  };
  const surprise = (token) => bits.subarray(token, after(token)).reduce((sum, some) => sum + some, 0);
  const shade = (some) => (Number.isNaN(some) ? "none" : `s${data.edges.filter((edge) => some >= edge).length}`);

  function render(block) {
    if (!block || rendered.has(block)) return;
    rendered.add(block);
    const nodes = [...block.childNodes];
    block.replaceChildren();
    block.classList.add("rendered");
    let token = Number(block.dataset.t);
    let left = widths[token]; // of the sign
    let number = Number(block.dataset.l);
    let line = null;
    let span = null;
    const put = (content, size) => {
      if (!line) {
        line = make("div", "c");
        line.dir = block.dir || "auto";
        const begins = block.hasChildNodes() || !("on" in block.dataset);
        block.append(make("div", "l", ...(begins ? margin(number) : []), line));
        number++;
        span = null;
      }
      if (!span) {
        span = make("span", shade(surprise(token)));
        span.dataset.t = token;
        line.append(span);
      }
      span.append(content);
      left -= size;
      if (left === 0) {
        token = after(token);
        left = widths[token];
        span = null;
      }
    };
    for (const node of nodes) {
      if (node.nodeType !== Node.TEXT_NODE) {
        put(node, 1);
        continue;
      }
      const text = node.data;
      let end = text.indexOf("\n");
      for (let at = 0; at < text.length; ) {
        if (at === end) {
          const mark = make("i", "n");
          mark.dataset.c = "a";
          put(mark, 1);
          line = null;
          end = text.indexOf("\n", ++at);
        } else {
          const stop = Math.min(at + left, end < 0 ? text.length : end);
          put(text.slice(at, stop), stop - at);
          at = stop;
        }
      }
    }
  }
  function margin(number) {
    const count = lineTokens[number];
    if (!count) return [];
    const mean = lineBits[number] / count;
    const element = make("span", `m ${shade(mean)}`);
    element.dataset.m = mean.toFixed(1);
    element.title = `${lineBits[number].toFixed(1)} bits in ${count} token${count > 1 ? "s" : ""}`;
    return [element];
  }

  function place(token) { // the index of its block
    let low = 0;
    for (let high = starts.length; high - low > 1; ) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= token) low = middle;
      else high = middle;
    }
    return low;
  }
  function spans(token) {
    const at = place(token);
    for (const near of [at, at - 1, at + 1]) render(blocks[near]);
    return [...blocks[at].querySelectorAll(`[data-t="${token}"]`)];
  }

  // The panel

  const mark = (part) => make("i", part === "␣" ? "blank" : "", part);
  const name = (index) =>
    make("span", "name", ...data.names[index].split("\0").map((part, k) => (k % 2 ? mark(part) : part)));
  function percent(some) {
    const p = 100 * 2 ** -some;
    return `${p === 0 || p >= 0.001 ? Number(p.toPrecision(p > 99 ? 4 : 3)) : p.toExponential(1)} %`;
  }
  function facts(token) {
    const id = `id ${data.ids[tokens[token]]}`;
    if (Number.isNaN(bits[token])) return `not scored · ${id}`;
    return `${percent(bits[token])} · rank ${ranks[token].toLocaleString("en")} · ${bits[token].toFixed(2)} bits · ${id}`;
  }
  function likely(token) { // [index of a token, its bits] of each alternative
    if (Number.isNaN(bits[token])) return [];
    return Array.from({ length: data.n }, (_, k) => token * data.n + k)
      .map((at) => [alternatives[at], half(alternativeBits[at])]);
  }
  function bars(token) {
    const table = make("table", "");
    for (const [index, some] of likely(token)) {
      const bar = make("span", "bar");
      bar.style.width = `${100 * 2 ** -some}%`;
      const chosen = index === tokens[token] ? "chosen" : "";
      table.append(make("tr", chosen, make("td", "", name(index)), make("td", "", bar), make("td", "", percent(some))));
    }
    return table;
  }
  function fill(token) {
    const end = after(token);
    if (end === token + 1) {
      panel.replaceChildren(make("p", "", name(tokens[token])), make("p", "facts", facts(token)), bars(token));
      return;
    }
    panel.replaceChildren(make("p", "", `${end - token} tokens make this sign: together ${percent(surprise(token))}`));
    for (; token < end; token++) {
      const row = make("p", "token", name(tokens[token]), " ", make("span", "facts", facts(token)));
      const others = make("span", "likely facts");
      for (const [index, some] of likely(token)) {
        others.append(others.hasChildNodes() ? " · " : "", name(index), ` ${percent(some)}`);
      }
      row.append(others);
      panel.append(row);
    }
  }

  function show(token, spoken) {
    for (const span of document.querySelectorAll(".on")) span.classList.remove("on");
    shown = token;
    panel.replaceChildren();
    for (const text of document.querySelectorAll(".text")) text.removeAttribute("aria-activedescendant");
    document.getElementById("now")?.removeAttribute("id");
    if (token === null) return;
    const all = spans(token);
    for (const span of all) span.classList.add("on");
    all[0].id = "now";
    all[0].closest(".text").setAttribute("aria-activedescendant", "now");
    panel.setAttribute("aria-live", spoken ? "polite" : "off"); // a pointer that passes is not read out
    fill(token);
    const here = all[0].getClientRects()[0] ?? all[0].getBoundingClientRect();
    const { width, height, top } = panel.getBoundingClientRect();
    if (getComputedStyle(panel).position === "fixed") { // at the bottom of a small screen
      const { bottom } = all[0].getBoundingClientRect();
      if (token === kept && bottom > top) window.scrollBy(0, bottom + 8 - top);
      return;
    }
    const room = document.documentElement.clientWidth - width - 8;
    const below = here.bottom + 8 + height <= window.innerHeight || here.top - 8 - height < 0;
    panel.style.left = `${window.scrollX + Math.max(8, Math.min(here.left, room))}px`;
    panel.style.top = `${window.scrollY + (below ? here.bottom + 8 : here.top - 8 - height)}px`;
  }

  // Pointer

  const pointed = (target) => {
    const span = target instanceof Element && target.closest(".c [data-t]");
    return span ? Number(span.dataset.t) : null;
  };
  const main = document.querySelector("main");
  main.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse" || event.buttons) return;
    const token = pointed(event.target) ?? kept;
    if (token !== shown) show(token, false);
  });
  main.addEventListener("pointerleave", () => {
    if (shown !== kept) show(kept, false);
  });
  document.addEventListener("click", (event) => {
    if (!getSelection().isCollapsed) return;
    const token = pointed(event.target);
    kept = token === kept ? null : token;
    show(kept, false);
  });

  // Keys

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    kept = null;
    show(null, true);
  });
  function go(token) {
    kept = token;
    spans(token)[0].scrollIntoView({ block: "nearest" });
    show(token, true);
  }
  function vertical(text, down) { // the sign above or below, as the eye sees it
    const here = spans(kept)[0];
    const { top, bottom } = here.getBoundingClientRect();
    if (top < 80 || bottom > window.innerHeight - 80) here.scrollIntoView({ block: "center" });
    panel.replaceChildren(); // it may lie over the place that is looked at
    const from = here.getClientRects()[0];
    const { width } = here.closest(".c").getBoundingClientRect();
    for (let step = 6; step < 100; step += 6) {
      const y = down ? from.bottom + step : from.top - step;
      for (let away = 0; away < width; away += 6) {
        for (const x of [from.left + 2 - away, from.left + 2 + away]) {
          const found = document.elementFromPoint(x, y);
          const token = text.contains(found) ? pointed(found) : null;
          if (token !== null && token !== kept && down === token > kept) return token;
        }
      }
    }
    return kept;
  }
  for (const text of document.querySelectorAll(".text")) {
    const own = [...text.querySelectorAll(".b")];
    if (!own.length) continue;
    const first = Number(own[0].dataset.t);
    const following = starts[blocks.indexOf(own.at(-1)) + 1] ?? tokens.length;
    text.addEventListener("keydown", (event) => {
      if (event.key === "a" && (event.ctrlKey || event.metaKey)) {
        getSelection().selectAllChildren(text);
        event.preventDefault();
      }
      if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
      const inside = kept !== null && kept >= first && kept < following;
      if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
      event.preventDefault();
      if (!inside) {
        const sight = own.find((block) => block.getBoundingClientRect().bottom > 0) ?? own[0];
        go(Number(sight.dataset.t));
        return;
      }
      const here = spans(kept)[0];
      const line = here.closest(".c");
      const forward = (event.key === "ArrowRight") === (getComputedStyle(line).direction === "ltr");
      let next;
      if (event.key === "Home") next = pointed(line.firstElementChild);
      else if (event.key === "End") next = pointed(line.lastElementChild);
      else if (event.key === "ArrowUp" || event.key === "ArrowDown") next = vertical(text, event.key === "ArrowDown");
      else next = forward ? after(kept) : before(kept);
      if (next >= first && next < following) go(next);
    });
  }

  // What is copied is the text, with the characters that marks stand for
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (selection.isCollapsed) return;
    const around = selection.getRangeAt(0).commonAncestorContainer;
    if (!(around instanceof Element ? around : around.parentElement).closest(".text")) return;
    const part = selection.getRangeAt(0).cloneContents();
    for (const mark of part.querySelectorAll("i[data-c]")) {
      mark.replaceWith(String.fromCodePoint(parseInt(mark.dataset.c, 16)));
    }
    event.clipboardData.setData("text/plain", part.textContent);
    event.preventDefault();
  });

  window.addEventListener("beforeprint", () => blocks.forEach(render));
  const watcher = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => render(entry.target)),
    { rootMargin: "50%" },
  );
  blocks.forEach((block) => watcher.observe(block));
})();
