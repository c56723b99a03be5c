// The stream of the view that is shown, and what it has shown: every state of the last ten minutes.
import { effect, signal } from "@preact/signals";
import { messageOf } from "./api";
import { byId, health } from "./shell";
import type { Change, Failure } from "./types";

const RETRY_MS = 1000;
const SILENCE_MS = 8000; // the broker sends at least a heartbeat every 5 s
const KEPT_MS = 600_000;
const KEPT_MAX = 3000;
const VERSION = 2; // of the stream's format

export interface Seen {
  /** Milliseconds since 1970, by the broker's clock. */
  at: number;
  state: object;
}

/** States of the present scope, oldest first. They share what did not change. */
export const seen = signal<Seen[]>([]);
/** The time that the page shows, in milliseconds of the broker's clock, or null: now. */
export const pausedAt = signal<number | null>(null);
/** `cluster`, or a partition. */
export const scopeNow = signal("");
/** What the broker says of itself when a stream opens. */
export const hello = signal<Hello>({ node: 0, testing: false });

export interface Hello {
  v?: number;
  node: number;
  testing: boolean;
  now_ms?: number;
}

let ahead = 0; // the broker's clock, compared with this browser's

/** Now, by the broker's clock. */
export const serverNow = (): number => Date.now() + ahead;

/** Applies changes to a copy: earlier states stay as they were. Members are defined, not assigned: a topic may be named __proto__. */
export function apply<T extends object>(state: T, changes: Change[]): T {
  const root: object = { ...state };
  const copied = new Set<object>([root]);
  for (const change of changes) {
    const path = change[0];
    let place = root as Record<string, unknown>;
    for (const name of change.length === 3 ? path : path.slice(0, -1)) {
      let inner = place[name] as Record<string, unknown>;
      if (!copied.has(inner)) {
        inner = { ...inner };
        copied.add(inner);
        define(place, name, inner);
      }
      place = inner;
    }
    const name = path.at(-1) ?? "";
    if (change.length === 3) change[1].forEach((each, at) => define(place, each, change[2][at]));
    else if (change.length === 2) define(place, name, change[1]);
    else delete place[name];
  }
  return root as T;
}

function define(place: object, name: string, value: unknown): void {
  Object.defineProperty(place, name, { value, writable: true, enumerable: true, configurable: true });
}

export const isFailure = (state: object): state is Failure => "problem" in state;

let source: EventSource | null = null;
let heard: Date | null = null;
let watchdog = 0;
const lost = signal("");
/** The broker answers, but no longer with states: the topic was deleted, say. */
export const failed = signal("");
/** Why there is no stream, in the broker's words: the partition does not exist, say. */
export const refused = signal("");

effect(() => {
  const live = byId("live");
  const none = lost.value || failed.value;
  live.className = none || pausedAt.value !== null ? "stale" : "";
  live.textContent = pausedAt.value !== null ? "❚❚ PAUSED" : none || (seen.value.length ? "● LIVE" : "loading");
});

/** Since when nothing has come, by this browser's clock; null: the stream is well. */
export const lostSince = signal<number | null>(null);

const noneSince = (time: Date | null): string => time ? `no data since ${time.toLocaleTimeString("sv")}` : "no data yet";

function lose(): void {
  lostSince.value ??= Date.now();
  lost.value = noneSince(heard);
}

function hear(): void {
  heard = new Date();
  lost.value = "";
  refused.value = "";
  lostSince.value = null;
  clearTimeout(watchdog);
  watchdog = setTimeout(lose, SILENCE_MS);
}

function keep(state: object, now: number): void {
  const kept = seen.value.slice(-KEPT_MAX + 1).filter((each) => each.at >= now - KEPT_MS);
  seen.value = [...kept, { at: now, state }];
}

// Why a stream is refused: an EventSource has no response.
async function explainRefusal(scope: string): Promise<void> {
  try {
    const headers = { Accept: "text/event-stream, application/json" };
    const response = await fetch(`/v1/live?scope=${encodeURIComponent(scope)}`, { headers, signal: AbortSignal.timeout(RETRY_MS) });
    if (response.ok) await response.body?.cancel();
    else if (scope === scopeNow.value) health.value = refused.value = (await response.json()).detail;
  } catch (error) {
    refused.value = "";
    health.value = `The broker does not answer: ${messageOf(error)}`;
  }
}

// No state is better than one that is folded by other rules.
function outdate(): void {
  source?.close();
  source = null;
  clearTimeout(watchdog);
  lost.value = "not live";
  health.value = "This broker has another version of the console. Reload the page.";
}

function watch(scope: string): void {
  let state: object | null = null;
  const opened = new EventSource(`/v1/live?scope=${encodeURIComponent(scope)}`);
  const on = (kind: string, act: (data: never) => void) => opened.addEventListener(kind, (event: MessageEvent<string>) => {
    if (opened !== source) return;
    hear();
    act(JSON.parse(event.data) as never);
  });
  const show = (next: object, now = serverNow()) => {
    state = next;
    if (isFailure(next)) {
      health.value = next.problem.detail;
      failed.value ||= noneSince(seen.peek().length ? new Date() : null);
    } else {
      failed.value = "";
      keep(next, now);
    }
  };
  on("hello", (said: Hello) => {
    // A broker of another version has been started in the place of the one that served this page.
    if (said.v !== VERSION) return outdate();
    if (said.now_ms) ahead = said.now_ms - Date.now();
    hello.value = said;
  });
  on("heartbeat", () => {});
  on("snapshot", (next: object) => show(next));
  on("frame", ({ at_ms, changes }: { at_ms?: number; changes: Change[] }) => {
    // The hello may have come late: a pause must not be earlier than what is shown.
    if (at_ms) ahead = Math.max(ahead, at_ms - Date.now());
    if (state) show(apply(state, changes), at_ms);
  });
  opened.onerror = () => {
    if (opened !== source) return;
    lose();
    if (opened.readyState !== EventSource.CLOSED) return; // the browser reconnects by itself
    void explainRefusal(scope);
    setTimeout(() => { if (opened === source) watch(scope); }, RETRY_MS);
  };
  source = opened;
}

/** Opens the stream of a scope in place of the one before. A hidden page holds none: a browser has six connections for one broker. */
export function follow(scope: string): void {
  if (scope !== scopeNow.value) {
    scopeNow.value = scope;
    seen.value = [];
    heard = null;
    failed.value = "";
    refused.value = "";
  }
  source?.close();
  source = null;
  clearTimeout(watchdog);
  if (!document.hidden) watch(scope);
}

addEventListener("visibilitychange", () => follow(scopeNow.value));
