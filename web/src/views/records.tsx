// Records of one partition, newest first. Below the high watermark they come from a fetch, above it from the leader's log.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused, at, messageOf, request } from "../api";
import { replicasOf } from "../lane";
import { pausedAt } from "../live";
import { Alert, PartitionHead, Table } from "../parts";
import { explain } from "../shell";
import type { Partition, Replica } from "../types";
import { counted, link, moment, shown } from "../words";

const COUNT = 50; // records in one view
const SEARCHED = 10_000; // offsets that one search covers
const REQUESTS_MAX = 8; // each reads at most 1 MB of the log
const FOLLOW_MS = 300;
const AWAIT_MS = 5000; // how long a request waits at the high watermark for the next record
const RETRY_MS = 2000;
const CELL = 120; // characters of a key or value in the list
const DETAIL = 65_536; // characters of one in the details
const SHORT = 500; // and lines that fit without a scroll bar, which the keyboard must reach
const SHORT_LINES = 12;

const COLUMNS = "Committed: below the high watermark (HW), on every replica in the ISR. Not committed: only in the log of the leader, and perhaps of followers; it can be lost if the leader dies. Above the LSO: committed, but at or above the first record of an open transaction. In the log of: the log of this broker reaches beyond the offset.";

interface Row {
  offset: number;
  timestamp: number;
  leader_epoch: number;
  key: string | null;
  key_b64?: string;
  value: string | null;
  value_b64?: string;
  encoding: string;
  headers: [string, string | null | { b64: string }][];
  /** Why it cannot be read. */
  detail?: string;
}

interface Batch {
  base_offset: number;
  last_offset: number;
  leader_epoch: number;
  crc: number;
  is_valid: boolean;
  is_control: boolean;
  records?: Row[];
}

interface Log {
  batches: Batch[];
  log_end_offset: number;
}

interface Wanted {
  from: string;
  contains: string;
}

interface Read {
  rows: Row[];
  first: number;
  next: number;
  /** When it was read. */
  at: number;
}

// ---- reading ----

// The first offset of the window that the address names, or null if no record is there.
async function startOf(path: string, { from, contains }: Wanted, start: number, end: number): Promise<number | null> {
  if (from === "newest") return Math.max(start, end - (contains ? SEARCHED : COUNT));
  if (from === "oldest") return start;
  if (/^\d+$/.test(from)) return Math.min(Math.max(start, Number(from)), end);
  const { offset } = await request<{ offset: number }>(`${path}/offsets?at=${encodeURIComponent(from)}`);
  return offset < 0 ? null : offset;
}

async function readCommitted(path: string, first: number, { from, contains }: Wanted, end: number): Promise<Omit<Read, "at">> {
  const limit = contains ? Math.min(end, first + SEARCHED) : end;
  const search = contains ? `&max_records=1000&contains=${encodeURIComponent(contains)}` : `&max_records=${COUNT}`;
  const found = { rows: [] as Row[], first, next: first };
  for (let count = 0; count < REQUESTS_MAX && found.next < limit; count++) {
    const answer = await request<{ records: Row[]; next_offset: number }>(`${path}/records?offset=${found.next}&max_wait_ms=0&format=text${search}`);
    found.rows.push(...answer.records);
    found.next = answer.next_offset;
    if (from !== "newest" && found.rows.length >= COUNT) break;
  }
  // Too large for the requests: nearer to the end, by what they could read, and by half at least, as sizes differ.
  if (from === "newest" && found.next < limit) return readCommitted(path, limit - Math.min(found.next - first, Math.floor((limit - first) / 2)), { from, contains }, end);
  if (from === "newest") found.rows = found.rows.slice(-COUNT);
  else if (found.rows.length > COUNT) {
    found.rows = found.rows.slice(0, COUNT);
    found.next = (found.rows.at(-1)?.offset ?? first) + 1;
  }
  return found;
}

async function readAbove(path: string, leader: number | string, end: number): Promise<Row[]> {
  const log = await request<Log>(`${path}/log?replica=${leader}&from=${end}&records=true&format=text&max_batches=${COUNT}`);
  return log.batches.filter((batch) => !batch.is_control).flatMap((batch) => batch.records ?? []).filter((record) => record.offset >= end);
}

async function readWindow(path: string, wanted: Wanted, partition: Partition): Promise<Read> {
  const { high_watermark: end, log_end_offset: top, log_start_offset: start, leader } = partition;
  if (end === null || !leader) throw new Error("The partition has no leader that answers, so no records can be read.");
  const first = await startOf(path, wanted, start ?? 0, end);
  if (first === null) return { rows: [], first: end, next: end, at: Date.now() };
  const found = await readCommitted(path, first, wanted, end);
  // The watermark may have moved since the state was sent: what the fetch has returned is not read again.
  if (!wanted.contains && found.next >= end && (top ?? 0) > found.next && found.rows.length <= COUNT) found.rows.push(...await readAbove(path, leader.id, found.next));
  return { ...found, at: Date.now() };
}

/** What was committed at an earlier time, as far as the log still has it: committed records do not change. */
async function readPast(path: string, wanted: Wanted, { high_watermark: end, log_start_offset: start }: Partition): Promise<Read> {
  if (end === null) throw new Error("The high watermark of this time is not known, so it is not known which records were committed.");
  const { offset: kept } = await request<{ offset: number }>(`${path}/offsets?at=earliest`);
  const first = await startOf(path, wanted, Math.max(start ?? 0, kept), end);
  if (first === null || first >= end) return { rows: [], first: end, next: end, at: Date.now() };
  const found = await readCommitted(path, first, wanted, end);
  return { ...found, next: Math.min(found.next, end), rows: found.rows.filter(({ offset }) => offset < end), at: Date.now() };
}

/** The end of what is committed, once it is beyond an offset; the offset, if nothing comes. */
async function committedBeyond(path: string, offset: number, until: AbortSignal): Promise<number> {
  const { next_offset: next } = await request<{ next_offset: number }>(`${path}/records?offset=${offset}&max_wait_ms=${AWAIT_MS}&max_records=1&format=text`, null, "GET", until);
  return next;
}

// Reads again when the log has changed, one request at a time; only the newest records without a search are followed.
function useWindow(path: string, wanted: Wanted, partition: Partition | null, isPast: boolean): { read: Read | null; failed: string } {
  const [read, setRead] = useState<Read | null>(null);
  const [failed, setFailed] = useState("");
  const latest = useRef(partition);
  latest.current = partition;
  const wake = useRef(() => {});
  useEffect(() => {
    let [busy, ended, readFor] = [false, false, ""];
    let [awaits, tail] = [false, 0];
    let committed = { epoch: -1, end: 0 };
    const left = new AbortController(); // a browser has six connections for one broker
    const follows = !isPast && wanted.from === "newest" && !wanted.contains;
    // The live stream shows the log four times a second; a committed record shall be seen sooner.
    async function awaitRecord(): Promise<void> {
      if (awaits) return;
      awaits = true;
      try {
        while (!ended && !document.hidden) {
          const epoch = latest.current?.leader_epoch ?? -1;
          const end = await committedBeyond(path, tail, left.signal);
          if (end <= tail) {
            await new Promise((done) => setTimeout(done, FOLLOW_MS));
            continue;
          }
          committed = { epoch, end };
          wake.current();
          break; // what reads the record waits for the next one
        }
      } catch {
        committed = { epoch: -1, end: 0 }; // the live stream goes on, and a read says what is wrong
      }
      awaits = false;
    }
    async function refresh(now: Partition): Promise<void> {
      let pause = FOLLOW_MS;
      try {
        const window = await (isPast ? readPast : readWindow)(path, wanted, now);
        if (ended) return;
        setRead(window);
        setFailed("");
        tail = window.next;
        if (follows) void awaitRecord();
      } catch (error) {
        if (ended) return;
        setFailed(messageOf(error));
        readFor = "";
        pause = RETRY_MS;
      }
      setTimeout(() => { busy = false; wake.current(); }, pause);
    }
    wake.current = () => {
      if (!latest.current || busy || ended) return;
      const { leader_epoch: epoch, log_end_offset: top, high_watermark: end } = latest.current;
      const known = end === null ? null : Math.max(end, committed.epoch === epoch ? committed.end : 0);
      const now = [epoch, Math.max(top ?? 0, known ?? 0), known].join();
      const wants = readFor === "" || follows || isPast;
      if (!wants || now === readFor) return;
      readFor = now;
      busy = true;
      void refresh({ ...latest.current, high_watermark: known });
    };
    return () => { ended = true; left.abort(); };
  }, [path, wanted.from, wanted.contains, isPast]);
  useEffect(() => wake.current());
  return { read, failed };
}

// ---- showing ----

function sized(text: string | null, coded: string | undefined): string {
  if (coded !== undefined) return `binary, ${Math.floor(coded.replace(/=+$/, "").length * 3 / 4).toLocaleString("en")} bytes`;
  if (text === null) return "null";
  return text.length > CELL ? `${text.slice(0, CELL)}… (${text.length.toLocaleString("en")} characters)` : text;
}

function full(text: string | null, coded: string | undefined): string {
  const whole = coded ?? String(text);
  return whole.length > DETAIL ? `${whole.slice(0, DETAIL)}\n… the first ${DETAIL} of ${whole.length} characters` : whole;
}

const headerText = ([name, value]: Row["headers"][number]): string => `${name}: ${value !== null && typeof value === "object" ? `${value.b64} (base64)` : value}`;

function standing(record: Row, { high_watermark: end, last_stable_offset: stable }: Partition): [kind: string, words: string] {
  if (end === null) return ["chip out", "? unknown"];
  if (record.offset >= end) return ["chip out", "✗ not committed"];
  return stable !== null && stable !== undefined && record.offset >= stable ? ["chip out", "◇ above the LSO"] : ["chip", "✓ committed"];
}

const reach = (record: Row, replicas: Replica[]): string => replicas.map(({ id, own_leo: end }) => `${id} ${end === null ? "?" : end > record.offset ? "✓" : "✗"}`).join(", ");

// Compares the batch on each replica: two logs that reach an offset may differ there.
async function compare(path: string, offset: number, replicas: Replica[]): Promise<string[]> {
  const batches = await Promise.all(replicas.map(async ({ id }): Promise<[id: number | string, kind: string | null, words: string]> => {
    try {
      const log = await request<Log>(`${path}/log?replica=${id}&from=${offset}&to=${offset + 1}&max_batches=1`);
      const [batch] = log.batches;
      if (!batch) return [id, null, `not there, its log ends at ${log.log_end_offset}`];
      return [id, `${batch.base_offset} ${batch.leader_epoch} ${batch.crc}`, `batch ${batch.base_offset} to ${batch.last_offset}, leader epoch ${batch.leader_epoch}, CRC ${batch.is_valid ? "valid" : "WRONG"}`];
    } catch (error) {
      return [id, null, error instanceof Refused && error.status === 416 ? "not there" : messageOf(error)];
    }
  }));
  const kinds = new Set(batches.map(([, kind]) => kind).filter((kind) => kind !== null));
  return [kinds.size > 1 ? "The replicas have DIFFERENT batches at this offset." : "Every replica that has this offset has the same batch.",
    ...batches.map(([id, , words]) => `broker ${id}: ${words}`)];
}

function Details({ record, path, replicas }: { record: Row; path: string; replicas: Replica[] }): JSX.Element {
  const [compared, setCompared] = useState<string[]>([]);
  const pair = (name: string, value: string) => <><dt>{name}</dt><dd><pre tabIndex={value.length > SHORT || value.split("\n").length > SHORT_LINES ? 0 : undefined}>{value}</pre></dd></>;
  return <dl>
    {pair("Key", full(record.key, record.key_b64))}
    {pair(`Value (${record.encoding === "base64" ? "base64" : "text"})`, full(record.value, record.value_b64))}
    {pair("Headers", record.headers.length ? record.headers.map(headerText).join("\n") : "none")}
    {pair("Timestamp, leader epoch", `${moment(record.timestamp)} (${record.timestamp} ms), ${record.leader_epoch}`)}
    <dt>On the brokers' disks</dt>
    <dd>
      <button onClick={() => void compare(path, record.offset, replicas).then(setCompared)}>Compare the replicas{pausedAt.value === null ? "" : " now"}</button>
      <ul>{compared.map((line) => <li>{line}</li>)}</ul>
    </dd>
  </dl>;
}

function rowsOf(rows: Row[], partition: Partition, path: string, open: Set<number>, toggle: (offset: number) => void): JSX.Element[] {
  const replicas = replicasOf(partition);
  const end = partition.high_watermark;
  const shownRows: JSX.Element[] = [];
  let above = false;
  for (const record of [...rows].reverse()) {
    const { offset } = record;
    if (above && end !== null && offset < end) {
      shownRows.push(<tr key="mark" class="mark"><td colSpan={7}>HW {end}: records above this line are not committed, consumers do not get them</td></tr>);
    }
    above = end !== null && offset >= end;
    const [kind, words] = standing(record, partition);
    const cells: ComponentChildren[] = record.detail ? ["", <i>cannot be read</i>, "", ""]
      : [moment(record.timestamp), sized(record.key, record.key_b64), sized(record.value, record.value_b64), record.headers.length];
    shownRows.push(<tr key={offset} data-offset={offset}>
      <td><button aria-expanded={open.has(offset)} onClick={() => toggle(offset)}>{offset}</button></td>
      <td><span class={kind}>{words}</span></td>
      {cells.map((cell, column) => <td class={["wide", "text", "text value", "wide number"][column]}>{cell}</td>)}
      <td class="wide">{reach(record, replicas)}</td>
    </tr>);
    if (open.has(offset)) {
      shownRows.push(<tr key={`details ${offset}`} class="details"><td colSpan={7}>{record.detail ?? <Details record={record} path={path} replicas={replicas} />}</td></tr>);
    }
  }
  return shownRows;
}

function pastCaption({ high_watermark: end, log_end_offset: top }: Partition): string {
  const above = end !== null && top && top > end ? ` Offsets ${end} to ${top - 1} were in the leader's log and not committed; the log may have other records there now, so they are not shown.` : "";
  return `The records that were committed at this time, read from today's log: what was deleted or compacted since is not there.${above} `;
}

function caption(read: Read, { from, contains }: Wanted, partition: Partition): string {
  const end = Math.max(read.next, (read.rows.at(-1)?.offset ?? -1) + 1);
  const range = read.first >= end ? "No committed record is there" : `Offsets ${read.first} to ${end - 1}`;
  const what = contains ? `, searched for “${contains}”: ${read.rows.length}${from === "newest" && read.rows.length === COUNT ? " or more" : ""} found` : `, ${counted(read.rows.length, "record")}`;
  return `${range}${what}. The log begins at ${shown(partition.log_start_offset)}. Read at ${moment(read.at)}${from === "newest" && !contains && pausedAt.value === null ? ", and again with each change" : ""}. Records of aborted transactions are included. `;
}

function address(topic: string, number: number, from: string, contains: string): string {
  return `${link(topic, number, "records")}?${new URLSearchParams({ from, ...contains && { contains } })}`;
}

function Pages({ topic, number, contains, read, partition }: { topic: string; number: number; contains: string; read: Read; partition: Partition }): JSX.Element {
  const step = contains ? SEARCHED : COUNT;
  const start = partition.log_start_offset ?? 0;
  return <p class="tabs">
    {read.next < (partition.high_watermark ?? 0) && <a href={address(topic, number, String(read.next), contains)}>Newer</a>}
    {read.first > start && <a href={address(topic, number, String(Math.max(start, read.first - step)), contains)}>Older</a>}
    <a href={`${at(topic, number)}/records?offset=${read.first}&format=text`}>As JSON</a>
  </p>;
}

function Seek({ topic, number, from, contains }: Wanted & { topic: string; number: number }): JSX.Element {
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    location.hash = address(topic, number, String(data.get("from")).trim() || "newest", String(data.get("contains")));
  };
  // With a key of the address: after a link to another place, the fields name that place.
  return <section key={`${from} ${contains}`}>
    <h2>Records</h2>
    <form onSubmit={submit}>
      <label>From<input name="from" defaultValue={from} autocomplete="off" list="places" aria-describedby="places-help" /></label>
      <label>Contains (key, value or header)<input name="contains" defaultValue={contains} autocomplete="off" /></label>
      <button class="main">Show</button>
      <datalist id="places"><option value="newest" /><option value="oldest" /></datalist>
    </form>
    <p class="soft" id="places-help">From: newest, oldest, an offset, or a time such as 2026-11-23T14:20Z.</p>
  </section>;
}

/** What a consumer has received is committed, also before the live stream shows it. */
function withCommitted(partition: Partition, { next, rows }: Read): Partition {
  const { high_watermark: end, last_stable_offset: stable } = partition;
  if (!rows.length || end === null || next <= end) return partition;
  return { ...partition, high_watermark: next, last_stable_offset: stable === end ? next : stable ?? null };
}

export function Records({ topic, number, query, partition }: { topic: string; number: number; query: URLSearchParams; partition: Partition | null }): JSX.Element {
  const wanted: Wanted = { from: query.get("from") ?? "newest", contains: query.get("contains") ?? "" };
  const path = at(topic, number);
  const isPast = pausedAt.value !== null;
  const { read, failed } = useWindow(path, wanted, partition, isPast);
  const [open, setOpen] = useState<Set<number>>(new Set());
  const toggle = (offset: number) => setOpen((before) => {
    const next = new Set(before);
    if (!next.delete(offset)) next.add(offset);
    return next;
  });
  return <>
    <PartitionHead topic={topic} number={number} present="records" />
    <Seek topic={topic} number={number} {...wanted} />
    <section>
      {failed && <Alert>{failed}</Alert>}
      {read && partition ? <>
        <p class="soft">{isPast && pastCaption(partition)}{caption(read, wanted, partition)}<button onClick={() => explain(COLUMNS)}>What do the columns mean?</button></p>
        <div class="records">
          <Table label="Records" columns={["Offset", "State", "Time (local)", "Key", "Value", "Headers#", "In the log of"]}>{rowsOf(read.rows, withCommitted(partition, read), path, open, toggle)}</Table>
        </div>
        <Pages topic={topic} number={number} contains={wanted.contains} read={read} partition={partition} />
      </> : !failed && <p>Reading.</p>}
    </section>
  </>;
}
