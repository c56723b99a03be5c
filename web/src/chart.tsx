// A line over time. The code that draws it is loaded with the first chart.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Drawing } from "./charts";

/** Times are milliseconds since 1970. The values are also in the view as text: the drawing is hidden from assistive technology. */
export function Chart({ label, times, values }: { label: string; times: number[]; values: number[] }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const drawing = useRef<Drawing | null>(null);
  const latest = useRef({ times, values });
  latest.current = { times, values };
  useEffect(() => {
    let closed = false;
    void import("./charts.js").then(({ draw }: typeof import("./charts")) => {
      if (closed || !place.current) return;
      drawing.current = draw(place.current, label);
      drawing.current.show(latest.current.times, latest.current.values);
    });
    return () => { closed = true; drawing.current?.close(); };
  }, [label]);
  useEffect(() => drawing.current?.show(times, values));
  return <div class="chart" ref={place} aria-hidden="true" />;
}
