// The replay page. It applies the changes that states.py has written down, and draws; it decides nothing.
"use strict";
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const steps = run.steps;
  const byId = (id) => document.getElementById(id);
  const OTHERS = "others";
  const CELL_PX = 32;
  const EVENTS_SHOWN = 15;
  const HUES = [212, 28, 150, 285, 350, 60, 185, 320];
  const DEAD = new Set(["down", "offline", "stopped"]);
  const FAULTS = new Set([
    "node_killed", "node_power_cut", "node_paused", "node_isolated", "link_cut", "link_clogged", "message_sent",
  ]);
  const narrow = matchMedia("(max-width: 700px)");

  // states[i] is where everything stands after step i; states[0] is before the first step.
  const states = [{ replicas: run.before, decided: run.decided }];
  for (const step of steps) {
    const last = states[states.length - 1];
    let replicas = last.replicas;
    if (step.d) {
      replicas = { ...replicas };
      for (const [node, change] of Object.entries(step.d)) {
        if (change === null) delete replicas[node];
        else replicas[node] = { ...replicas[node], ...change };
      }
    }
    states.push({ replicas, decided: step.g || last.decided });
  }
  const isMessage = (step) => step.k === "message_sent";
  const failures = steps.flatMap((step, n) => (step.x === "bad" ? [n + 1] : []));
  const broken = steps.findIndex((step) => step.k === "violation");

  let here = 0;
  let playing = null;

  // ---- small helpers ------------------------------------------------------------------------------------------------

  function element(tag, { text, html, ...attributes } = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== false) made.setAttribute(name, value);
    }
    if (text !== undefined) made.textContent = text;
    made.append(...children.filter((child) => child !== null));
    return made;
  }
  const seconds = (t) => (t < 100 ? t.toFixed(3) : t.toFixed(2)) + " s";
  const set = (nodes) => (nodes && nodes.length ? nodes.join(",") : "");
  const remote = (end) => (end < 0 ? "?" : String(end));
  const nodeName = (node) => {
    const digits = /^n?(\d+)$/.exec(node);
    return digits ? "broker " + digits[1] : node || "the run";
  };
  const laneOf = (node) => {
    const digits = /^n?(\d+)$/.exec(node);
    return digits && run.lanes.includes(Number(digits[1])) ? digits[1] : OTHERS;
  };

  // ---- values, as the table and the lanes show them -----------------------------------------------------------------

  function values(replica) {
    if (!replica) return { role: "", epoch: "", leo: "", hw: "", isr: "", remotes: "", process: "absent" };
    const known = (value) => (value === null ? "?" : String(value));
    return {
      role: replica.role || "-",
      epoch: known(replica.epoch),
      leo: String(replica.leo),
      hw: known(replica.hw),
      isr: set(replica.isr) + (replica.asked ? ` asks ${set(replica.asked)}` : ""),
      remotes: replica.remotes.map(([node, end]) => `${node}:${remote(end)}`).join(" "),
      process: replica.process,
    };
  }
  const COLUMNS = ["role", "epoch", "leo", "hw", "isr", "remotes", "process"];
  const NAMES = [...document.querySelectorAll("#values th")].slice(1).map((head) => head.textContent);

  function drawTable(before, after) {
    const body = byId("values").tBodies[0];
    body.replaceChildren(
      ...run.lanes.map((node) => {
        const old = values(before.replicas[node]);
        const now = values(after.replicas[node]);
        const row = element("tr", { "data-replica": node }, element("td", { text: `broker ${node}` }));
        for (const [n, column] of COLUMNS.entries()) {
          const changed = old[column] !== now[column];
          const cell = element("td", {
            class: changed ? "changed" : undefined, "data-field": column, "data-name": NAMES[n], "data-value": now[column],
          });
          if (changed && old[column] && old[column] !== "-" && old[column] !== "absent" && column !== "remotes") {
            cell.append(element("span", { class: "old", text: old[column] + " → " }));
          }
          cell.append(now[column]);
          if (column === "process" && DEAD.has(now.process)) cell.classList.add("dead-text");
          row.append(cell);
        }
        return row;
      }),
    );
    const decided = after.decided;
    byId("decided").textContent =
      decided.epoch < 0
        ? "The controller's record is not known yet."
        : `By the controller: ${decided.leader < 0 ? "nobody leads" : "broker " + decided.leader + " leads"} epoch ` +
          `${decided.epoch}, ISR ${set(decided.isr) || "empty"}, replicas ${set(decided.replicas)}.`;
  }

  // ---- lanes --------------------------------------------------------------------------------------------------------

  function hue(epoch) {
    return HUES[epoch % HUES.length];
  }

  // All lanes share one axis of offsets, so that equal offsets stand below each other.
  function axis(before, after, width) {
    const room = Math.max(3, Math.floor((width - 76) / CELL_PX));
    const all = [...Object.values(before.replicas), ...Object.values(after.replicas)];
    const end = Math.max(1, ...all.map((replica) => replica.leo));
    const start = Math.max(0, Math.min(...all.map((replica) => replica.start), end), end - room);
    return { start, end, left: start > 0 ? 26 : 4 };
  }

  function drawCells(box, before, after, scale) {
    const x = (offset) => scale.left + (Math.max(offset, scale.start) - scale.start) * CELL_PX;
    if (after.start > scale.start || (after.leo === after.start && after.start === 0)) {
      box.append(element("span", { class: "empty", style: `left:${x(0)}px`, text: after.leo === after.start ? "empty log" : "" }));
    }
    if (after.leo <= scale.start && scale.start > 0) {
      // The whole log lies left of what is shown.
      const hw = after.hw === null ? "" : `, HW ${after.hw}`;
      box.append(element("span", { class: "empty", style: "left:4px", text: `◂ LEO ${after.leo}${hw}` }));
      return;
    }
    if (scale.start > after.start) box.append(element("span", { class: "more", style: "left:4px", text: "…" }));
    for (const [base, end, epoch] of after.runs) {
      for (let offset = Math.max(base, scale.start); offset < end; offset++) {
        const committed = after.hw !== null && offset < after.hw;
        const fresh = before && offset >= before.leo;
        const names = ["cell", committed ? "" : "open", epoch < 0 ? "unknown" : "", fresh ? "fresh" : ""].filter(Boolean);
        box.append(
          element("span", {
            class: names.join(" "),
            style: `left:${x(offset)}px;width:${CELL_PX - 3}px;--hue:${hue(Math.max(0, epoch))}`,
            title: `offset ${offset}, ${epoch < 0 ? "epoch not told" : "epoch " + epoch}, ${committed ? "committed" : "not known to be committed"}`,
            text: offset,
          }),
        );
      }
    }
    for (let offset = Math.max(after.leo, scale.start); before && offset < before.leo; offset++) {
      box.append(element("span", { class: "cell gone", style: `left:${x(offset)}px;width:${CELL_PX - 3}px`, title: `offset ${offset} is gone`, text: offset }));
    }
    mark(box, "leo", "LEO", after.leo, x);
    if (after.hw !== null) mark(box, "hw", "HW", after.hw, x);
  }

  function mark(box, kind, word, offset, x) {
    const left = x(offset) - 2;
    const made = element("span", { class: `mark ${kind}${left < 24 ? " edge" : ""}`, style: `left:${left}px` }, word + " ");
    made.append(element("b", { text: offset }));
    box.append(made);
  }

  function drawLabel(node, before, after, decided) {
    const label = element("div", { class: "label" });
    const name = element("div", { class: "name" }, `broker ${node}`);
    label.append(name);
    if (!after) {
      name.append(element("span", { class: "badge", text: "no replica yet" }));
      return label;
    }
    const dead = DEAD.has(after.process);
    const held = after.process === "paused" || after.process === "fenced";
    const word = after.process === "up" ? after.role || "no role" : held ? `${after.role} ${after.process}` : after.process;
    name.append(element("span", { class: `badge ${dead || held ? "dead" : after.role}`, text: word }));
    const stats = element("div", { class: "stats" });
    const stat = (word, field) => {
      const now = values(after)[field];
      const changed = before && values(before)[field] !== now;
      stats.append(word + " ", element("b", { class: changed ? "new" : undefined, text: now }), "  ");
    };
    stat("epoch", "epoch");
    if (decided.epoch >= 0) {
      const member = decided.isr.includes(node);
      stats.append(element("span", { class: member ? "insync" : "outofsync", text: member ? "✓ in the ISR" : "✗ not in the ISR" }));
    }
    label.append(stats);
    if (after.role === "leader") {
      const known = element("div", { class: "stats" }, "ISR ");
      known.append(element("b", { text: set(after.isr) }));
      if (after.asked) known.append(element("span", { class: "outofsync", text: `  asks ${set(after.asked)}` }));
      label.append(known);
    } else if (after.role === "follower") {
      label.append(element("div", { class: "stats" }, `follows broker ${after.leader}`));
    }
    return label;
  }

  function drawLanes(before, after, step) {
    const touched = new Set(step && step.d ? Object.keys(step.d) : []);
    if (step && !isMessage(step)) touched.add(laneOf(step.n));
    const box = byId("lanes");
    const others = element("div", { class: "lane others", "data-lane": OTHERS }, element("div", { class: "label" }, element("div", { class: "name", text: "clients, other brokers" })));
    const lanes = run.lanes.map((node) =>
      element("div", { class: "lane", "data-lane": node }, drawLabel(node, before.replicas[node], after.replicas[node], after.decided), element("div", { class: "cells" })),
    );
    box.replaceChildren(others, ...lanes);
    const scale = axis(before, after, lanes[0].querySelector(".cells").clientWidth);
    for (const [n, node] of run.lanes.entries()) {
      const now = after.replicas[node];
      if (now) drawCells(lanes[n].querySelector(".cells"), before.replicas[node], now, scale);
      if (now && DEAD.has(now.process)) lanes[n].classList.add("dead");
      if (touched.has(String(node))) lanes[n].classList.add("touched");
    }
    drawLegend(after);
    drawArrow(step);
  }

  function drawLegend(after) {
    const epochs = new Set(Object.values(after.replicas).flatMap((replica) => replica.runs.map(([, , epoch]) => epoch)));
    const sorted = [...epochs].sort((one, other) => one - other).slice(-8);
    byId("legend").replaceChildren(
      ...sorted.map((epoch) =>
        element("span", {}, element("i", { class: epoch < 0 ? "cell unknown" : "cell", style: `--hue:${hue(Math.max(0, epoch))}` }), epoch < 0 ? "epoch not told" : `written in epoch ${epoch}`),
      ),
      element("span", {}, element("i", { class: "cell open", style: "--hue:212" }), "not committed as far as this replica knows"),
    );
  }

  function drawArrow(step) {
    const svg = byId("arrows");
    svg.replaceChildren();
    if (!step || !step.a) return;
    const [source, target, label, fate] = step.a;
    const board = byId("board").getBoundingClientRect();
    const middle = (node) => {
      const lane = document.querySelector(`[data-lane="${laneOf(node)}"]`).getBoundingClientRect();
      return lane.top + lane.height / 2 - board.top;
    };
    const [from, to] = [middle(source), middle(target)];
    const bad = fate === "lost" || fate === "reset" || fate === "held";
    const down = to >= from ? 1 : -1;
    // On a narrow screen the arrow has a margin of its own, and its words stand above the lanes only.
    const left = narrow.matches ? 14 : document.querySelector(".lane .label").getBoundingClientRect().width + 26;
    const stop = bad ? to - down * 16 : to - down * 9;
    const draw = (tag, attributes, text) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      if (text) made.textContent = text;
      svg.append(made);
    };
    if (laneOf(source) === laneOf(target)) {
      draw("path", { d: `M ${left} ${from - 8} h 26 v 16 h -18`, class: fate });
      draw("path", { d: `M ${left + 8} ${from + 3} l -8 5 l 8 5 z`, class: "tip" });
    } else {
      draw("circle", { cx: left, cy: from, r: 4, class: bad ? "tip bad" : "tip" });
      draw("path", { d: `M ${left} ${from} V ${stop}`, class: bad ? "bad" : fate });
      if (bad) draw("path", { d: `M ${left - 6} ${stop - 6} l 12 12 m 0 -12 l -12 12`, class: "bad", style: "stroke-dasharray:none" });
      else draw("path", { d: `M ${left - 5} ${to - down * 10} h 10 l -5 ${down * 9} z`, class: "tip" });
    }
    if (narrow.matches) return;
    const words = bad ? `${label} (${fate})` : label;
    const lines = words.length > 22 ? words.replace(/^(.{1,22})[ ]/, "$1\n").split("\n") : [words];
    lines.forEach((line, n) => draw("text", { x: left + 12, y: (from + to) / 2 + 4 + n * 15 - (lines.length - 1) * 7, class: bad ? "bad" : "" }, line));
  }

  // ---- this step, and those around it -------------------------------------------------------------------------------

  function drawNow(step) {
    const now = byId("now");
    now.className = "now " + ((step && step.x) || "");
    byId("number").textContent = `step ${here} of ${steps.length}`;
    byId("clock").textContent = seconds(step ? step.t : run.from_s);
    byId("who").textContent = step ? nodeName(step.n) : "";
    byId("kind").textContent = step ? step.k : "";
    byId("what").textContent = step ? step.w : "Before the first step";
    const why = step ? [step.y && `because: ${step.y}`, step.c && `in request ${step.c}`] : ["press → to begin"];
    byId("why").textContent = why.filter(Boolean).join(" · ");
    byId("facts").replaceChildren(
      ...Object.entries(step ? step.f : {}).flatMap(([name, value]) => [
        element("dt", { text: name }),
        element("dd", { text: typeof value === "string" ? value : JSON.stringify(value) }),
      ]),
    );
  }

  function drawEvents() {
    const first = Math.max(1, Math.min(here - Math.floor(EVENTS_SHOWN / 2), steps.length - EVENTS_SHOWN + 1));
    const shown = steps.slice(first - 1, first - 1 + EVENTS_SHOWN);
    byId("events").replaceChildren(
      ...shown.map((step, n) => {
        const number = first + n;
        const names = [step.x === "bad" ? "bad" : "", number === here ? "here" : "", isMessage(step) ? "message" : ""].filter(Boolean);
        const button = element(
          "button",
          { "aria-current": number === here ? "step" : undefined, title: step.w },
          element("time", { text: seconds(step.t) }),
          element("span", { class: "node", text: nodeName(step.n) }),
          element("span", { class: "text", text: step.w }),
        );
        button.addEventListener("click", () => go(number));
        return element("li", { class: names.join(" ") || undefined }, button);
      }),
    );
  }

  function draw() {
    const step = here ? steps[here - 1] : null;
    const before = states[Math.max(0, here - 1)];
    const after = states[here];
    drawNow(step);
    drawLanes(before, after, step);
    drawTable(before, after);
    drawEvents();
    const scrubber = byId("scrubber");
    scrubber.value = here;
    scrubber.setAttribute("aria-valuetext", step ? `step ${here}, ${seconds(step.t)}: ${step.w}` : "before the first step");
    byId("first").disabled = byId("back").disabled = here === 0;
    byId("next").disabled = byId("last").disabled = here === steps.length;
    document.body.dataset.step = here;
  }

  // ---- moving -------------------------------------------------------------------------------------------------------

  function go(number) {
    here = Math.max(0, Math.min(steps.length, number));
    history.replaceState(null, "", `#step=${here}`);
    draw();
  }

  function move(by) {
    let number = here + by;
    const skips = !byId("messages").checked;
    while (skips && number > 0 && number < steps.length && isMessage(steps[number - 1]) && steps[number - 1].x !== "bad") number += by;
    go(number);
  }

  function play(on) {
    clearInterval(playing);
    playing = null;
    if (on) {
      if (here === steps.length) go(0);
      playing = setInterval(() => (here === steps.length ? play(false) : move(1)), 1000 / Number(byId("speed").value));
    }
    byId("play").textContent = on ? "❚❚ pause" : "▶ play";
    byId("play").setAttribute("aria-pressed", String(on));
  }

  function toFailure(by) {
    const ahead = by > 0 ? failures.find((number) => number > here) : [...failures].reverse().find((number) => number < here);
    if (ahead !== undefined) go(ahead);
  }

  const halt = (then) => () => { play(false); then(); };
  byId("first").addEventListener("click", halt(() => go(0)));
  byId("back").addEventListener("click", halt(() => move(-1)));
  byId("next").addEventListener("click", halt(() => move(1)));
  byId("last").addEventListener("click", halt(() => go(steps.length)));
  byId("play").addEventListener("click", () => play(playing === null));
  byId("speed").addEventListener("change", () => play(playing !== null));
  byId("failure").addEventListener("click", halt(() => toFailure(1)));
  byId("scrubber").addEventListener("input", (event) => { play(false); go(Number(event.target.value)); });
  addEventListener("resize", draw);
  addEventListener("hashchange", () => { const asked = /step=(\d+)/.exec(location.hash); if (asked) go(Number(asked[1])); });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
    const onButton = event.target.matches("button, summary, input[type=checkbox]");
    const keys = {
      ArrowRight: halt(() => move(1)), ArrowLeft: halt(() => move(-1)), Home: halt(() => go(0)), End: halt(() => go(steps.length)),
      f: halt(() => toFailure(1)), F: halt(() => toFailure(-1)), " ": onButton ? null : () => play(playing === null),
    };
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // Where there is something to see: the broken guarantee, or the first moment at which somebody leads.
  function opening() {
    if (broken >= 0) return broken + 1;
    return Math.max(0, states.findIndex(({ replicas }) => Object.values(replicas).some((replica) => replica.role === "leader")));
  }

  // What the red steps are: a run may hold all guarantees in spite of many faults.
  function verdict() {
    const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
    const faults = failures.filter((number) => FAULTS.has(steps[number - 1].k)).length;
    const others = failures.length - faults - steps.filter((step) => step.k === "violation").length;
    const held = run.violations ? `${count(run.violations, "guarantee was", "guarantees were")} broken. ` : run.simulated ? "All guarantees held. " : "";
    const caused = faults ? " that they may have caused" : "";
    const red = [faults && count(faults, "fault", "faults"), others && count(others, "failure", "failures") + caused].filter(Boolean);
    return held + (red.length ? `Marked red: ${red.join(" and ")}.` : "");
  }

  // ---- what stands still --------------------------------------------------------------------------------------------

  byId("title").textContent = `Replay of ${run.partition}`;
  byId("subtitle").textContent =
    `${run.title}: ${run.simulated ? "a simulation, in virtual time" : "a journal of real brokers"}; ` +
    `${steps.length.toLocaleString("en")} steps from ${seconds(run.from_s)} to ${seconds(run.to_s)} of ${seconds(run.end_s)}.`;
  byId("verdict").textContent = verdict();
  byId("notes").replaceChildren(...run.notes.map((note) => element("li", { text: note })));
  byId("scrubber").max = steps.length;
  byId("failure").disabled = failures.length === 0;
  byId("ticks").replaceChildren(...failures.slice(0, 400).map((number) => element("i", { style: `left:${(100 * number) / steps.length}%` })));
  if (broken >= 0) {
    const button = element("button", { text: "show it" });
    button.addEventListener("click", () => go(broken + 1));
    byId("broken").append(`${steps[broken].w}. ${steps[broken].f.what || ""}`, button);
    byId("broken").hidden = false;
  }
  const asked = /step=(\d+)/.exec(location.hash);
  go(asked ? Number(asked[1]) : opening());
})();
