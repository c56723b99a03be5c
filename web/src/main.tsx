// The console: which view the address names, and what of the live stream it shows. No ISR and no watermark is derived here.
import { batch, effect, signal } from "@preact/signals";
import { render, type JSX } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { FaultBar, FaultsDrawer, brokerIds, drawerIsOpen } from "./faults";
import "./keys";
import { follow, hello, isFailure, pausedAt, refused } from "./live";
import { leavingFor, peers, stay } from "./peers";
import { byId, health } from "./shell";
import { Scrubber, shownState } from "./time";
import type { ClusterView, PartitionView } from "./types";
import { Cluster } from "./views/cluster";
import { ClusterEvents, PartitionEvents } from "./views/events";
import { GroupView, Groups } from "./views/groups";
import { Stories, StoryView } from "./views/lab";
import { PartitionLanes, PartitionState } from "./views/partition";
import { Records } from "./views/records";
import { TopicView, Topics } from "./views/topics";
import { messageOf, request } from "./api";

export { apply } from "./live";

interface Place {
  kind: string;
  name: string;
  /** Of a partition; null: the address names none. */
  number: number | null;
  tab: string;
  query: URLSearchParams;
}

function placeNow(): Place {
  const [path = "", search = ""] = location.hash.slice(1).split("?");
  let names: string[] = [];
  try {
    names = path.split("/").slice(1).map(decodeURIComponent);
  } catch (error) {
    health.value = `This address cannot be read: ${messageOf(error)}`;
  }
  const [kind = "", name = "", number = "", tab = ""] = names;
  return { kind, name, number: /^\d{1,9}$/.test(number) ? Number(number) : null, tab, query: new URLSearchParams(search) };
}

const place = signal(placeNow());

const scopeOf = ({ kind, name, number }: Place): string => kind === "t" && name && number !== null ? `${name}-${number}` : "cluster";

function stateNow(): object | null {
  const state = shownState.value;
  return state && !isFailure(state) ? state : null;
}

function problemNow(): string {
  const state = shownState.value;
  if (!state) return refused.value;
  return isFailure(state) ? state.problem.detail : "";
}

function View(): JSX.Element {
  const { kind, name, number, tab, query } = place.value;
  const state = stateNow();
  if (kind === "t" && name && number !== null) {
    const partition = state as PartitionView | null;
    if (tab === "records") return <Records topic={name} number={number} query={query} partition={partition?.partition ?? null} />;
    if (tab === "events") return <PartitionEvents topic={name} number={number} />;
    return <PartitionLanes topic={name} number={number} state={partition} problem={problemNow()} />;
  }
  if (kind === "t") return name ? <TopicView name={name} state={state as ClusterView | null} /> : <Topics />;
  if (kind === "g") return name ? <GroupView name={name} /> : <Groups />;
  if (kind === "lab") return name ? <StoryView name={name} query={query} /> : <Stories />;
  if (kind === "e") return <ClusterEvents />;
  return <Cluster state={state as ClusterView | null} />;
}

function App(): JSX.Element {
  const { kind, name, number, tab, query } = place.value;
  const state = stateNow() as { summary?: string } | null;
  useLayoutEffect(() => { if (state?.summary) health.value = state.summary; }, [state?.summary]);
  useLayoutEffect(() => { document.title = `${byId("view").querySelector("h1")?.textContent ?? "console"} · minikafka`; });
  // With a key: a view of another place keeps nothing of the view before.
  return <View key={[kind, name, number, tab, query].join("/")} />;
}

/** Draws a state of a partition into an element at once. Tests compare what is drawn with the replicas. */
export function drawPartition(element: Element, state: PartitionView): void {
  render(<PartitionState state={state} />, element);
}

effect(() => {
  const section = `#/${place.value.kind}`;
  for (const each of document.querySelectorAll("header nav a")) each.ariaCurrent = each.getAttribute("href") === section ? "page" : null;
});

addEventListener("hashchange", () => {
  batch(() => {
    place.value = placeNow();
    follow(scopeOf(place.value));
    pausedAt.value = atOf(place.value) ?? pausedAt.value;
  });
  byId("view").focus();
  scrollTo(0, 0);
});

// ---- what stays on top and at the foot ----

function Leaving(): JSX.Element | null {
  const url = leavingFor.value;
  return url === null ? null : <p class="bar" role="alert">The broker of this page does not answer. The view opens at {url} in two seconds. <button onClick={stay}>Stay here</button></p>;
}

effect(() => {
  byId("faults").hidden = !drawerIsOpen.value;
  document.body.classList.toggle("drawer", drawerIsOpen.value);
});
// A story has steps of its own.
effect(() => { byId("time").hidden = place.value.kind === "lab"; });
effect(() => { byId("open-faults").hidden = !hello.value.testing; });
byId("open-faults").addEventListener("click", () => { drawerIsOpen.value = !drawerIsOpen.value; });

function atOf({ query }: Place): number | null {
  const given = query.get("at") ?? "";
  return /^\d{1,15}$/.test(given) ? Number(given) : null;
}

byId("view").replaceChildren();
render(<App />, byId("view"));
render(<><Leaving /><FaultBar /></>, byId("bar"));
render(<FaultsDrawer />, byId("faults"));
render(<Scrubber />, byId("time"));
follow(scopeOf(place.value));
pausedAt.value = atOf(place.value);
// Which other brokers there are: for the faults, and to go on there when this one stops.
void request<{ brokers: { id: number; url: string }[] }>("/v1/brokers").then(({ brokers }) => {
  peers.value = brokers.map((each) => each.url);
  brokerIds.value = brokers.map((each) => each.id);
}, (error: unknown) => { health.value = messageOf(error); });
