// Charts, loaded when they are needed. The rules of uPlot's style sheet that they use are in console.css.
import UPlot from "uplot";

const HEIGHT = 160;
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600]; // between two marks of the time axis
const SECONDS_MIN = 10; // of the time axis: one point alone has no width

export interface Drawing {
  show(times: number[], values: number[]): void;
  close(): void;
}

const colour = (place: Element, name: string): string => {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  place.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

/** Draws into an element, as wide as it is and in the colours of the theme, until it is closed. */
export function draw(place: HTMLElement, label: string): Drawing {
  let plot: UPlot | null = null;
  let data: UPlot.AlignedData = [[], []];
  const make = () => {
    plot?.destroy();
    const [line, soft, grid] = [colour(place, "--mark"), colour(place, "--soft"), colour(place, "--line")];
    const axis = { stroke: soft, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    plot = new UPlot({ width: place.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { show: false }, series: [{}, { label, stroke: line, width: 2, points: { show: false } }],
      scales: { x: { range: (_, first, last) => [Math.min(first, last - SECONDS_MIN), last] }, y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
      axes: [{ ...axis, space: 80, incrs: SECONDS, values: (_, seconds) => seconds.map((each) => new Date(each * 1000).toLocaleTimeString("sv")) }, { ...axis, size: 64, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7, 1e8, 1e9] }] }, data, place);
  };
  const theme = matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("change", make);
  const sizes = new ResizeObserver(() => plot?.setSize({ width: place.clientWidth, height: HEIGHT }));
  sizes.observe(place);
  make();
  return {
    show(times, values) {
      data = [times.map((ms) => ms / 1000), values];
      plot?.setData(data);
    },
    close() {
      theme.removeEventListener("change", make);
      sizes.disconnect();
      plot?.destroy();
    },
  };
}
