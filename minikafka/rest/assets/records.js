// Records of one partition, newest first. Below the high watermark they come from a fetch, above it from the leader's log.
import { at, explain, health, link, make, moment, partitionHead, put, request, shown, table } from "./parts.js";

const COUNT = 50; // records in one view
const SEARCHED = 10000; // offsets that one search covers
const REQUESTS_MAX = 8; // each reads at most 1 MB of the log
const FOLLOW_MS = 300;
const RETRY_MS = 2000;
const CELL = 120; // characters of a key or value in the list
const DETAIL = 65536; // characters of one in the details

// ---- reading ----

// The first offset of the window that the address names, or null if no record is there.
async function startOf(path, from, contains, partition) {
  const { log_start_offset: start, high_watermark: end } = partition;
  if (from === "newest") return Math.max(start, end - (contains ? SEARCHED : COUNT));
  if (from === "oldest") return start;
  if (/^\d+$/.test(from)) return Math.min(Math.max(start, Number(from)), end);
  const { offset } = await request(`${path}/offsets?at=${encodeURIComponent(from)}`);
  return offset < 0 ? null : offset;
}

async function readCommitted(path, first, { from, contains }, end) {
  const limit = contains ? Math.min(end, first + SEARCHED) : end;
  const search = contains ? `&max_records=1000&contains=${encodeURIComponent(contains)}` : `&max_records=${COUNT}`;
  const found = { rows: [], first, next: first, problem: null };
  for (let count = 0; count < REQUESTS_MAX && found.next < limit; count++) {
    const answer = await request(`${path}/records?offset=${found.next}&max_wait_ms=0&format=text${search}`);
    found.rows.push(...answer.records);
    found.next = answer.next_offset;
    if (from !== "newest" && found.rows.length >= COUNT) break;
  }
  if (from === "newest") found.rows = found.rows.slice(-COUNT);
  else if (found.rows.length > COUNT) {
    found.rows = found.rows.slice(0, COUNT);
    found.next = found.rows.at(-1).offset + 1;
  }
  return found;
}

async function readAbove(path, leader, end) {
  const log = await request(`${path}/log?replica=${leader}&from=${end}&records=true&format=text&max_batches=${COUNT}`);
  return log.batches.filter((batch) => !batch.is_control).flatMap((batch) => batch.records ?? []).filter((record) => record.offset >= end);
}

async function readWindow(path, wanted, partition) {
  const { high_watermark: end, log_end_offset: top, leader } = partition;
  if (end === null || !leader) throw new Error("The partition has no leader that answers, so no records can be read.");
  const first = await startOf(path, wanted.from, wanted.contains, partition);
  if (first === null) return { rows: [], first: end, next: end };
  const found = await readCommitted(path, first, wanted, end);
  if (!wanted.contains && top > end && found.next >= end && found.rows.length <= COUNT) found.rows.push(...await readAbove(path, leader.id, end));
  return found;
}

// ---- showing ----

function sized(text, coded) {
  if (coded !== undefined) return `binary, ${Math.floor(coded.replace(/=+$/, "").length * 3 / 4).toLocaleString("en")} bytes`;
  if (text === null) return "null";
  return text.length > CELL ? `${text.slice(0, CELL)}… (${text.length.toLocaleString("en")} characters)` : text;
}

function full(text, coded) {
  const whole = coded ?? String(text);
  return whole.length > DETAIL ? `${whole.slice(0, DETAIL)}\n… the first ${DETAIL} of ${whole.length} characters` : whole;
}

const headerText = ([name, value]) => `${name}: ${value !== null && typeof value === "object" ? `${value.b64} (base64)` : value}`;

function standing(record, { high_watermark: end, last_stable_offset: stable }) {
  if (end === null) return ["chip out", "? unknown"];
  if (record.offset >= end) return ["chip out", "✗ not committed"];
  return stable !== null && record.offset >= stable ? ["chip out", "◇ above the LSO"] : ["chip", "✓ committed"];
}

const reach = (record, replicas) => replicas.map(({ id, own_leo: end }) => `${id} ${end === null ? "?" : end > record.offset ? "✓" : "✗"}`).join(", ");

// Compares the batch on each replica: two logs that reach an offset may differ there.
async function compare(path, offset, replicas) {
  const batches = await Promise.all(replicas.map(async ({ id }) => {
    try {
      const log = await request(`${path}/log?replica=${id}&from=${offset}&to=${offset + 1}&max_batches=1`);
      const [batch] = log.batches;
      if (!batch) return [id, null, `not there, its log ends at ${log.log_end_offset}`];
      return [id, `${batch.base_offset} ${batch.leader_epoch} ${batch.crc}`, `batch ${batch.base_offset} to ${batch.last_offset}, leader epoch ${batch.leader_epoch}, CRC ${batch.is_valid ? "valid" : "WRONG"}`];
    } catch (error) {
      return [id, null, error.status === 416 ? "not there" : error.message];
    }
  }));
  const kinds = new Set(batches.map(([, kind]) => kind).filter((kind) => kind !== null));
  return [kinds.size > 1 ? "The replicas have DIFFERENT batches at this offset." : "Every replica that has this offset has the same batch.",
    ...batches.map(([id, , words]) => `broker ${id}: ${words}`)];
}

function details(record, path, told) {
  const compared = async () => {
    told.open.set(record.offset, await compare(path, record.offset, told.replicas()));
    told.draw();
  };
  const pair = (name, value) => [make("dt", {}, name), make("dd", {}, make("pre", {}, value))];
  return make("dl", {},
    ...pair("Key", full(record.key, record.key_b64)),
    ...pair(`Value (${record.encoding === "base64" ? "base64" : "text"})`, full(record.value, record.value_b64)),
    ...pair("Headers", record.headers.length ? record.headers.map(headerText).join("\n") : "none"),
    ...pair("Timestamp, leader epoch", `${moment(record.timestamp)} (${record.timestamp} ms), ${record.leader_epoch}`),
    make("dt", {}, "On the brokers' disks"), make("dd", {}, make("button", { onclick: compared, "data-key": `compare ${record.offset}` }, "Compare the replicas"),
      make("ul", {}, ...told.open.get(record.offset).map((line) => make("li", {}, line)))));
}

function rowsOf(read, told, path) {
  const { partition } = told;
  const rows = [];
  for (const record of [...read.rows].reverse()) {
    const [kind, words] = standing(record, partition);
    if (rows.length && rows.at(-1).above && record.offset < partition.high_watermark) rows.push(make("tr", { class: "mark" }, make("td", { colspan: 7 }, `HW ${partition.high_watermark}: records above this line are not committed, consumers do not get them`)));
    const open = told.open.has(record.offset);
    const name = make("button", { "aria-expanded": String(open), "data-key": `record ${record.offset}`, onclick: () => {
      if (!told.open.delete(record.offset)) told.open.set(record.offset, []);
      told.draw();
    } }, record.offset);
    const cells = record.detail ? ["", make("i", {}, "cannot be read"), "", ""]
      : [moment(record.timestamp), sized(record.key, record.key_b64), sized(record.value, record.value_b64), record.headers.length];
    const row = make("tr", { "data-offset": record.offset }, make("td", {}, name), make("td", {}, make("span", { class: kind }, words)),
      ...cells.map((cell, column) => make("td", { class: ["wide", "text", "text value", "wide number"][column] }, cell)), make("td", { class: "wide" }, reach(record, told.replicas())));
    row.above = partition.high_watermark !== null && record.offset >= partition.high_watermark;
    rows.push(row);
    if (open) rows.push(make("tr", { class: "details" }, make("td", { colspan: 7 }, record.detail ?? details(record, path, told))));
  }
  return rows;
}

function caption(read, { from, contains }, partition) {
  const range = read.first >= read.next ? "No committed record is there" : `Offsets ${read.first} to ${read.next - 1}`;
  const what = contains ? `, searched for “${contains}”: ${read.rows.length}${from === "newest" && read.rows.length === COUNT ? " or more" : ""} found` : `, ${read.rows.length} records`;
  return `${range}${what}. The log begins at ${shown(partition.log_start_offset)}. Read at ${moment(read.at)}${from === "newest" && !contains ? ", and again with each change" : ""}. Records of aborted transactions are included.`;
}

function seekForm(topic, number, { from, contains }) {
  const place = make("input", { name: "from", value: from, autocomplete: "off", list: "places", "aria-describedby": "places-help" });
  const text = make("input", { name: "contains", value: contains, autocomplete: "off" });
  const form = make("form", {}, make("label", {}, "From", place), make("label", {}, "Contains (key, value or header)", text), make("button", { class: "main" }, "Show"),
    make("datalist", { id: "places" }, make("option", { value: "newest" }), make("option", { value: "oldest" })));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = address(topic, number, place.value.trim() || "newest", text.value);
  });
  return [form, make("p", { class: "soft", id: "places-help" }, "From: newest, oldest, an offset, or a time such as 2026-11-23T14:20Z.")];
}

function address(topic, number, from, contains) {
  return `${link(topic, number, "records")}?${new URLSearchParams({ from, ...(contains && { contains }) })}`;
}

function pagesOf(topic, number, { contains }, read, partition) {
  const step = contains ? SEARCHED : COUNT;
  const links = [];
  if (read.next < partition.high_watermark) links.push(make("a", { href: address(topic, number, read.next, contains), "data-key": "newer" }, "Newer"));
  if (read.first > partition.log_start_offset) links.push(make("a", { href: address(topic, number, Math.max(partition.log_start_offset, read.first - step), contains), "data-key": "older" }, "Older"));
  return make("p", { class: "tabs" }, ...links, make("a", { href: `${at(topic, number)}/records?offset=${read.first}&format=text`, "data-key": "json" }, "As JSON"));
}

export function recordsView(topic, number, query) {
  const wanted = { from: query.get("from") ?? "newest", contains: query.get("contains") ?? "" };
  const path = at(topic, number);
  const list = make("section");
  const told = { read: null, partition: null, open: new Map(), failed: "", draw, replicas: () => told.partition.order.map((id) => told.partition.replicas[id]) };
  let [busy, readFor, ended] = [false, null, false];

  function draw() {
    const { read, partition } = told;
    const failed = told.failed ? [make("p", { class: "failed", role: "alert" }, told.failed)] : [];
    if (!read) return put(list, ...failed, failed.length ? "" : make("p", {}, "Reading."));
    const columns = ["Offset", "State", "Time (local)", "Key", "Value", "Headers#", "In the log of"];
    put(list, ...failed, make("p", { class: "soft" }, caption(read, wanted, partition), " ", make("button", { "data-key": "help", onclick: () => explain(
      "Committed: below the high watermark (HW), on every replica in the ISR. Not committed: only in the log of the leader, and perhaps of followers; it can be lost if the leader dies. Above the LSO: committed, but at or above the first record of an open transaction. In the log of: the log of this broker reaches beyond the offset.") }, "What do the columns mean?")),
      make("div", { class: "records" }, table("Records", columns, rowsOf(read, told, path))), pagesOf(topic, number, wanted, read, partition));
  }

  async function refresh(partition) {
    busy = true;
    try {
      told.read = { ...await readWindow(path, wanted, partition), at: Date.now() };
      told.failed = "";
    } catch (error) {
      told.failed = error.message;
      readFor = null;
    }
    if (ended) return;
    draw();
    setTimeout(() => { busy = false; follow(); }, told.failed ? RETRY_MS : FOLLOW_MS);
  }

  // Reads again when the log has changed, one request at a time; only the newest records without a search are followed.
  function follow() {
    const { leader_epoch: epoch, log_end_offset: top, high_watermark: end } = told.partition;
    const now = [epoch, top, end].join();
    const wants = readFor === null || (wanted.from === "newest" && !wanted.contains);
    if (busy || ended || !wants || now === readFor) return;
    readFor = now;
    refresh(told.partition);
  }

  const show = (state) => {
    told.partition = state.partition;
    health(state.summary);
    follow();
    draw();
  };
  return { parts: [...partitionHead(topic, number, "records"), make("section", {}, make("h2", {}, "Records"), ...seekForm(topic, number, wanted)), list],
    scope: `${topic}-${number}`, show, close: () => { ended = true; } };
}
