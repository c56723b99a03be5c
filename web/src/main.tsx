// The console: which view the address names, and what of the live stream it shows. No ISR and no watermark is derived here.
import { batch, effect, signal } from "@preact/signals";
import { render, type JSX } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { follow, isFailure, pausedAt, present, seen } from "./live";
import { byId, health } from "./shell";
import type { ClusterView, PartitionView } from "./types";
import { Cluster } from "./views/cluster";
import { ClusterEvents, PartitionEvents } from "./views/events";
import { GroupView, Groups } from "./views/groups";
import { PartitionLanes, PartitionState } from "./views/partition";
import { Records } from "./views/records";
import { messageOf } from "./api";

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

/** The state that the page shows: of now, or of the time at which it is paused. */
function shownState(): object | null {
  const time = pausedAt.value;
  const found = time === null ? present.value : seen.value.findLast((each) => each.at <= time) ?? seen.value[0] ?? null;
  return found && !isFailure(found.state) ? found.state : null;
}

function View(): JSX.Element {
  const { kind, name, number, tab, query } = place.value;
  const state = shownState();
  if (kind === "t" && name && number !== null) {
    const partition = state as PartitionView | null;
    if (tab === "records") return <Records topic={name} number={number} query={query} partition={partition?.partition ?? null} />;
    if (tab === "events") return <PartitionEvents topic={name} number={number} />;
    return <PartitionLanes topic={name} number={number} state={partition} />;
  }
  if (kind === "g") return name ? <GroupView name={name} /> : <Groups />;
  if (kind === "e") return <ClusterEvents />;
  return <Cluster state={state as ClusterView | null} />;
}

function App(): JSX.Element {
  const { kind, name, number, tab, query } = place.value;
  const state = shownState() as { summary?: string } | null;
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
  const section = `#/${place.value.kind}`.replace("#/t", "#/");
  for (const each of document.querySelectorAll("header nav a")) each.ariaCurrent = each.getAttribute("href") === section ? "page" : null;
});

addEventListener("hashchange", () => {
  batch(() => {
    place.value = placeNow();
    follow(scopeOf(place.value));
  });
  byId("view").focus();
  scrollTo(0, 0);
});

byId("view").replaceChildren();
render(<App />, byId("view"));
follow(scopeOf(place.value));
