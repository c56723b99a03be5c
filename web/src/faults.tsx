// Faults of links and brokers, with ends by default. They exist only with mk.testing.endpoints.enable=true.
import { effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { messageOf, request } from "./api";
import { hello } from "./live";

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
  id: number;
  kind: string;
  link: string;
  api: string;
  message: string | null;
  count: number | null;
  for_ms: number | null;
  hits: number;
  active: boolean;
}

export const drawerIsOpen = signal(false);
const faults = signal<Fault[]>([]);
const failed = signal("");
/** Ids of all brokers. */
export const brokerIds = signal<number[]>([]);

async function read(): Promise<void> {
  try {
    faults.value = (await request<{ faults: Fault[] }>(FAULTS)).faults;
  } catch (error) {
    failed.value = messageOf(error);
  }
}

const FAULTS = "/v1/faults";

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

async function attempt(act: () => Promise<unknown>): Promise<void> {
  failed.value = "";
  try {
    await act();
  } catch (error) {
    failed.value = messageOf(error);
  }
  await read();
}

const heal = (fault: Fault) => attempt(() => request(`/v1/faults/${fault.id}`, null, "DELETE"));
const healAll = () => attempt(() => request(FAULTS, null, "DELETE"));

function named({ kind, link, api, message, count, for_ms: ms, hits }: Fault): string {
  const what = `${kind} ${link}${api === "*" ? "" : ` ${api}`}${message ? ` ${message}s` : ""}`;
  return `${what}${count ? `, the next ${count}` : ""}${ms ? `, for ${ms / 1000} s` : ""}: struck ${hits}`;
}

/** On top of every view while a fault is active. */
export function FaultBar(): JSX.Element | null {
  const active = faults.value;
  if (!hello.value.testing || !active.length) return null;
  return <p class="bar" role="status">
    <b>{active.length} {active.length === 1 ? "fault is" : "faults are"} active:</b>
    {active.slice(0, 4).map((each) => <span key={each.id}>{named(each)} <button onClick={() => void heal(each)}>Heal</button></span>)}
    {active.length > 4 && <span>and {active.length - 4} more</span>}
    <button onClick={() => void healAll()}>Heal all</button>
  </p>;
}

// ---- the drawer ----

interface Chosen {
  from: string;
  to: string;
  kind: string;
  api: string;
  message: string;
  count: string;
  seconds: string;
}

function bodyOf({ from, to, kind, api, message, count, seconds }: Chosen): Record<string, unknown> {
  return { kind, link: `${from}>${to}`, api, ...message && { message }, ...count && { count: Number(count) }, ...seconds !== FOREVER && { for_ms: Number(seconds) * 1000 }, ...kind === "delay" && { delay_ms: DELAY_MS } };
}

function consequence({ from, to, kind, api, message, seconds }: Chosen): string {
  const what = api === "*" ? "every message" : `each ${api} ${message || "message"}`;
  const verb = { hold: "waits", cut: "breaks its connection", drop: "is lost", delay: `arrives ${DELAY_MS} ms later`, duplicate: "is sent twice" }[kind] ?? kind;
  const follows = api === "Fetch" && kind !== "delay" && kind !== "duplicate" && message !== "answer" ? ` A follower that has not caught up for replica.lag.time.max.ms leaves the ISR.` : "";
  return `From ${from} to ${to}, ${what} ${verb}${seconds === FOREVER ? ", until it is healed" : `, for ${seconds} s`}.${follows}`;
}

function Matrix({ chosen, choose }: { chosen: Chosen; choose: (part: Partial<Chosen>) => void }): JSX.Element {
  const ends = [...brokerIds.value.map(String), "client"];
  const struck = (from: string, to: string) => faults.value.find(({ link }) => link === `${from}>${to}`)?.kind;
  return <div class="scroll" tabIndex={0} role="region" aria-label="Links between brokers">
    <table class="links">
      <thead><tr><th scope="col">from, to</th>{ends.map((to) => <th scope="col">{to}</th>)}</tr></thead>
      <tbody>{ends.map((from) => <tr><th scope="row">{from}</th>{ends.map((to) => <td>{from === to ? "·"
        : <button class={struck(from, to) ? "struck" : ""} aria-pressed={chosen.from === from && chosen.to === to} aria-label={`link from ${from} to ${to}: ${struck(from, to) ?? "ok"}`}
          onClick={() => choose({ from, to })}>{struck(from, to) ?? "ok"}</button>}</td>)}</tr>)}</tbody>
    </table>
  </div>;
}

function Select({ label, value, of, set }: { label: string; value: string; of: [string, string][]; set: (value: string) => void }): JSX.Element {
  return <label>{label}<select value={value} onChange={(event) => set(event.currentTarget.value)}>{of.map(([each, words]) => <option value={each}>{words}</option>)}</select></label>;
}

function SetFault(): JSX.Element {
  const [chosen, setChosen] = useState<Chosen>({ from: "2", to: "1", kind: "hold", api: "Fetch", message: "request", count: "", seconds: "30" });
  const [sure, setSure] = useState(false);
  const choose = (part: Partial<Chosen>) => { setChosen((before) => ({ ...before, ...part })); setSure(false); };
  const submit = (event: Event) => {
    event.preventDefault();
    if (chosen.seconds === FOREVER && !sure) return setSure(true);
    setSure(false);
    void attempt(() => request(FAULTS, bodyOf(chosen)));
  };
  return <>
    <Matrix chosen={chosen} choose={choose} />
    <form onSubmit={submit}>
      <Select label="Fault" value={chosen.kind} of={KINDS} set={(kind) => choose({ kind })} />
      <Select label="API" value={chosen.api} of={APIS.map((api) => [api, api === "*" ? "all" : api])} set={(api) => choose({ api })} />
      <Select label="Message" value={chosen.message} of={[["request", "request"], ["answer", "answer"], ["", "both"]]} set={(message) => choose({ message })} />
      <label>Only the next<input type="number" min="1" max="1000" value={chosen.count} placeholder="all" onInput={(event) => choose({ count: event.currentTarget.value })} /></label>
      <Select label="Ends after" value={chosen.seconds} of={[...SECONDS.map((each) => [String(each), `${each} s`] as [string, string]), [FOREVER, FOREVER]]} set={(seconds) => choose({ seconds })} />
      <p>{consequence(chosen)}</p>
      <button class="main">{sure ? "Yes, until it is healed" : "Set the fault"}</button>
      <button type="button" onClick={() => void navigator.clipboard.writeText(`curl -X POST ${location.origin}/v1/faults -H 'Content-Type: application/json' -d '${JSON.stringify(bodyOf(chosen))}'`)}>Copy as curl</button>
    </form>
  </>;
}

function Broker({ id }: { id: number }): JSX.Element {
  const [asked, setAsked] = useState("");
  const act = (word: string) => {
    if (DEADLY.has(word) && asked !== word) return setAsked(word);
    setAsked("");
    void attempt(() => request(`/v1/brokers/${id}/actions`, { do: word }));
  };
  const serves = id === hello.value.node ? " It serves this page." : "";
  return <div class="actions">
    <b>broker {id}</b>
    {ACTIONS.map(([word, words]) => <button key={word} class={asked === word ? "danger" : ""} onClick={() => act(word)}>{asked === word ? `${words} broker ${id}: sure?` : words}</button>)}
    {asked && <p class="failed" role="status">Select it again to {asked} broker {id}.{serves}</p>}
  </div>;
}

export function FaultsDrawer(): JSX.Element | null {
  if (!drawerIsOpen.value) return null;
  return <>
    <h2>Faults <button onClick={() => { drawerIsOpen.value = false; }}>Close</button></h2>
    {hello.value.testing ? <>
      {failed.value && <p class="failed" role="alert">{failed.value}</p>}
      <SetFault />
      <h3>Active</h3>
      {faults.value.length ? <ul>{faults.value.map((each) => <li key={each.id}>{named(each)} <button onClick={() => void heal(each)}>Heal</button></li>)}</ul> : <p>No fault is active.</p>}
      <h3>Brokers</h3>
      {brokerIds.value.map((id) => <Broker key={id} id={id} />)}
    </> : <p>Faults need mk.testing.endpoints.enable=true.</p>}
  </>;
}
