// Consumer groups: how far each is behind, who reads what, and a reset of offsets with a preview and a way back.
import { health, make, moment, put, repeat, request, shown, table } from "./parts.js";

const PERIOD_MS = 1000;
const LIST_PERIOD_MS = 5000;
const LAGS_MAX = 20; // groups of the list whose lag is read: each costs requests to the coordinator and to leaders
const TREND_MS = 10000;
const groupPath = (group) => `/v1/groups/${encodeURIComponent(group)}`;

const counted = (records) => `${records.toLocaleString("en")} record${records === 1 ? "" : "s"}`;

function lagText(partitions) {
  const unknown = partitions.filter((each) => each.lag === null).length;
  const sum = partitions.reduce((total, each) => total + (each.lag ?? 0), 0);
  return `${sum.toLocaleString("en")}${unknown ? `, and ${unknown} partitions unknown` : ""}`;
}

// ---- the list ----

async function lagsOf(groups) {
  const lags = [];
  for (const each of groups.slice(0, LAGS_MAX)) {
    try {
      lags.push(await request(`${groupPath(each.group)}/lag`));
    } catch (error) {
      lags.push({ failed: error.message });
    }
  }
  return lags;
}

function groupRow(each, lag) {
  const members = lag?.partitions && new Set(lag.partitions.map((one) => one.member_id).filter((id) => id !== null)).size;
  const worst = lag?.lag_max ? `${lag.lag_max.topic}-${lag.lag_max.partition}` : "";
  return [make("a", { href: `#/g/${encodeURIComponent(each.group)}`, "data-key": `group ${each.group}` }, each.group), each.state,
    lag?.partitions ? lagText(lag.partitions) : lag?.failed ?? "open the group", worst, members ?? ""];
}

export function groupsView() {
  const list = make("section");
  const close = repeat(LIST_PERIOD_MS, async () => {
    try {
      const { groups } = await request("/v1/groups");
      const lags = await lagsOf(groups);
      put(list, groups.length ? table("Groups", ["Group", "State", "Lag (records)#", "Most behind in", "Members with partitions#"], groups.map((each, index) => groupRow(each, lags[index])))
        : make("p", {}, "There are no consumer groups. A group begins with its first member or its first commit."));
    } catch (error) {
      put(list, make("p", { class: "failed", role: "alert" }, error.message));
    }
  });
  return { parts: [make("h1", {}, "Groups"), list], scope: "cluster", show: (state) => health(state.summary), close };
}

// ---- one group ----

function trend(history, sum) {
  const now = Date.now();
  history.push([now, sum]);
  while (history[0][0] < now - TREND_MS) history.shift();
  const [since, before] = history[0];
  const seconds = Math.round((now - since) / 1000);
  if (!seconds || before === sum) return "";
  return `, ${Math.abs(sum - before).toLocaleString("en")} ${sum > before ? "more ▲" : "fewer ▼"} than ${seconds} s ago`;
}

function summary(group, history) {
  const { offsets } = group;
  const sum = offsets.reduce((total, each) => total + (each.lag ?? 0), 0);
  const change = trend(history, sum);
  if (!offsets.length) return "The group has committed no offsets and its members have no partitions.";
  if (offsets.some((each) => each.lag === null)) return `The lag is at least ${counted(sum)}${change}; some partitions have no committed offset, or no leader that answers.`;
  return sum ? `The group is ${counted(sum)} behind${change}.` : `The group has committed everything up to the high watermark${change}.`;
}

function memberRows(members) {
  return members.map((each) => [each.member_id, each.client_id, each.host, each.software,
    each.assignment.map((one) => `${one.topic} ${one.partitions.join(",")}`).join("; ") || "none"]);
}

function offsetRows(group) {
  const readers = new Map(group.members.flatMap((member) => member.assignment.flatMap((one) => one.partitions.map((number) => [`${one.topic}-${number}`, member.member_id]))));
  return group.offsets.map((each) => {
    const name = `${each.topic}-${each.partition}`;
    // A first commit may lie below the log's start; a bar shows the part of the log's end that is committed.
    const bar = each.lag === null ? "" : make("meter", { min: 0, max: Math.max(1, each.log_end), value: each.committed, "aria-label": `${name}: committed ${each.committed} of ${each.log_end}` });
    return [make("a", { href: `#/t/${encodeURIComponent(each.topic)}/${each.partition}`, "data-key": name }, name),
      each.committed ?? "none", shown(each.log_end), shown(each.lag), bar, readers.get(name) ?? "no member"];
  });
}

function drawGroup(place, group, history) {
  put(place, make("p", { class: "lead" }, summary(group, history)),
    make("p", { class: "soft" }, `State ${group.state}, generation ${group.generation}${group.assignor ? `, assignor ${group.assignor}` : ""}, coordinator broker ${group.coordinator.id}.`),
    make("h2", {}, "Partitions"), table("Partitions of the group", ["Partition", "Committed#", "High watermark#", "Lag#", "Progress", "Member"], offsetRows(group)),
    make("h2", {}, "Members"), group.members.length ? table("Members", ["Member", "Client", "Host", "Library", "Partitions"], memberRows(group.members)) : make("p", {}, "The group has no members."));
}

// ---- reset ----

const GOALS = [["earliest", "the log's start"], ["latest", "the high watermark"], ["to_offset", "an offset"], ["shift_by", "forward or back by a number of records"], ["to_datetime", "the first record at or after a time"]];

function bodyOf(goal, value) {
  if (goal === "earliest" || goal === "latest") return { to: goal };
  return { [goal]: goal === "to_datetime" ? value : Number(value) };
}

function resetForm(name) {
  const result = make("div", { role: "status" });
  const goal = make("select", { name: "goal" }, ...GOALS.map(([value, words]) => make("option", { value }, words)));
  const value = make("input", { name: "value", autocomplete: "off", placeholder: "2026-11-23T14:20Z" });
  const valueLabel = make("label", { hidden: "" }, "Value", value);
  goal.addEventListener("change", () => { valueLabel.hidden = goal.selectedIndex < 2; });
  const form = make("form", {}, make("label", {}, "Move all committed offsets to", goal), valueLabel, make("button", { class: "main" }, "Preview"));
  const moved = (offsets) => table("New offsets", ["Partition", "Committed#", "New#"], offsets.map((each) => [`${each.topic}-${each.partition}`, each.committed ?? "none", each.new_offset]));
  const attempt = async (act) => {
    try {
      await act();
    } catch (error) {
      put(result, make("p", { class: "failed", role: "alert" }, error.message));
    }
  };
  const restore = (offsets) => attempt(async () => {
    await request(`${groupPath(name)}/offsets`, { offsets: offsets.map(({ topic, partition, committed }) => ({ topic, partition, offset: committed })) }, "PUT");
    put(result, make("p", {}, "The offsets are as they were before the reset."));
  });
  const reset = (body) => attempt(async () => {
    const { offsets } = await request(`${groupPath(name)}/offsets:reset`, { ...body, dry_run: false });
    put(result, make("p", {}, "The offsets are reset."), moved(offsets), make("button", { onclick: () => restore(offsets) }, "Undo"));
  });
  const preview = (body) => attempt(async () => {
    const { offsets } = await request(`${groupPath(name)}/offsets:reset`, { ...body, dry_run: true });
    put(result, make("p", {}, "Nothing is changed yet. The reset would commit:"), moved(offsets), make("button", { class: "main", onclick: () => reset(body) }, "Reset the offsets"));
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    preview(bodyOf(goal.value, value.value.trim()));
  });
  return [form, result];
}

export function groupView(name) {
  const place = make("section");
  const busy = make("p", {});
  const form = make("div", {}, ...resetForm(name));
  const history = [];
  const close = repeat(PERIOD_MS, async () => {
    try {
      const group = await request(groupPath(name));
      drawGroup(place, group, history);
      form.hidden = group.members.length > 0;
      put(busy, form.hidden ? `Only a group without members can be reset: stop ${group.members.map((each) => each.member_id).join(", ")} first.` : "");
    } catch (error) {
      put(place, make("p", { class: "failed", role: "alert" }, `No data since ${moment(Date.now())}: ${error.message}`));
    }
  });
  const reset = make("section", {}, make("h2", {}, "Reset offsets"), busy, form);
  return { parts: [make("p", {}, make("a", { href: "#/g" }, "Groups")), make("h1", {}, name), place, reset], scope: "cluster", show: (state) => health(state.summary), close };
}
