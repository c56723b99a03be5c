// The keyboard: single letters do nothing while a field has the focus, and can be switched off.
import { signal } from "@preact/signals";
import { drawerIsOpen } from "./faults";
import { pausedAt } from "./live";
import { explain } from "./shell";
import { jump, pause, resume, stepBy } from "./time";

const SETTING = "minikafka.keys";
export const areOn = signal(localStorage.getItem(SETTING) !== "off");

export function toggleKeys(): void {
  areOn.value = !areOn.value;
  localStorage.setItem(SETTING, areOn.value ? "on" : "off");
}

const HELP = "space: pause, or go on live. ← and →: the change before and after. Shift with ← or →: the event before and after. f and Shift+f: the next and previous failure. g, then c, t, g, e or l: Cluster, Topics, Groups, Events, Lab. p: the produce form. x: faults. ?: this list. Esc closes.";
const PLACES: Record<string, string> = { c: "#/", t: "#/t", g: "#/g", e: "#/e", l: "#/lab" };

let goes = false;

function act(event: KeyboardEvent): boolean {
  const { key, shiftKey } = event;
  if (goes) {
    goes = false;
    const place = PLACES[key];
    if (place) location.hash = place;
    return place !== undefined;
  }
  switch (key) {
    case " ": if (pausedAt.value === null) pause(); else resume(); return true;
    case "ArrowLeft": if (pausedAt.value === null) return false; if (shiftKey) jump(-1); else stepBy(-1); return true;
    case "ArrowRight": if (pausedAt.value === null) return false; if (shiftKey) jump(1); else stepBy(1); return true;
    case "f": jump(1, true); return true;
    case "F": jump(-1, true); return true;
    case "g": goes = true; return true;
    case "p": document.querySelector<HTMLInputElement>("[name=value]")?.focus(); return true;
    case "x": drawerIsOpen.value = !drawerIsOpen.value; return true;
    case "?": explain(HELP); return true;
    default: return false;
  }
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") drawerIsOpen.value = false;
  if (!areOn.value || event.ctrlKey || event.altKey || event.metaKey) return;
  const target = event.target as Element;
  if (target.closest("input, select, textarea, [popover]") || (event.key === " " && target.closest("button, a, summary"))) return;
  if (act(event)) event.preventDefault();
});
