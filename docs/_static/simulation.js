// A pool on a simulated machine, driven by the rule of sizing.js, under the load that the reader draws.
(function (root) {
  "use strict";
  const isNode = typeof module === "object" && module.exports;
  const { Sizing } = isNode ? require("./sizing.js") : root.ebbpoolSizing;

  const STEP = 0.0005; // seconds
  const ARRIVE = 0.00003; // processor time of a thread until it takes its first task
  const TURN = 0.005; // for how long a thread keeps the GIL

  // Run a pool. load: calls a second, in slices of equal length; seconds: of all slices together. Returns for each of `points`
  // moments the threads, the calls that wait in the queue, and why the pool last grew or did not.
  function simulate({ load, seconds, wait, compute, processors, gil, most, keepAlive, points = 360 }) {
    const bounds = { min_workers: 0, max_workers: most, min_spare_workers: 0 };
    const sizing = new Sizing();
    const capacity = gil ? 1 : processors;
    const workers = []; // {state, rest, until, since}
    const shown = { threads: [], queued: [], busy: [], why: [], done: 0, peak: 0, peakQueue: 0, longest: 0 };
    const queue = []; // when each waiting call came
    let head = 0;
    let arriving = 0;
    let watching = false;
    let ended = -1e9;
    let before = 0;
    let next = 0;
    let used = 0;
    let usedBefore = 0;
    let taken = 0;
    let takenBefore = 0;
    let counted = -1e9;
    let asleep = null;
    let why = "";
    const steps = Math.round(seconds / STEP);
    const every = steps / points;

    function start(now) {
      workers.push({ state: "starting", rest: ARRIVE, until: 0, since: now });
    }

    for (let step = 0; step <= steps; step++) {
      const now = step * STEP;
      const slice = Math.min(load.length - 1, Math.floor((now / seconds) * load.length));
      arriving += load[slice] * STEP;
      while (arriving >= 1) {
        arriving -= 1;
        queue.push(now);
        if (!workers.length) {
          start(now);
        }
      }

      // Processors, shared evenly by all threads that compute.
      let computing = 0;
      let sleeping = 0;
      let starting = 0;
      let idle = 0;
      for (const worker of workers) {
        if (worker.state === "waiting" && worker.until <= now) {
          worker.state = "idle";
          worker.since = now;
          shown.done += 1;
        }
        computing += worker.state === "computing" || worker.state === "starting";
      }
      const share = computing ? STEP * Math.min(1, capacity / computing) : 0;
      used += share * computing;
      for (let index = workers.length - 1; index >= 0; index--) {
        const worker = workers[index];
        if (worker.state === "computing" || worker.state === "starting") {
          worker.rest -= share;
          if (worker.rest <= 1e-9) {
            const came = worker.state === "starting";
            if (!came && wait > 0) {
              worker.state = "waiting";
              worker.until = now + wait;
            } else {
              shown.done += came ? 0 : 1;
              worker.state = "idle";
              worker.since = now;
            }
          }
        }
        if (worker.state === "idle" && head < queue.length && workers.length <= most) {
          shown.longest = Math.max(shown.longest, now - queue[head]);
          head += 1;
          taken += 1;
          worker.rest = compute;
          worker.state = compute > 0 ? "computing" : "waiting";
          worker.until = now + wait;
        } else if (worker.state === "idle" && now - worker.since >= keepAlive) {
          workers.splice(index, 1);
          continue;
        }
        idle += worker.state === "idle";
        starting += worker.state === "starting";
        sleeping += worker.state === "waiting";
      }

      // The timekeeper.
      const queued = queue.length - head;
      if (queued && !watching) {
        watching = true;
        sizing.begin(now - ended);
        before = now;
        usedBefore = used;
        takenBefore = taken;
        next = now + sizing.tick;
      } else if (!queued && watching) {
        watching = false;
        ended = now;
      }
      // A thread that computes keeps the GIL for a turn, and the timekeeper waits for it.
      const late = gil && computing > starting ? TURN : 0;
      if (watching && now >= next + late - 1e-9) {
        if (sizing.asks && now - counted >= 300e-6 * workers.length) {
          counted = now;
          asleep = { counted: workers.length - starting, outside: sleeping, in_locks: idle, in_doubt: 0 };
        }
        const count = sizing.decide(
          {
            queued,
            taken: taken - takenBefore,
            workers: workers.length,
            starting,
            idle,
            blocked: 0,
            elapsed: now - before,
            late: now - next,
            cpu: used - usedBefore,
            cpus: processors,
            refused: false,
            asleep: sizing.asks ? asleep : null,
          },
          bounds,
        );
        before = now;
        usedBefore = used;
        takenBefore = taken;
        for (let number = 0; number < count && workers.length < most; number++) {
          start(now);
        }
        next = now + sizing.tick;
        const because = workers.length >= most ? "max_workers reached" : sizing.why();
        why = count ? `grew by ${count}: ${because}` : `stayed at ${workers.length}: ${because}`;
      }
      shown.peak = Math.max(shown.peak, workers.length);
      shown.peakQueue = Math.max(shown.peakQueue, queued);
      if (step >= shown.threads.length * every) {
        shown.threads.push(workers.length);
        shown.queued.push(queued);
        shown.busy.push(computing);
        shown.why.push(queued ? why : "");
      }
    }
    shown.waiting = queue.length - head;
    return shown;
  }

  if (isNode) {
    module.exports = { simulate };
    return;
  }

  // --- The page ---

  const BARS = 24;
  const SECONDS = 12;
  const FASTEST = 2000; // calls a second
  const W = 720;
  const H = 300;
  const L = 56;
  const B = 22;
  const PRESETS = {
    burst: (i) => (i >= 4 && i < 7 ? 1200 : 40),
    day: (i) => Math.round(600 * (1 - Math.cos((2 * Math.PI * i) / BARS))),
    steps: (i) => [0, 200, 800, 1600, 800, 200][Math.floor(i / 4)],
  };
  const NS = "http://www.w3.org/2000/svg";

  function svg(name, attributes, parent, text) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) {
      node.setAttribute(key, value);
    }
    if (text !== undefined) {
      node.textContent = text;
    }
    parent.appendChild(node);
    return node;
  }

  // Bars and scale go by the square root: small loads can be drawn, and large ones fit.
  const heightOf = (rate) => Math.sqrt(rate / FASTEST);
  const rateOf = (height) => Math.round((FASTEST * height * height) / 10) * 10;

  function begin(box) {
    const load = Array.from({ length: BARS }, (_, i) => PRESETS.burst(i));
    const field = (name) => box.querySelector(`[name=${name}]`);
    const pad = box.querySelector(".ebb-draw");
    const plot = box.querySelector(".ebb-result");
    const told = box.querySelector(".ebb-told");
    let chosen = 0;
    let planned = 0;

    function drawLoad() {
      pad.replaceChildren();
      const height = 140;
      const width = (W - L) / BARS;
      for (const rate of [100, 500, 1000, 2000]) {
        const y = height - heightOf(rate) * (height - 12);
        svg("line", { x1: L, x2: W, y1: y, y2: y, class: "ebb-grid" }, pad);
        svg("text", { x: L - 6, y: y + 4, class: "ebb-axis", "text-anchor": "end" }, pad, rate);
      }
      load.forEach((rate, i) => {
        const tall = Math.max(1, heightOf(rate) * (height - 12));
        const mark = i === chosen && document.activeElement === pad ? " ebb-chosen" : "";
        svg("rect", { x: L + i * width + 1, y: height - tall, width: width - 2, height: tall, class: `ebb-bar${mark}` }, pad);
      });
      pad.setAttribute("aria-valuenow", load[chosen]);
      const second = ((chosen * SECONDS) / BARS).toFixed(1);
      pad.setAttribute("aria-valuetext", `second ${second}: ${load[chosen]} calls a second`);
    }

    function line(values, most, kind) {
      const x = (i) => L + (i / (values.length - 1)) * (W - L);
      const y = (value) => H - B - (value / most) * (H - B - 14);
      const points = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
      svg("polyline", { points, class: `ebb-line ${kind}` }, plot);
    }

    function run() {
      planned = 0;
      const values = Object.fromEntries([...box.querySelectorAll("input[type=range]")].map((input) => [input.name, +input.value]));
      for (const output of box.querySelectorAll("output")) {
        output.value = values[output.htmlFor.value.replace("ebb-", "")];
      }
      const shown = simulate({
        load,
        seconds: SECONDS,
        wait: values.wait / 1000,
        compute: values.compute / 1000,
        processors: values.processors,
        gil: field("gil").checked,
        most: values.most,
        keepAlive: 1,
      });
      plot.replaceChildren();
      const tallest = Math.max(shown.peak, Math.min(shown.peakQueue, 4 * Math.max(10, shown.peak)));
      const most = 20 * Math.max(1, Math.ceil(tallest / 20));
      for (let part = 0; part <= 4; part++) {
        const y = H - B - (part / 4) * (H - B - 14);
        svg("line", { x1: L, x2: W, y1: y, y2: y, class: "ebb-grid" }, plot);
        svg("text", { x: L - 6, y: y + 4, class: "ebb-axis", "text-anchor": "end" }, plot, Math.round((most * part) / 4));
      }
      for (let second = 0; second <= SECONDS; second += 2) {
        const x = L + (second / SECONDS) * (W - L);
        const anchor = second === SECONDS ? "end" : "middle";
        svg("text", { x, y: H - 6, class: "ebb-axis", "text-anchor": anchor }, plot, `${second} s`);
      }
      line(shown.queued.map((value) => Math.min(value, most)), most, "ebb-queue");
      line(shown.threads, most, "ebb-threads");
      const last = shown.why.filter(Boolean).pop() || "no call had to wait for a look of the timekeeper";
      told.textContent =
        `At most ${shown.peak} threads, and ${shown.threads[shown.threads.length - 1]} at the end. ` +
        `At most ${shown.peakQueue} calls waited, the longest for ${shown.longest.toFixed(2)} s` +
        `${shown.waiting ? `; ${shown.waiting} still wait` : ""}. The last decision: ${last}.`;
    }

    function changed() {
      drawLoad();
      if (!planned) {
        planned = requestAnimationFrame(run);
      }
    }

    function at(event) {
      const place = pad.getBoundingClientRect();
      const x = ((event.clientX - place.left) / place.width) * W;
      const y = ((event.clientY - place.top) / place.height) * 140;
      chosen = Math.min(BARS - 1, Math.max(0, Math.floor(((x - L) / (W - L)) * BARS)));
      load[chosen] = rateOf(Math.min(1, Math.max(0, (140 - y) / 128)));
      changed();
    }

    pad.addEventListener("pointerdown", (event) => {
      pad.setPointerCapture(event.pointerId);
      at(event);
    });
    pad.addEventListener("pointermove", (event) => {
      if (event.buttons) {
        at(event);
      }
    });
    pad.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1 };
      const grows = { ArrowUp: 0.05, ArrowDown: -0.05, PageUp: 0.2, PageDown: -0.2 };
      if (event.key in moves) {
        chosen = (chosen + moves[event.key] + BARS) % BARS;
      } else if (event.key in grows) {
        load[chosen] = rateOf(Math.min(1, Math.max(0, heightOf(load[chosen]) + grows[event.key])));
      } else {
        return;
      }
      event.preventDefault();
      changed();
    });
    pad.addEventListener("focus", drawLoad);
    pad.addEventListener("blur", drawLoad);
    for (const button of box.querySelectorAll("[data-preset]")) {
      button.addEventListener("click", () => {
        load.forEach((_, i) => (load[i] = PRESETS[button.dataset.preset](i)));
        changed();
      });
    }
    for (const input of box.querySelectorAll("input")) {
      input.addEventListener("input", changed);
    }
    box.hidden = false;
    changed();
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const box of document.querySelectorAll(".ebb-simulation")) {
      begin(box);
    }
  });
})(typeof window === "object" ? window : globalThis);
