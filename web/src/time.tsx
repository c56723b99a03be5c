// Earlier states: the scrubber at the foot of the page. Past states come from the brokers' history, as the live stream showed them.
import { batch, computed, effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { messageOf, request } from "./api";
import { apply, pausedAt, scopeNow, seen, serverNow, type Seen } from "./live";
import { brokersOf, capital, clock, moment } from "./words";
import type { Change } from "./types";

const KEPT_MS = 600_000;
const PAGE_SIZE = 1000; // changes in one response
const TICKS_MAX = 200;

export interface Step {
  t: number;
  n: string;
  k: string;
  w: string;
  p?: string;
  y?: string;
  x?: string;
  count?: number;
}

interface Page {
  start: number;
  exact_from: number;
  next: number | null;
  brokers: number[];
  before: object;
  samples: { t: number; changes: Change[] }[];
  steps: Step[];
}

interface Past {
  scope: string;
  from: number;
  to: number;
  exactFrom: number;
  brokers: number[];
  states: Seen[];
  steps: Step[];
}

const past = signal<Past | null>(null);
const failed = signal("");
const loading = signal(false);

/** The state that the page shows: of now, or of the time at which it is paused. */
export const shownState = computed<object | null>(() => {
  const time = pausedAt.value;
  if (time === null) return seen.value.at(-1)?.state ?? null;
  const known = past.value?.scope === scopeNow.value ? past.value.states : seen.value;
  return (known.findLast((each) => each.at <= time) ?? known[0] ?? seen.value.at(-1))?.state ?? null;
});

let loads = 0;

async function load(scope: string, to: number): Promise<void> {
  const mine = ++loads;
  const isWanted = () => mine === loads && pausedAt.value !== null && scopeNow.value === scope;
  loading.value = true;
  failed.value = "";
  try {
    const found: Past = { scope, from: to - KEPT_MS, to, exactFrom: 0, brokers: [], states: [], steps: [] };
    let from: number | null = found.from;
    // To the end: a history cut short would show an older state as that of the chosen time.
    while (from !== null && from <= to) {
      if (!isWanted()) return;
      const page: Page = await request<Page>(`/v1/history?scope=${encodeURIComponent(scope)}&from=${from}&to=${to}&limit=${PAGE_SIZE}`);
      if (!found.states.length) Object.assign(found, { from: Math.max(found.from, page.start), exactFrom: page.exact_from, brokers: page.brokers });
      let state = page.before; // a change of the very millisecond that a response begins with is only there
      found.states.push({ at: Math.max(from, page.start), state });
      for (const { t, changes } of page.samples) {
        state = apply(state, changes);
        found.states.push({ at: t, state });
      }
      found.steps.push(...page.steps);
      from = page.next;
    }
    if (isWanted()) past.value = found;
  } catch (error) {
    failed.value = `No history: ${messageOf(error)}. What this page has received is shown.`;
    const states = seen.peek();
    if (isWanted()) past.value = { scope, from: states[0]?.at ?? to, to, exactFrom: 0, brokers: [], states, steps: [] };
  }
  if (mine === loads) loading.value = false;
}

// A pause, and a view of another partition while paused, read the history up to then.
let loadedTo = 0;
effect(() => {
  const [time, scope] = [pausedAt.value, scopeNow.value];
  if (time === null) past.value = null;
  else if (past.peek()?.scope !== scope || time > loadedTo) {
    loadedTo = Math.max(time, serverNow());
    void load(scope, loadedTo);
  }
});

export function pause(at = serverNow()): void {
  pausedAt.value = at;
}

export function resume(): void {
  batch(() => {
    pausedAt.value = null;
    past.value = null;
  });
}

function times(): number[] {
  const known = past.value;
  return known ? [...new Set([...known.states.map((each) => each.at), ...known.steps.map((each) => each.t)])].sort((one, other) => one - other) : [];
}

/** Moves to the next time at which something changed, or back. */
export function stepBy(direction: 1 | -1): void {
  const now = pausedAt.value;
  if (now === null) return pause();
  const next = direction > 0 ? times().find((at) => at > now) : times().findLast((at) => at < now);
  if (next !== undefined) pausedAt.value = next;
}

const isFailureStep = ({ x }: Step): boolean => x === "bad" || x === "warn";

/** Moves to the next or previous event; failures only, if asked for. */
export function jump(direction: 1 | -1, failures = false): void {
  const now = pausedAt.value;
  if (now === null) return pause();
  const steps = (past.value?.steps ?? []).filter((each) => !failures || isFailureStep(each)).map((each) => each.t);
  const next = direction > 0 ? steps.find((at) => at > now) : steps.findLast((at) => at < now);
  if (next !== undefined) pausedAt.value = next;
}

// ---- the scrubber ----

const position = (at: number, { from, to }: Past): string => `${Math.min(100, Math.max(0, (at - from) / Math.max(1, to - from) * 100))}%`;

function Ticks({ known }: { known: Past }): JSX.Element {
  return <div class="ticks" aria-hidden="true">
    {known.steps.slice(-TICKS_MAX).map((each) => <i class={isFailureStep(each) ? "bad" : ""} style={{ left: position(each.t, known) }} />)}
  </div>;
}

function sentence(step: Step): string {
  return `${clock(step.t)} broker ${step.n}: ${step.p && !step.count ? `${step.p}: ` : ""}${step.w}${step.y ? `: ${step.y}` : ""}`;
}

function addressOf(at: number): string {
  const [path, search] = location.hash.split("?");
  const query = new URLSearchParams(search);
  query.set("at", String(at));
  return `${path || "#/"}?${query}`;
}

function Paused({ at }: { at: number }): JSX.Element {
  const known = past.value?.scope === scopeNow.value ? past.value : null;
  const step = known?.steps.findLast((each) => each.t <= at);
  const partition = scopeNow.value === "cluster" ? null : scopeNow.value;
  return <>
    <div class="row">
      <button class="main" onClick={resume}>● Live</button>
      <button onClick={() => jump(-1)} title="Previous event (Shift and ←)">◀ event</button>
      <button class="wide" onClick={() => stepBy(-1)} title="Previous change (←)">◀ step</button>
      <button class="wide" onClick={() => stepBy(1)} title="Next change (→)">step ▶</button>
      <button onClick={() => jump(1)} title="Next event (Shift and →)">event ▶</button>
      <output id="shown-time">{moment(at)}</output>
      <a href={addressOf(at)}>Link to this time</a>
      {partition && known && <a href={`/v1/history/replay?partition=${encodeURIComponent(partition)}&from=${known.from}&to=${known.to}`} download
        title="An HTML file of these minutes that needs no broker. It says what it leaves out.">Export replay</a>}
    </div>
    {known && <div class="slide">
      <input type="range" aria-label="Time" aria-valuetext={moment(at)} min={known.from} max={known.to} value={at} step={1} onInput={(event) => pause(Number(event.currentTarget.value))} />
      <Ticks known={known} />
    </div>}
    <p class="soft" role="status">
      {failed.value || (known ? `${step ? capital(sentence(step)) : "No event before this time"}.` : loading.value ? "Reading the history." : "")}
      {known && !failed.value && <span class="wide">{` ${known.steps.length} events and ${known.states.length} states since ${clock(known.from)}, from ${brokersOf(known.brokers)}${known.exactFrom > known.from ? `; complete since ${clock(known.exactFrom)}` : ""}.`}</span>}
    </p>
  </>;
}

export function Scrubber(): JSX.Element {
  const at = pausedAt.value;
  return at === null
    ? <div class="row"><button onClick={() => pause()} title="Pause (space)">❚❚ Pause</button><span class="soft wide">Pause to go back through the last minutes.</span></div>
    : <Paused at={at} />;
}
