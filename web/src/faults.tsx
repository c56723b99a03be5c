// Faults of links and brokers, with ends by default, at any broker: the broker of the page forwards to the others.
// They exist only with mk.testing.endpoints.enable=true.
import { computed, effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Refused, messageOf, request } from "./api";
import { hello, pausedAt } from "./live";
import { explain } from "./shell";
import { brokersOf, clock, counted } from "./words";

const PERIOD_MS = 1000;
const IDLE_PERIOD_MS = 3000;
const SECONDS = [10, 30, 120, 600];
const FOREVER = "until healed";
const KINDS: [kind: string, words: string][] = [["hold", "hold: waits until the fault ends"], ["cut", "cut: the connection breaks"], ["drop", "drop: lost without a word"],
  ["delay", "delay: arrives 200 ms later"], ["duplicate", "duplicate: sent twice"]];
const APIS = ["Fetch", "Produce", "*"];
const ACTIONS: [act: string, words: string][] = [["pause", "Pause"], ["resume", "Resume"], ["pause_fetching", "Stop fetching"], ["resume_fetching", "Fetch again"], ["stop", "Stop"], ["kill", "Kill"], ["start", "Start"]];
const DEADLY = new Set(["stop", "kill"]);
const DELAY_MS = 200;

interface Fault {
  /** Its number at its broker. */
  id: number;
  broker: number;
  /** Name and version of a program, from its User-Agent. */
  set_by: string;
  kind: string;
  link: string;
  api: string;
  message: string | null;
  count: number | null;
  for_ms: number | null;
  ends_in_ms: number | null;
  hits: number;
  active: boolean;
  held_count: number;
  /** The latest of them. */
  held: Held[];
}

interface Held {
  /** Its number at its fault. */
  id: number;
  link: string;
  api: string;
  message: string;
  held_ms: number;
  /** Of Produce and Fetch: what the message concerns, in the broker's words. */
  partitions: { what: string }[];
  partition_count: number;
}

interface Silent {
  broker: number;
  detail: string;
  outcome: string;
}

export const drawerIsOpen = signal(false);
const faults = signal<Fault[]>([]);
const active = computed(() => faults.value.filter((each) => each.active || each.held_count > 0));
/** Brokers whose faults are not known now. */
const silent = signal<Silent[]>([]);
/** What the last button did, or why it did nothing. */
const said = signal("");
const failed = signal("");
/** Why the faults cannot be read now. */
const unread = signal("");
/** Ids of all brokers. */
export const brokerIds = signal<number[]>([]);

const FAULTS = "/v1/faults";
const EVERYWHERE = `${FAULTS}?broker=all`;

async function read(): Promise<void> {
  try {
    const { faults: found, no_answer } = await request<{ faults: Fault[]; no_answer: Silent[] }>(EVERYWHERE);
    faults.value = found;
    silent.value = no_answer;
    unread.value = "";
  } catch (error) {
    unread.value = messageOf(error);
  }
}

let timer = 0;
effect(() => {
  clearTimeout(timer);
  if (!hello.value.testing) return;
  const again = async () => {
    if (!document.hidden) await read();
    timer = setTimeout(() => void again(), drawerIsOpen.value || faults.value.length ? PERIOD_MS : IDLE_PERIOD_MS);
  };
  timer = setTimeout(() => void again(), 0);
});

/** Without an answer of the page's broker nothing is known either. */
const outcomeOf = (error: unknown): string => `${error instanceof Refused && error.outcome !== "unknown" ? "" : "It is not known whether this was done. "}${messageOf(error)}`;

async function attempt(act: () => Promise<string>): Promise<void> {
  failed.value = said.value = "";
  try {
    said.value = await act();
  } catch (error) {
    failed.value = outcomeOf(error);
  }
  await read();
}

const nameOf = ({ broker, id }: Fault): string => `${broker}:${id}`;

const heal = (fault: Fault) => attempt(async () => {
  await request(`${FAULTS}/${fault.id}?broker=${fault.broker}`, null, "DELETE");
  return `Fault ${nameOf(fault)} is healed.`;
});

const release = (fault: Fault, body: { ids?: number[]; count?: number; latest?: boolean; lose?: boolean }) => attempt(async () => {
  const { released } = await request<{ released: number }>(`${FAULTS}/${fault.id}:release?broker=${fault.broker}`, body);
  return `Fault ${nameOf(fault)}: ${counted(released, "message")} ${body.lose ? "lost" : "delivered"}.`;
});

const healAll = () => attempt(async () => {
  const { healed, no_answer } = await request<{ healed: number; no_answer: Silent[] }>(EVERYWHERE, null, "DELETE");
  return `${counted(healed, "fault")} healed.${no_answer.map(({ broker, outcome }) => ` Broker ${broker} did not answer: ${outcome === "unknown" ? "its faults may be active" : "nothing was done there"}.`).join("")}`;
});

function named({ kind, link, api, message, count, for_ms: ms, ends_in_ms: left, hits, active: is, held_count: held, ...fault }: Fault): string {
  const what = `${kind} ${link}${api === "*" ? "" : ` ${api}`}${message ? ` ${message}s` : ""}`;
  const until = !is ? held ? "" : ", over" : left !== null ? `, ${Math.ceil(left / 1000)} s left` : ms ? "" : ", until healed";
  return `${what}${count ? `, the next ${count}` : ""} at broker ${fault.broker}${until}; struck ${hits}${held ? `, holds ${held}` : ""}`;
}

// ---- faults of an earlier time ----

interface Row {
  t: number;
  n: string;
  k: string;
  f: { fault: number; what: string; link: string; api: string; message?: string };
}

const PAST_DELAY_MS = 200; // while the time is dragged
/** What was active at the time shown; null: the page shows the present. */
const past = signal<string | null>(null);

/** Of brokers whose process has ended since then, nothing is known: they have lost their history. */
async function readPast(at: number): Promise<void> {
  let words: string;
  try {
    const { steps, brokers, next } = await request<{ steps: Row[]; brokers: number[]; next: number | null }>(`/v1/history?scope=cluster&states=false&kind=fault_set,fault_over&limit=5000&from=1&to=${Math.round(at)}`);
    if (next !== null) throw new Error("more than 5,000 were set and ended.");
    const then = new Map<string, string>();
    for (const { t, n, k, f } of steps) {
      if (k === "fault_over") then.delete(`${n}:${f.fault}`);
      else then.set(`${n}:${f.fault}`, `${f.what} ${f.link}${f.api === "*" ? "" : ` ${f.api}`}${f.message ? ` ${f.message}s` : ""} at broker ${n}, set ${clock(t)}`);
    }
    words = then.size ? `${counted(then.size, "fault")} ${then.size === 1 ? "was" : "were"} active at the time shown, by the history of ${brokersOf(brokers)}: ${[...then.values()].slice(0, 4).join("; ")}${then.size > 4 ? "; and more" : ""}.` : "";
  } catch (error) {
    words = `The faults of this time cannot be read: ${messageOf(error)}`;
  }
  if (pausedAt.value === at) past.value = words;
}

let pastTimer = 0;
effect(() => {
  clearTimeout(pastTimer);
  const at = pausedAt.value;
  if (at === null) past.value = null;
  else if (hello.value.testing) pastTimer = setTimeout(() => void readPast(at), PAST_DELAY_MS);
});

/** Browsers call themselves Mozilla. */
const setBy = ({ set_by }: Fault): string => set_by.startsWith("Mozilla") ? ", set by a browser" : set_by && `, set by ${set_by}`;

/** On top of every view while a fault is active. */
export function FaultBar(): JSX.Element | null {
  const shown = active.value;
  if (!hello.value.testing) return null;
  return <>
    {past.value && <p class="bar" role="status">{past.value}</p>}
    {shown.length > 0 && <p class="bar" role="status">
      <b>{shown.length} {shown.length === 1 ? "fault is" : "faults are"} active{pausedAt.value === null ? "" : " at present"}:</b>
      {shown.slice(0, 4).map((each) => <span key={nameOf(each)}>{named(each)} <button aria-label={`Heal fault ${nameOf(each)}`} onClick={() => void heal(each)}>Heal</button></span>)}
      {shown.length > 4 && <span>and {shown.length - 4} more</span>}
      <button onClick={() => void healAll()}>Heal all</button>
    </p>}
  </>;
}

// ---- the drawer ----

const PLACES_MAX = 4; // partitions of a held message that are named

function concerns({ partitions, partition_count: count }: Held): string {
  const named = partitions.slice(0, PLACES_MAX).map((each) => each.what).join("; ");
  return `${named && `: ${named}`}${named && count > PLACES_MAX ? `; and ${count - PLACES_MAX} more` : ""}`;
}

/** What a fault holds, the latest first: senders repeat requests and wait for the latest only. */
function HeldMessages({ fault }: { fault: Fault }): JSX.Element | null {
  if (!fault.held.length) return null;
  const older = fault.held_count - fault.held.length;
  return <>
    <p>
      <button onClick={() => void release(fault, { count: 1, latest: true })}>Deliver latest</button>
      <button onClick={() => void release(fault, {})}>Deliver all</button>
      <button onClick={() => void release(fault, { count: 1, latest: true, lose: true })}>Lose latest</button>
    </p>
    <div class="held">{[...fault.held].reverse().map((each) => <p key={each.id} data-held={each.id}>
      {each.api} {each.message} {each.link}, held for {(each.held_ms / 1000).toFixed(1)} s{concerns(each)}
      <button aria-label={`Deliver message ${each.id} of fault ${nameOf(fault)}`} onClick={() => void release(fault, { ids: [each.id] })}>Deliver</button>
      <button aria-label={`Lose message ${each.id} of fault ${nameOf(fault)}`} onClick={() => void release(fault, { ids: [each.id], lose: true })}>Lose</button>
    </p>)}</div>
    {older > 0 && <p>{counted(older, "older message")} not shown.</p>}
  </>;
}

// ---- what was injected, as a script ----

type Script = "python" | "chaos";
const SCRIPTS: [script: Script, words: string, file: string][] = [["python", "Copy as Python", "test_injected.py"], ["chaos", "Copy as chaos file", "injected.toml"]];

/** Browsers give pages the clipboard only over https and on this machine: elsewhere the text is shown, to be selected. */
async function copied(text: string): Promise<string> {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied.";
  } catch {
    explain(text);
    return "This browser does not let the page copy: select the text.";
  }
}

function Scripts(): JSX.Element {
  const [shown, setShown] = useState<{ file: string; text: string } | null>(null);
  const show = (script: Script, file: string) => attempt(async () => {
    const { no_answer, ...texts } = await request<Record<Script, string> & { no_answer: Silent[] }>(`${FAULTS}:script?broker=all`);
    setShown({ file, text: texts[script] });
    return `${await copied(texts[script])} Save it as ${file}.${no_answer.map(({ broker }) => ` What was injected through broker ${broker} is missing: it does not answer.`).join("")}`;
  });
  return <>
    <p>What was set, healed, stopped, killed and started through any broker so far, with its times.</p>
    <p class="scripts">{SCRIPTS.map(([script, words, file]) => <button key={script} onClick={() => void show(script, file)}>{words}</button>)}</p>
    {shown && <pre tabIndex={0} role="region" aria-label={shown.file}>{shown.text}</pre>}
  </>;
}

interface Chosen {
  from: string;
  to: string;
  kind: string;
  api: string;
  message: string;
  count: string;
  seconds: string;
  /** Id of the broker that shall have the fault; empty: see endOf. */
  broker: string;
}

const isBroker = (end: string): boolean => /^\d+$/.test(end);

/** The brokers at the ends of the link: the broker of the page first, which can be healed without another one. */
function endsOf({ from, to }: Chosen): string[] {
  const own = String(hello.value.node);
  return [from, to].filter(isBroker).sort((a, b) => Number(b === own) - Number(a === own));
}

const endOf = (chosen: Chosen): string => endsOf(chosen).includes(chosen.broker) ? chosen.broker : endsOf(chosen)[0] ?? "";

function bodyOf({ from, to, kind, api, message, count, seconds }: Chosen): Record<string, unknown> {
  return { kind, link: `${from}>${to}`, api, ...message && { message }, ...count && { count: Number(count) }, ...seconds !== FOREVER && { for_ms: Number(seconds) * 1000 }, ...kind === "delay" && { delay_ms: DELAY_MS } };
}

function consequence(chosen: Chosen): string {
  const { from, to, kind, api, message, seconds } = chosen;
  const own = hello.value.node;
  const at = endOf(chosen);
  const what = api === "*" ? "every message" : `each ${api} ${message || "message"}`;
  const verb = { hold: "waits", cut: "breaks its connection", drop: "is lost", delay: `arrives ${DELAY_MS} ms later`, duplicate: "is sent twice" }[kind] ?? kind;
  const follows = api === "Fetch" && kind !== "delay" && kind !== "duplicate" && message !== "answer" ? ` A follower that has not caught up for replica.lag.time.max.ms leaves the ISR.` : "";
  return `From ${from} to ${to}, ${what} ${verb}${seconds === FOREVER ? ", until it is healed" : `, for ${seconds} s`}.${follows} ${Number(at) === own ? `Broker ${at}, which serves this page, has the fault.` : `Broker ${own} forwards this to broker ${at}, which has the fault.`} It ends when broker ${at} stops.`;
}

/** Does a fault strike what travels from one end to another? A broker's faults strike what it sends and what reaches it. */
function strikes({ link, broker }: Fault, from: string, to: string): boolean {
  if (link === `${from}>${to}`) return true;
  const [left = "", right = ""] = link.split(/<?>/);
  const is = (end: string, name: string) => end === "*" || end === name || (end === "broker" ? isBroker(name) : end.startsWith("client:") && name === "client");
  const crosses = is(left, from) && is(right, to) || link.includes("<>") && is(left, to) && is(right, from);
  return crosses && [from, to].includes(String(broker));
}

function Matrix({ chosen, choose }: { chosen: Chosen; choose: (part: Partial<Chosen>) => void }): JSX.Element {
  const ends = [...brokerIds.value.map(String), "client"];
  const struck = (from: string, to: string) => active.value.find((each) => strikes(each, from, to))?.kind;
  return <div class="scroll" tabIndex={0} role="region" aria-label="Links between brokers">
    <table class="links">
      <thead><tr><th scope="col">from, to</th>{ends.map((to) => <th scope="col">{to}</th>)}</tr></thead>
      <tbody>{ends.map((from) => <tr><th scope="row">{from}</th>{ends.map((to) => <td>{from === to ? "·"
        : <button class={struck(from, to) ? "struck" : ""} aria-pressed={chosen.from === from && chosen.to === to} aria-label={`link from ${from} to ${to}: ${struck(from, to) ?? "ok"}`}
          onClick={() => choose({ from, to })}>{struck(from, to) ?? "ok"}</button>}</td>)}</tr>)}</tbody>
    </table>
  </div>;
}

function Select({ label, value, of, set, wide }: { label: string; value: string; of: [string, string][]; set: (value: string) => void; wide?: boolean }): JSX.Element {
  return <label class={wide ? "wide" : undefined}>{label}<select value={value} onChange={(event) => set(event.currentTarget.value)}>{of.map(([each, words]) => <option value={each}>{words}</option>)}</select></label>;
}

const pathOf = (chosen: Chosen): string => `${FAULTS}?broker=${endOf(chosen)}`;

const curlOf = (chosen: Chosen): string => `curl -X POST '${location.origin}${pathOf(chosen)}' -H 'Content-Type: application/json' -d '${JSON.stringify(bodyOf(chosen))}'`;

function SetFault(): JSX.Element {
  const [chosen, setChosen] = useState<Chosen>({ from: "2", to: "1", kind: "hold", api: "Fetch", message: "request", count: "", seconds: "30", broker: "" });
  const [sure, setSure] = useState(false);
  const choose = (part: Partial<Chosen>) => { setChosen((before) => ({ ...before, ...part })); setSure(false); };
  const submit = (event: Event) => {
    event.preventDefault();
    if (chosen.seconds === FOREVER && !sure) return setSure(true);
    setSure(false);
    void attempt(async () => {
      const fault = await request<Fault>(pathOf(chosen), bodyOf(chosen));
      return `Fault ${nameOf(fault)} is set.`;
    });
  };
  return <>
    <Matrix chosen={chosen} choose={choose} />
    <form onSubmit={submit}>
      <Select wide label="Fault" value={chosen.kind} of={KINDS} set={(kind) => choose({ kind })} />
      <Select label="API" value={chosen.api} of={APIS.map((api) => [api, api === "*" ? "all" : api])} set={(api) => choose({ api })} />
      <Select label="Message" value={chosen.message} of={[["request", "request"], ["answer", "answer"], ["", "both"]]} set={(message) => choose({ message })} />
      <label>Only the next<input type="number" min="1" max="1000" value={chosen.count} placeholder="all" onInput={(event) => choose({ count: event.currentTarget.value })} /></label>
      <Select label="At broker" value={endOf(chosen)} of={endsOf(chosen).map((each) => [each, Number(each) === hello.value.node ? `${each}, of this page` : each])} set={(broker) => choose({ broker })} />
      <Select wide label="Ends after" value={chosen.seconds} of={[...SECONDS.map((each) => [String(each), `${each} s`] as [string, string]), [FOREVER, FOREVER]]} set={(seconds) => choose({ seconds })} />
      <p>{consequence(chosen)}</p>
      <button class="main">{sure ? "Yes, until it is healed" : "Set the fault"}</button>
      <button type="button" onClick={() => void attempt(() => copied(curlOf(chosen)))}>Copy as curl</button>
    </form>
  </>;
}

interface Ending {
  effects: string[];
  /** Without a majority or without a copy: the number of the broker must be typed. */
  warnings: string[];
}

function Broker({ id }: { id: number }): JSX.Element {
  const [asked, setAsked] = useState("");
  const [ending, setEnding] = useState<Ending | null>(null);
  const [typed, setTyped] = useState("");
  const forget = () => { setAsked(""); setEnding(null); setTyped(""); };
  const path = `/v1/brokers/${id}/actions`;
  const mustType = ending !== null && ending.warnings.length > 0;
  const isSure = (word: string) => asked === word && ending !== null && (!mustType || typed.trim() === String(id));
  const ask = (word: string) => attempt(async () => {
    forget();
    setEnding(await request<Ending>(path));
    setAsked(word);
    return "";
  });
  const act = (word: string) => {
    if (DEADLY.has(word) && !isSure(word)) {
      if (asked !== word) void ask(word);
      return;
    }
    forget();
    void attempt(async () => {
      const { done } = await request<{ done: boolean }>(path, { do: word });
      return done ? `Broker ${id}: ${word.replace("_", " ")} is done.` : `Broker ${id} has accepted ${word} and ends now; it cannot report its end.`;
    });
  };
  const serves = id === hello.value.node ? " It serves this page." : "";
  return <div class="actions">
    <b>broker {id}</b>
    {ACTIONS.map(([word, words]) => <button key={word} class={asked === word ? "danger" : ""} disabled={asked === word && !isSure(word)} onClick={() => act(word)}>{asked === word ? `${words} broker ${id}: sure?` : words}</button>)}
    {asked && ending && <div class="ending" role="status">
      <p>{ending.effects.join(" ")}</p>
      {ending.warnings.map((each) => <p class="failed" key={each}>{each}</p>)}
      {mustType ? <label>Type {id} to {asked} broker {id}.{serves}<input inputMode="numeric" autocomplete="off" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></label>
        : <p class="failed">Select it again to {asked} broker {id}.{serves}</p>}
      <button onClick={forget}>Cancel</button>
    </div>}
  </div>;
}

export function FaultsDrawer(): JSX.Element | null {
  if (!drawerIsOpen.value) return null;
  return <>
    <h2>Faults <button onClick={() => { drawerIsOpen.value = false; }}>Close</button></h2>
    {hello.value.testing ? <>
      {failed.value && <p class="said failed" role="alert">{failed.value}</p>}
      {said.value && <p class="said" role="status">{said.value}</p>}
      <SetFault />
      <h3>Faults of all brokers</h3>
      {unread.value && <p class="failed" role="alert">They cannot be read: {unread.value}</p>}
      {silent.value.map(({ broker, detail }) => <p key={broker} class="failed" title={detail}>No word from broker {broker}: its faults are not listed.</p>)}
      {faults.value.length ? <ul>{faults.value.map((each) => <li key={nameOf(each)}>{named(each)}{setBy(each)} <button aria-label={`${active.value.includes(each) ? "Heal" : "Remove"} fault ${nameOf(each)}`} onClick={() => void heal(each)}>{active.value.includes(each) ? "Heal" : "Remove"}</button><HeldMessages fault={each} /></li>)}</ul> : <p>No fault is set.</p>}
      <h3>Brokers</h3>
      {brokerIds.value.map((id) => <Broker key={id} id={id} />)}
      <h3>As a script</h3>
      <Scripts />
    </> : <p>Faults need mk.testing.endpoints.enable=true.</p>}
  </>;
}
