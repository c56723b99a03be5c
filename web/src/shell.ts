// The parts of the page that stay while views change: the sentence about the cluster, the badge, and the explanation.
import { effect, signal } from "@preact/signals";

/** The element with this id, which console.html has. */
export function byId(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (!found) throw new Error(`console.html has no #${id}`);
  return found;
}

/** The sentence at the top. */
export const health = signal("Reading the state of the cluster.");
effect(() => { if (byId("health").textContent !== health.value) byId("health").textContent = health.value; });

/** Opens a dialog with this text. */
export function explain(text: string): void {
  const box = byId("explain");
  const close = document.createElement("button");
  close.append("Close");
  close.addEventListener("click", () => box.hidePopover());
  const paragraph = document.createElement("p");
  paragraph.append(text);
  box.replaceChildren(paragraph, close);
  box.showPopover();
}
