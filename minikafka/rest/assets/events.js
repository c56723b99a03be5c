// What happened: one track per broker, and a list, newest first. The sentences of a partition's events come from the brokers.
import { at, explain, health, make, moment, partitionHead, put, repeat, request, table } from "./parts.js";

const PERIOD_MS = 1000;
const MARKS_MAX = 60;
const CLUSTER_MAX = 1000; // events of the cluster that the page keeps
const MARKS = { leader_elected: "▲", became_leader: "♛", leader_lost: "╳", isr_shrunk: "▼", isr_expanded: "△", tail_truncated: "✂", fetch_diverged: "≠",
  produce_refused: "!", broker_fenced: "⌧", broker_unfenced: "●", replica_failed: "╳", broker_started: "●", controller_activated: "♛" };
const KINDS = ["broker_started", "broker_stopped", "broker_failed", "broker_registered", "broker_fenced", "broker_unfenced", "controller_activated", "controller_resigned", "topic_created",
  "topic_deleted", "leader_elected", "leader_lost", "isr_shrunk", "isr_expanded", "tail_truncated", "replica_failed", "produce_refused", "group_state_changed", "settings_changed"];
const plain = (kind) => kind.replaceAll("_", " ").replace("isr", "ISR");

// Events with one name, broker and cause that follow each other are one line: an election moves many partitions.
function grouped(events) {
  const lines = [];
  for (const each of events) {
    const line = lines.at(-1);
    if (line && each.cause && line.event === each.event && line.broker === each.broker && line.cause === each.cause) line.all.push(each);
    else lines.push({ ...each, all: [each] });
  }
  return lines;
}

// The n-th column is the n-th event: distances between marks are not times.
function tracks(lines) {
  const latest = lines.slice(-MARKS_MAX);
  return [...new Set(latest.map((each) => each.broker))].sort().map((broker) => make("div", { class: "track" }, make("b", {}, `broker ${broker}`),
    make("div", { class: "marks" }, ...latest.map((each) => each.broker !== broker ? make("span", {})
      : make("button", { title: plain(each.event), "aria-label": `${plain(each.event)} on broker ${broker}, ${moment(each.ms)}`, "data-key": `mark ${each.key}`, onclick: () => explain(`${moment(each.ms)}, broker ${broker}: ${each.words}.`) }, MARKS[each.event] ?? "·")))));
}

function listed(lines) {
  const words = (line) => line.all.length === 1 ? line.words : `${line.all.length} times: ${line.all.slice(0, 10).map((each) => each.words).join("; ")}${line.all.length > 10 ? "; …" : ""}`;
  return table("Events, newest first", ["Time (local)", "Broker", "Event", "What happened"], [...lines].reverse().map((each) => make("tr", { "data-event": each.event },
    ...[moment(each.ms), each.broker, plain(each.event), words(each)].map((cell, column) => make("td", { class: column === 3 ? "text" : null }, cell)))));
}

function draw(place, events, note) {
  const lines = grouped(events);
  put(place, ...lines.length ? [make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Events by broker, oldest first" }, ...tracks(lines)), listed(lines)] : [make("p", {}, "No events yet.")], make("p", { class: "soft" }, note));
}

const capital = (sentence) => sentence.charAt(0).toUpperCase() + sentence.slice(1);

export function partitionEventsView(topic, number) {
  const place = make("section");
  const close = repeat(PERIOD_MS, async () => {
    try {
      const { story, told_by: sources } = await request(`${at(topic, number)}/explain`);
      const events = story.map((each) => ({ ...each, ms: Date.parse(each.at), words: capital(each.sentence), key: `${each.broker} ${each.event} ${each.at}` }));
      draw(place, events, `From the memory of brokers ${sources.join(", ")}: the last events of this partition, since each broker's start.`);
    } catch (error) {
      put(place, make("p", { class: "failed", role: "alert" }, error.message));
    }
  });
  return { parts: [...partitionHead(topic, number, "events"), place], scope: `${topic}-${number}`, show: (state) => health(state.summary), close };
}

function clusterEvent({ seq, ts_ms: ms, level, node, event, cause = "", ...facts }) {
  const words = Object.entries(facts).map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
  return { event, broker: node, ms, cause, words: words || plain(event), key: seq };
}

export function clusterEventsView() {
  const place = make("section");
  let [next, events] = [0, []];
  const close = repeat(PERIOD_MS, async () => {
    try {
      const answer = await request(`/v1/events?kind=${KINDS.join(",")}&limit=10000&from=${next}`);
      if (answer.start > next && next) events = [];
      next = answer.next;
      events = [...events, ...answer.events.map(clusterEvent)].slice(-CLUSTER_MAX);
      draw(place, events, "From the memory of this broker's process: elections, ISRs, brokers, topics, refusals. Traffic is left out.");
    } catch (error) {
      put(place, error.status === 404 ? make("p", {}, "Events of the whole cluster need mk.testing.endpoints.enable=true. The events of one partition are always kept: open the partition, then Events.")
        : make("p", { class: "failed", role: "alert" }, error.message));
    }
  });
  return { parts: [make("h1", {}, "Events"), place], scope: "cluster", show: (state) => health(state.summary), close };
}
