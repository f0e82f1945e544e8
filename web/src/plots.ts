// Plots of channels over time, one per channel name with a line per track, linked to the cursor.

import type { Clock } from "./clock";
import { button, digits, element } from "./elements";
import type { Track } from "./track";

export const MOST_PLOTS = 6;
const HEIGHT = 92;

interface Line {
  track: Track;
  channel: number;
  colour: string;
}

export class Plots {
  readonly root = element("div", { class: "plots" });
  private readonly plots = new Map<string, Plot>();
  onRemove: (name: string) => void = () => undefined;

  constructor(private readonly clock: Clock, private readonly linesOf: (name: string) => Line[]) {
    clock.onChange(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  get shown(): string[] {
    return [...this.plots.keys()];
  }

  toggle(name: string, shown: boolean): void {
    if (!shown) {
      this.plots.get(name)?.root.remove();
      this.plots.delete(name);
    } else if (!this.plots.has(name)) {
      if (this.plots.size >= MOST_PLOTS) this.onRemove(this.shown[0]!);
      const plot = new Plot(name, this.clock, () => this.onRemove(name));
      this.plots.set(name, plot);
      this.root.append(plot.root);
    }
    this.draw();
  }

  draw(): void {
    for (const [name, plot] of this.plots) plot.draw(this.linesOf(name));
  }
}

class Plot {
  readonly root: HTMLElement;
  private readonly canvas = element("canvas");
  private readonly readout = element("span", { class: "readout" });

  constructor(name: string, private readonly clock: Clock, close: () => void) {
    const head = element(
      "div", { class: "plothead" }, element("span", { class: "plotname", title: name }, name), this.readout,
      button("×", `Close the plot of ${name}`, close),
    );
    this.root = element("div", { class: "plot" }, head, this.canvas);
    const seek = (event: PointerEvent) => {
      if (!(event.buttons & 1)) return;
      const box = this.canvas.getBoundingClientRect();
      clock.seek(clock.begin + ((event.clientX - box.left) / box.width) * (clock.end - clock.begin));
    };
    this.canvas.addEventListener("pointerdown", seek);
    this.canvas.addEventListener("pointermove", seek);
  }

  draw(lines: Line[]): void {
    const width = this.canvas.clientWidth || 260, ratio = Math.min(window.devicePixelRatio, 2);
    if (this.canvas.width !== Math.round(width * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = HEIGHT * ratio;
    }
    const context = this.canvas.getContext("2d");
    if (!context || !lines.length) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    const [low, high] = range(lines);
    const style = getComputedStyle(this.root), soft = style.getPropertyValue("--soft"), rule = style.getPropertyValue("--line");
    const x = (t: number) => ((t - this.clock.begin) / (this.clock.end - this.clock.begin || 1)) * width;
    const y = (value: number) => HEIGHT - 8 - ((value - low) / (high - low || 1)) * (HEIGHT - 18);
    context.strokeStyle = rule;
    context.lineWidth = 1;
    context.fillStyle = soft;
    context.font = "10px system-ui, sans-serif";
    for (const value of [low, high]) {
      context.beginPath();
      context.moveTo(0, Math.round(y(value)) + 0.5);
      context.lineTo(width, Math.round(y(value)) + 0.5);
      context.stroke();
      context.fillText(digits(value), 2, y(value) - 2);
    }
    for (const line of lines) trace(context, line, x, y, width);
    context.strokeStyle = soft;
    context.beginPath();
    context.moveTo(Math.round(x(this.clock.t)) + 0.5, 0);
    context.lineTo(Math.round(x(this.clock.t)) + 0.5, HEIGHT);
    context.stroke();
    this.tell(lines);
  }

  private tell(lines: Line[]): void {
    const unit = lines[0]!.track.channels[lines[0]!.channel]!.unit;
    this.readout.replaceChildren(
      ...lines.map(({ track, channel, colour }) => {
        const value = track.count ? track.value(track.row(this.clock.t), channel) : NaN;
        return element("b", { style: `color: ${colour}`, title: track.label }, digits(value));
      }),
      unit,
    );
  }
}

function range(lines: Line[]): [number, number] {
  let low = Infinity, high = -Infinity;
  for (const { track, channel } of lines) {
    for (let row = 0; row < track.count; row++) {
      const value = track.value(row, channel);
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (!(high > low)) return Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
  return [low, high];
}

/** The line; where rows are denser than pixels, the lowest and highest of each pixel, so that no peak is lost. */
function trace(
  context: CanvasRenderingContext2D, line: Line, x: (t: number) => number, y: (v: number) => number, width: number,
): void {
  const { track, channel } = line;
  context.strokeStyle = line.colour;
  context.lineWidth = 1.5;
  context.beginPath();
  const step = Math.max(1, Math.floor(track.count / width));
  for (let row = 0; row < track.count; row += step) {
    let low = Infinity, high = -Infinity;
    for (let k = row; k < Math.min(track.count, row + step); k++) {
      const value = track.value(k, channel);
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (!Number.isFinite(low)) continue;
    const across = x(track.times[row]!);
    context.lineTo(across, y(low));
    if (high > low) context.lineTo(across, y(high));
  }
  context.stroke();
}
