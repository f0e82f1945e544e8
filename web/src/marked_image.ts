// One image with marks and masks: clicks, a box by dragging, and the pixels of each object.

import { button, element } from "./elements";
import type { Marks } from "./protocol";

const DRAG_PX = 5; // a shorter drag is a click
const MARK_PX = 9; // within which a click removes a mark
const EMPTY: Marks = { clicks: [], others: [], box: null };
type Point = [number, number];

export class MarkedImage {
  readonly element: HTMLElement;
  private readonly canvas = element("canvas", { tabindex: "0" });
  private readonly count = element("span", { class: "count" });
  private readonly marks = new Map<string, Marks>();
  private readonly masks = new Map<string, ImageData>();
  private image: ImageBitmap | null = null;
  private begin: Point | null = null;
  private end: Point | null = null;

  constructor(
    private readonly view: { name: string; width: number; height: number },
    private readonly chosen: () => string,
    private readonly colour: (name: string) => string,
    private readonly changed: (name: string) => void,
  ) {
    const clear = button("Clear", `remove the marks in ${view.name}`, () => this.put(EMPTY));
    const caption = element("figcaption", {}, element("span", { class: "name" }, view.name), this.count, clear);
    this.element = element("figure", {}, this.canvas, caption);
    this.canvas.setAttribute("aria-label", `image of ${view.name}`);
    this.canvas.style.aspectRatio = `${view.width} / ${view.height}`;
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  async setImage(bytes: Uint8Array): Promise<void> {
    this.image = await createImageBitmap(new Blob([bytes as BlobPart], { type: "image/jpeg" }));
    this.draw();
  }

  get shown(): boolean {
    return this.image !== null;
  }

  marksOf(name: string): Marks {
    return this.marks.get(name) ?? EMPTY;
  }

  setMarks(name: string, marks: Marks): void {
    this.marks.set(name, marks);
    this.draw();
  }

  forget(name: string): void {
    this.marks.delete(name);
    this.masks.delete(name);
    this.draw();
  }

  setBusy(busy: boolean): void {
    this.element.classList.toggle("busy", busy);
  }

  /** The pixels of an object, a bit each, row by row; none where there are no bits. */
  setMask(name: string, bits: Uint8Array, width: number, height: number): void {
    if (!bits.length) this.masks.delete(name);
    else this.masks.set(name, this.painted(bits, width, height, this.colour(name)));
    this.draw();
  }

  /** How many pixels of an object are shown. */
  pixels(name: string): number {
    const mask = this.masks.get(name);
    let count = 0;
    for (let i = 3; mask && i < mask.data.length; i += 4) if (mask.data[i]! > 0) count++;
    return count;
  }

  draw(): void {
    const ratio = window.devicePixelRatio, width = this.canvas.clientWidth;
    if (!width) return;
    const scale = (width * ratio) / this.view.width;
    [this.canvas.width, this.canvas.height] = [Math.round(this.view.width * scale), Math.round(this.view.height * scale)];
    const context = this.canvas.getContext("2d")!;
    if (this.image) context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
    for (const mask of this.masks.values()) {
      const layer = new OffscreenCanvas(mask.width, mask.height);
      layer.getContext("2d")!.putImageData(mask, 0, 0);
      context.imageSmoothingEnabled = false;
      context.drawImage(layer, 0, 0, this.canvas.width, this.canvas.height);
      context.imageSmoothingEnabled = true;
    }
    // The marks of the chosen object are on top.
    const last = ([name]: [string, Marks]) => Number(name === this.chosen());
    const ordered = [...this.marks].sort((a, b) => last(a) - last(b));
    for (const [name, marks] of ordered) this.drawMarks(context, scale, ratio, name, marks);
    if (this.begin && this.end) this.drawBox(context, scale, ratio, this.colour(this.chosen()), box(this.begin, this.end));
    const { clicks, others, box: around } = this.marksOf(this.chosen());
    const total = clicks.length + others.length + (around ? 1 : 0);
    this.count.textContent = total ? `${total} mark${total > 1 ? "s" : ""}` : "no marks";
  }

  private drawMarks(context: CanvasRenderingContext2D, scale: number, ratio: number, name: string, marks: Marks): void {
    const own = name === this.chosen();
    context.globalAlpha = own ? 1 : 0.55;
    if (marks.box) this.drawBox(context, scale, ratio, this.colour(name), marks.box);
    for (const [points, sign] of [[marks.clicks, true], [marks.others, false]] as const) {
      for (const [x, y] of points) {
        context.beginPath();
        context.arc(x * scale, y * scale, 7 * ratio, 0, 2 * Math.PI);
        context.fillStyle = sign ? this.colour(name) : "#e03131";
        context.fill();
        context.lineWidth = 1.8 * ratio;
        context.strokeStyle = "#fff";
        context.stroke();
        context.beginPath();
        context.moveTo((x * scale) - 3.5 * ratio, y * scale);
        context.lineTo((x * scale) + 3.5 * ratio, y * scale);
        if (sign) {
          context.moveTo(x * scale, (y * scale) - 3.5 * ratio);
          context.lineTo(x * scale, (y * scale) + 3.5 * ratio);
        }
        context.stroke();
      }
    }
    context.globalAlpha = 1;
  }

  private drawBox(context: CanvasRenderingContext2D, scale: number, ratio: number, colour: string, around: [number, number, number, number]): void {
    const [left, top, right, bottom] = around.map((value) => value * scale) as [number, number, number, number];
    context.lineWidth = 2 * ratio;
    context.strokeStyle = "rgba(255, 255, 255, 0.9)";
    context.strokeRect(left, top, right - left, bottom - top);
    context.setLineDash([6 * ratio, 4 * ratio]);
    context.strokeStyle = colour;
    context.strokeRect(left, top, right - left, bottom - top);
    context.setLineDash([]);
  }

  /** A mask as an image: its colour over the object, opaque along its edge. */
  private painted(bits: Uint8Array, width: number, height: number, colour: string): ImageData {
    const image = new ImageData(width, height);
    const rgb = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    const inside = (x: number, y: number) => {
      const at = y * width + x;
      return x >= 0 && y >= 0 && x < width && y < height && (bits[at >> 3]! >> (7 - (at & 7))) & 1;
    };
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        if (!inside(x, y)) continue;
        const edge = !(inside(x - 1, y) && inside(x + 1, y) && inside(x, y - 1) && inside(x, y + 1));
        image.data.set([...rgb, edge ? 255 : 120], 4 * (y * width + x));
      }
    }
    return image;
  }

  private listen(): void {
    this.canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 && event.button !== 2) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.begin = this.at(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.begin || event.buttons !== 1) return;
      this.end = this.far(this.at(event)) ? this.at(event) : null;
      this.draw();
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (!this.begin) return;
      const begin = this.begin, end = this.end;
      this.begin = this.end = null;
      if (end && event.button === 0) this.put({ ...this.marksOf(this.chosen()), box: box(begin, end) });
      else this.click(begin, event.button === 2 || event.shiftKey);
    });
    this.canvas.addEventListener("pointercancel", () => ((this.begin = this.end = null), this.draw()));
  }

  private click(point: Point, excluded: boolean): void {
    const marks = this.marksOf(this.chosen()), near = (MARK_PX * this.view.width) / this.canvas.clientWidth;
    const away = ([x, y]: Point) => Math.hypot(x - point[0], y - point[1]) > near;
    const clicks = marks.clicks.filter(away), others = marks.others.filter(away);
    if (clicks.length + others.length < marks.clicks.length + marks.others.length) this.put({ ...marks, clicks, others });
    else if (excluded) this.put({ ...marks, others: [...others, point] });
    else this.put({ ...marks, clicks: [...clicks, point] });
  }

  private put(marks: Marks): void {
    this.setMarks(this.chosen(), marks);
    this.changed(this.chosen());
  }

  /** Where the pointer is, in pixels of the image, to a tenth. */
  private at(event: PointerEvent): Point {
    const bounds = this.canvas.getBoundingClientRect();
    const place = (value: number, size: number, most: number) => Math.round(10 * Math.min(Math.max(value / size, 0), 0.9999) * most) / 10;
    return [place(event.clientX - bounds.left, bounds.width, this.view.width), place(event.clientY - bounds.top, bounds.height, this.view.height)];
  }

  private far(point: Point): boolean {
    const [x, y] = this.begin!, least = (DRAG_PX * this.view.width) / this.canvas.clientWidth;
    return Math.min(Math.abs(point[0] - x), Math.abs(point[1] - y)) > least;
  }
}

function box(a: Point, b: Point): [number, number, number, number] {
  return [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])];
}
