// What happened: one track per broker, and a list, newest first. The sentences of a partition's events come from the brokers.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Refused, at, request } from "../api";
import { hello, pausedAt, serverNow } from "../live";
import type { Step } from "../time";
import { Alert, PartitionHead, Table, sentenceOf, usePolled, useSettled } from "../parts";
import { explain } from "../shell";
import { brokersOf, capital, clock, counted, moment, plain } from "../words";

const PERIOD_MS = 1000;
const HISTORY_PERIOD_MS = 3000;
const NEVER_MS = 2 ** 31 - 1;
const SETTLE_MS = 200; // while the time is dragged
const MARKS_MAX = 60;
const CAUSES_MAX = 3; // sentences of one line
const LINES_MAX = 200;
const PAGE_SIZE = 5000; // events in one response of the history: what happened to many partitions at once is one line of one response
const PAGES_MAX = 4;
const ALIKE_MS = 10_000;
const UNCAUSED_MS = 1000; // what brokers learn of the metadata has no cause of its own
const MARKS: Record<string, string> = { leader_elected: "▲", became_leader: "♛", leader_lost: "╳", isr_shrunk: "▼", isr_expanded: "△", tail_truncated: "✂", fetch_diverged: "≠",
  produce_refused: "!", broker_fenced: "⌧", broker_unfenced: "●", replica_failed: "╳", broker_started: "●", controller_activated: "♛" };
interface Happened {
  event: string;
  broker: number;
  cause: string;
  ms: number;
  words: string;
  key: string;
}

interface Line extends Happened {
  all: Happened[];
}

// Events with one name, broker and cause within a while are one line: the end of a broker moves the leaders of many partitions.
// So is the same event that is repeated again and again: a producer retries until its time is over.
function grouped(events: Happened[]): Line[] {
  const lines: Line[] = [];
  const latest = new Map<string, Line>();
  for (const each of events) {
    const key = `${each.event} ${each.broker} ${each.cause}`;
    const line = latest.get(key);
    const last = line?.all.at(-1);
    const isRepeated = last?.words === each.words && each.ms - last.ms <= ALIKE_MS;
    if (line && (isRepeated || each.ms - line.ms <= (each.cause ? ALIKE_MS : UNCAUSED_MS))) {
      line.all.push(each);
      continue;
    }
    const begun = { ...each, all: [each] };
    lines.push(begun);
    latest.set(key, begun);
  }
  return lines;
}

// The n-th column is the n-th event: distances between marks are not times.
function Tracks({ lines }: { lines: Line[] }): JSX.Element {
  const latest = lines.slice(-MARKS_MAX);
  const brokers = [...new Set(latest.map((each) => each.broker))].sort((one, other) => one - other);
  const place = useRef<HTMLDivElement>(null);
  const newest = latest.at(-1)?.key;
  useEffect(() => { if (place.current) place.current.scrollLeft = place.current.scrollWidth; }, [newest]);
  return <div class="scroll" ref={place} tabIndex={0} role="region" aria-label="Events by broker, oldest first">
    {brokers.map((broker) => <div class="track" key={broker}>
      <b>broker {broker}</b>
      <div class="marks">
        {latest.map((each) => each.broker !== broker ? <span key={each.key} />
          : <button key={each.key} title={plain(each.event)} aria-label={`${plain(each.event)} on broker ${broker}, ${moment(each.ms)}`}
            onClick={() => explain(`${moment(each.ms)}, broker ${broker}: ${each.words}.`)}>{MARKS[each.event] ?? "·"}</button>)}
      </div>
    </div>)}
  </div>;
}

function wordsOf({ all, words, ms }: Line): string {
  if (all.length === 1) return words;
  const different = [...new Set(all.map((each) => each.words))];
  const last = all.at(-1)?.ms ?? ms;
  return `${all.length} times${last - ms > UNCAUSED_MS ? ` until ${clock(last)}` : ""}: ${different.slice(0, CAUSES_MAX).join("; ")}${different.length > CAUSES_MAX ? "; …" : ""}`;
}

function Events({ events, note }: { events: Happened[]; note: string }): JSX.Element {
  const found = grouped(events);
  const lines = found.slice(-LINES_MAX);
  return <>
    {lines.length ? <>
      <Tracks lines={lines} />
      <div class="records"><Table label="Events, newest first" columns={["Time (local)", "Broker", "Event", "What happened"]}>
        {[...lines].reverse().map((each) => <tr key={each.key} data-event={each.event}><td>{moment(each.ms)}</td><td class="broker">{each.broker}</td><td class="kind">{plain(each.event)}</td><td class="text value">{wordsOf(each)}</td></tr>)}
      </Table></div>
      {found.length > lines.length && <p class="soft">{counted(found.length - lines.length, "older line")} not shown.</p>}
    </> : <p>No events yet.</p>}
    <p class="soft">{note}</p>
  </>;
}

interface Explained {
  story: { at: string; broker: number; event: string; cause: string; sentence: string }[];
  told_by: number[];
}

export function PartitionEvents({ topic, number }: { topic: string; number: number }): JSX.Element {
  return <>
    <PartitionHead topic={topic} number={number} present="events" />
    <section>{pausedAt.value === null ? <RememberedEvents topic={topic} number={number} /> : <HistoryEvents scope={`${topic}-${number}`} />}</section>
  </>;
}

function RememberedEvents({ topic, number }: { topic: string; number: number }): JSX.Element {
  const { value, failed } = usePolled(PERIOD_MS, () => request<Explained>(`${at(topic, number)}/explain`), [topic, number]);
  const events = value?.story.map((each) => ({ ...each, ms: Date.parse(each.at), words: capital(each.sentence), key: `${each.broker} ${each.event} ${each.at}` }));
  return <>
    {failed !== null && <Alert>{sentenceOf(failed)}</Alert>}
    {events && <Events events={events} note={`From the memory of ${brokersOf(value?.told_by ?? [])}: the last events of this partition, since each broker's start.`} />}
  </>;
}

const HISTORY_MS = 600_000;

interface History {
  steps: Step[];
  brokers: number[];
  next: number | null;
}

// The oldest events come first, and the newest are those that are looked for.
async function historyOf(scope: string, from: number, until: string): Promise<History> {
  let steps: Step[] = [];
  for (let count = 1; ; count++) {
    const page = await request<History>(`/v1/history?scope=${encodeURIComponent(scope)}&states=false&from=${from}${until}&limit=${PAGE_SIZE}`);
    steps = [...steps, ...page.steps];
    if (page.next === null || count === PAGES_MAX) return { ...page, steps };
    from = page.next;
  }
}

// A step has no number of its own, and older ones are forgotten while the page is open.
function happened(steps: Step[]): Happened[] {
  const alike = new Map<string, number>();
  return steps.map((each) => {
    const name = `${each.t} ${each.n} ${each.k} ${each.p ?? ""}`;
    const count = alike.get(name) ?? 0;
    alike.set(name, count + 1);
    return { event: each.k, broker: Number(each.n), cause: "", ms: each.t, key: `${name} ${count}`,
      words: `${each.p && !each.count ? `${each.p}: ` : ""}${capital(each.w)}${each.y ? `: ${each.y}` : ""}` };
  });
}

// What every broker keeps, also without test hooks: of the last minutes, or of those before the time that the page shows.
function HistoryEvents({ scope }: { scope: string }): JSX.Element {
  const at = useSettled(pausedAt.value, SETTLE_MS);
  const { value, failed } = usePolled(at === null ? HISTORY_PERIOD_MS : NEVER_MS, () => {
    const until = at === null ? "" : `&to=${Math.round(at)}`;
    return historyOf(scope, Math.round(at ?? serverNow()) - HISTORY_MS, until);
  }, [scope, at]);
  const events = value && happened(value.steps);
  return <>
    {failed instanceof Refused && [404, 503].includes(failed.status)
      ? <p>Events of the whole cluster need the brokers' history (mk.history.minutes). Those of one partition are always kept: open the partition, then Events.</p>
      : failed !== null && <Alert>{sentenceOf(failed)}</Alert>}
    {events && <Events events={events} note={`From the history of ${brokersOf(value?.brokers ?? [])}: the ten minutes before ${at === null ? "now" : moment(at)}.`} />}
  </>;
}

export function ClusterEvents(): JSX.Element {
  return <>
    <h1>Events</h1>
    <section>{hello.value.node ? <HistoryEvents scope="cluster" /> : null}</section>
  </>;
}
