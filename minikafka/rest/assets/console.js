// The console. It shows the states of /v1/live, of which it applies the differences, and derives no ISR and no watermark:
// sentences and reasons come from the broker.
import { clusterEventsView, partitionEventsView } from "./events.js";
import { groupsView, groupView } from "./groups.js";
import { at, explain, health, link, make, partitionHead, put, request, shown, table } from "./parts.js";
import { recordsView } from "./records.js";

const RETRY_MS = 1000;
const SILENCE_MS = 8000; // the broker sends at least a heartbeat every 5 s
const view = document.getElementById("view");
const wide = matchMedia("(min-width: 641px)");
let stream = null; // the EventSource of the view that is shown
let shownView = null;
let heard = null; // time of the last event
let watchdog = 0;
let sending = null;

// ---- cluster ----

function brokersTable(brokers, controller) {
  return table("Brokers", ["Broker", "State", "Leads#", "In sync#", "Replicas#"], Object.values(brokers).map((each) => [
    make("span", {}, make("a", { href: `${each.url}/`, "data-key": `open ${each.id}` }, `broker ${each.id}`), each.id === controller ? " ♛ controller" : ""),
    make("button", { class: each.fenced ? "chip out" : "chip", "data-key": `broker ${each.id}`, onclick: () => explain(each.why) }, each.fenced ? "✗ fenced" : "✓ up"),
    each.leader_count, each.in_sync_count, each.replica_count]));
}

function topicMatrix(topic, partitions) {
  const cells = Object.entries(partitions).map(([number, one]) => {
    const words = one.leader === null ? "no leader" : `leader ${one.leader}, ISR {${one.isr.join(",")}} of {${one.replicas.join(",")}}`;
    return make("a", { href: link(topic, number), class: one.state, "data-key": `${topic}-${number}` }, `${number}: ${words}`);
  });
  return make("div", { class: "topic" }, make("h3", {}, topic), make("div", { class: "matrix" }, ...cells));
}

async function start(button) {
  button.disabled = true;
  try {
    await request("/v1/topics", { name: "orders", partitions: 3, replication_factor: Number(button.dataset.copies) });
    sendEverySecond();
    location.hash = link("orders", 0);
  } catch (error) {
    button.disabled = false;
    explain(error.message);
  }
}

function sendEverySecond() {
  let count = 0;
  const stop = document.getElementById("sending");
  stop.hidden = false;
  stop.onclick = () => { clearInterval(sending); stop.hidden = true; };
  sending = setInterval(async () => {
    try {
      await request(`${at("orders", 0)}/records`, { records: [{ key: `order-${count}`, value: { number: count++ } }] });
    } catch (error) {
      health(`A record was not acknowledged: ${error.message}`);
    }
  }, 1000);
}

function clusterView() {
  const brokersPart = make("section");
  const topicsPart = make("section");
  const show = (state) => {
    const { brokers, topics, topics_left_out: more } = state;
    const up = Object.values(brokers).filter((each) => !each.fenced).length;
    health(state.summary);
    put(brokersPart, make("h2", {}, "Brokers"), brokersTable(brokers, state.controller));
    put(topicsPart, make("h2", {}, "Partitions"), ...(Object.keys(topics).length ? Object.entries(topics).map(([topic, partitions]) => topicMatrix(topic, partitions)) : [
      make("p", {}, "There are no topics yet."),
      make("button", { class: "main", "data-key": "start", "data-copies": Math.min(3, up), onclick: (event) => start(event.currentTarget) },
        `Create orders (3 partitions, ${Math.min(3, up)} copies) and send a record every second`)]),
      more > 0 ? make("p", { class: "soft" }, `${more} more topics are not shown.`) : "");
  };
  return { parts: [make("h1", {}, "Cluster"), brokersPart, topicsPart], scope: "cluster", show };
}

// ---- one partition ----

// Without a leader that knows the follower, the API has the follower's own LEO in its place.
const knownToLeader = (replica) => replica.lag_records === null ? null : replica.leo;

function lane(replica, from, to, { leader, epoch, lso }) {
  const { own_leo: leo, hw } = replica;
  const leads = replica.id === leader;
  const cells = [];
  for (let offset = from; offset <= to; offset++) {
    const known = leo !== null;
    const kind = !known ? "unknown" : offset >= leo ? "" : hw !== null && offset < hw ? "committed" : "open";
    const marks = (leads && offset === lso && lso !== hw ? " lso" : "") + (offset === hw ? " hw" : "") + (offset === leo ? " leo" : "");
    cells.push(make("span", { class: `cell ${kind}${marks}` }, known && offset < leo ? offset : ""));
  }
  const behind = replica.lag_records ? `${replica.lag_records} behind` : "";
  return make("div", { class: leads ? "lane leader" : "lane follower", "data-replica": replica.id },
    make("div", { class: "head" }, make("b", {}, `${replica.id}${leads ? " ♛ leader" : ` ${replica.role}`}`),
      make("button", { class: replica.in_sync ? "chip" : "chip out", "data-key": `isr ${replica.id}`, onclick: () => explain(replica.why) },
        replica.in_sync ? "✓ in the ISR" : "✗ out of the ISR"),
      make("span", {}, `LEO ${shown(leo)}`), make("span", {}, `HW ${shown(hw)}`), leads ? make("span", {}, `LSO ${shown(lso)}`) : "", leads ? make("span", {}, `epoch ${epoch}`) : "",
      leads ? "" : make("span", { class: "soft" }, `leader ${shown(leader)} knows ${shown(knownToLeader(replica))}`),
      make("span", { class: "soft" }, leo === null ? `no word from broker ${replica.id}` : behind)),
    make("div", { class: "cells", "aria-hidden": "true" }, ...cells));
}

function valuesTable(replicas) {
  return table("Offsets of each replica", ["Replica", "Role", "In the ISR", "LEO", "LEO known to the leader", "HW", "Last fetch (ms ago)"], replicas.map((each) =>
    make("tr", { "data-values": each.id }, ...[each.id, each.role, each.in_sync ? "yes" : "no", shown(each.own_leo), shown(knownToLeader(each)), shown(each.hw),
      each.last_fetch_ms_ago ?? ""].map((value) => make("td", {}, value)))));
}

function journeyOf(sent, partition, replicas) {
  const steps = [`acknowledged at offset ${sent.offset} after ${sent.ms} ms`];
  for (const each of replicas) {
    steps.push(each.own_leo === null ? `broker ${each.id}: no word`
      : each.own_leo > sent.offset ? `broker ${each.id}: in its log` : `broker ${each.id}: not there, its log ends at ${each.own_leo}`);
  }
  if (partition.high_watermark !== null) steps.push(partition.high_watermark > sent.offset ? "committed" : "not committed yet");
  return make("ol", { class: "journey" }, ...steps.map((step) => make("li", {}, step)));
}

function produceForm(topic, partition, told) {
  const result = make("div", { role: "status" });
  const key = make("input", { name: "key", autocomplete: "off" });
  const value = make("input", { name: "value", autocomplete: "off", required: "" });
  const form = make("form", {}, make("label", {}, "Key", key), make("label", {}, "Value (text)", value), make("button", { class: "main" }, "Produce"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const begun = performance.now();
    try {
      const record = { value: value.value, ...(key.value ? { key: key.value } : {}) };
      const answer = await request(`${at(topic, partition)}/records`, { records: [record] });
      const { offset } = answer.records[0];
      told.sent = { offset, ms: Math.round(performance.now() - begun) };
      put(result, make("p", {}, `The record is at offset ${offset}.`));
    } catch (error) {
      told.sent = null;
      put(result, make("p", { class: "failed" }, error.message));
    }
  });
  return { form, result };
}

export function partitionView(topic, number) {
  const lanes = make("section");
  const values = make("section");
  const told = { sent: null };
  const { form, result } = produceForm(topic, number, told);
  const show = (state) => {
    const { partition } = state;
    const leader = partition.leader?.id ?? null;
    const replicas = partition.order.map((id) => partition.replicas[id]);
    const top = Math.max(0, ...replicas.map((each) => each.own_leo ?? 0));
    const from = Math.max(0, top - (wide.matches ? 30 : 12));
    const epoch = partition.leader_epoch;
    health(state.summary);
    put(lanes, make("h2", {}, `Replicas, leader epoch ${epoch}, min ISR ${shown(partition.min_insync_replicas)}`),
      make("p", { class: "why" }, make("button", { "data-key": "hw", onclick: () => explain(
        "The high watermark (HW) is the offset below which every replica in the ISR has all records. Consumers read only below it. LEO, the log end offset, is the offset of the next record in a replica's log. The last stable offset (LSO) is the end for consumers with read_committed: the first record of the oldest open transaction, or the HW.") }, "HW, LEO, LSO?"), make("span", {}, state.why_watermark)),
      ...replicas.map((each) => lane(each, from, top, { leader, epoch, lso: partition.last_stable_offset })),
      make("p", { class: "soft" }, "Solid: the replica knows that the record is committed. Hatched: in its log, but the replica does not know that yet. Thick bar: HW. Thin bar: LEO. Dotted bar: LSO, if it is below the HW. Read four times a second."));
    put(values, make("h2", {}, "Values"), valuesTable(replicas));
    if (told.sent) put(result, journeyOf(told.sent, partition, replicas));
  };
  const produce = make("section", {}, make("h2", {}, "Produce"), form, result);
  return { parts: [...partitionHead(topic, number, ""), lanes, produce, values], scope: `${topic}-${number}`, show };
}

// ---- routes and the stream ----

const PARTITION_VIEWS = { records: recordsView, events: partitionEventsView };

function route() {
  const [path, search = ""] = location.hash.slice(1).split("?");
  let names = [];
  try {
    names = path.split("/").slice(1).map(decodeURIComponent);
  } catch (error) {
    health(`This address cannot be read: ${error.message}`);
  }
  const [kind, name, number, tab] = names;
  if (kind === "t" && name && /^\d+$/.test(number ?? "")) return (PARTITION_VIEWS[tab] ?? partitionView)(name, Number(number), new URLSearchParams(search));
  if (kind === "g") return name ? groupView(name) : groupsView();
  return kind === "e" ? clusterEventsView() : clusterView();
}

// Applies the changes of a frame: [path, value], or [path] for a member that is gone (minikafka/wire/differences.py).
// Members are defined, not assigned: a topic may have the name __proto__.
export function apply(state, changes) {
  for (const [path, ...value] of changes) {
    let place = state;
    for (const name of path.slice(0, -1)) place = place[name];
    const name = path.at(-1);
    if (value.length === 0) delete place[name];
    else Object.defineProperty(place, name, { value: value[0], writable: true, enumerable: true, configurable: true });
  }
  return state;
}

function connection(kind, words) {
  const live = document.getElementById("live");
  live.className = kind;
  live.textContent = words;
}

function lost() {
  connection("stale", heard ? `no data since ${heard.toLocaleTimeString()}` : "no data yet");
}

function hear() {
  heard = new Date();
  connection("", "● LIVE");
  clearTimeout(watchdog);
  watchdog = setTimeout(lost, SILENCE_MS);
}

// Why a stream is refused: an EventSource does not tell.
async function explainRefusal(scope) {
  try {
    const response = await fetch(`/v1/live?scope=${encodeURIComponent(scope)}`, { headers: { Accept: "text/event-stream, application/json" }, signal: AbortSignal.timeout(RETRY_MS) });
    if (response.ok) await response.body.cancel();
    else health((await response.json()).detail);
  } catch (error) {
    health(`The broker does not answer: ${error.message}`);
  }
}

function watch(scope, show) {
  let state = null;
  const source = new EventSource(`/v1/live?scope=${encodeURIComponent(scope)}`);
  const on = (kind, act) => source.addEventListener(kind, (event) => {
    if (source !== stream) return;
    hear();
    act?.(JSON.parse(event.data));
    if (state?.problem) health(state.problem.detail);
    else if (state) show(state);
  });
  on("hello");
  on("heartbeat");
  on("snapshot", (data) => { state = data; });
  on("frame", ({ changes }) => { apply(state, changes); });
  source.onerror = () => {
    if (source !== stream) return;
    lost();
    if (source.readyState !== EventSource.CLOSED) return; // the browser reconnects by itself
    explainRefusal(scope);
    setTimeout(() => { if (source === stream) watch(scope, show); }, RETRY_MS);
  };
  stream = source;
}

function open() {
  shownView?.close?.();
  shownView = route();
  view.replaceChildren(...shownView.parts);
  document.title = `${view.querySelector("h1").textContent} · minikafka`;
  const section = `#/${location.hash.split("/")[1] ?? ""}`.replace("#/t", "#/");
  for (const each of document.querySelectorAll("header nav a")) each.ariaCurrent = each.getAttribute("href") === section ? "page" : null;
  toggle();
}

// A hidden page holds no connection: a browser has six for one broker.
function toggle() {
  stream?.close();
  stream = null;
  clearTimeout(watchdog);
  if (!document.hidden) watch(shownView.scope, shownView.show);
}

addEventListener("hashchange", () => { open(); view.focus(); scrollTo(0, 0); });
addEventListener("visibilitychange", toggle);
addEventListener("pagehide", () => clearInterval(sending));
open();
