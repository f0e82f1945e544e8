// Marking objects in images: clicks, boxes and the masks that they give, object by object.

import { button, element } from "./elements";
import { MarkedImage } from "./marked_image";
import type { MaskMessage, Message, ViewsMessage } from "./protocol";
import style from "./prompts.css";
import { openSocket } from "./socket";

const COLOURS = ["#12b886", "#f76707", "#4c6ef5", "#e64980", "#fab005", "#15aabf", "#ae3ec9", "#82c91e"];
const NAME = /^[A-Za-z_][\w\-]*$/;

/** A page with one image per view, and a list of objects. */
export class PromptPage {
  readonly images = new Map<string, MarkedImage>();
  private readonly send: (request: object) => void;
  private readonly list = element("div", { class: "objects", role: "radiogroup", "aria-label": "objects" });
  private readonly grid = element("div", { class: "grid" });
  private readonly title = element("h1");
  private readonly about = element("p", { class: "about" });
  private readonly status = element("p", { class: "status", role: "status" });
  private readonly objects: string[] = [];
  private chosen = "";
  private waiting = 0;
  private opened = false; // whether everything of the beginning has been received

  constructor(host: HTMLElement) {
    document.head.append(element("style", {}, style));
    document.title = "instep reconstruct prompts";
    const help = element("p", { class: "help" }, "Click: on the object. Right or Shift click: not on it. Drag: a box around it. Click on a mark: remove it.");
    const words = element("div", { class: "words" }, this.title, this.about);
    host.append(element("header", {}, words, this.list, help, this.status), this.grid);
    this.send = openSocket((message) => this.receive(message), (text) => this.say(text, "warn"));
  }

  /** Whether all images are shown and all requests are answered. */
  state(): { ready: boolean } {
    const shown = [...this.images.values()].every((image) => image.shown);
    return { ready: this.opened && shown && !this.waiting };
  }

  receive(message: Message): void {
    if (message.kind === "views") this.open(message);
    else if (message.kind === "image") void this.images.get(message.camera)?.setImage(message.buffers["data"] as Uint8Array);
    else if (message.kind === "mask") this.setMask(message);
    else if (message.kind === "status") this.answered(message.text, message.level);
    else if (message.kind === "opened") this.begin();
  }

  private open(message: ViewsMessage): void {
    this.images.clear();
    this.grid.replaceChildren();
    this.objects.length = 0;
    this.title.textContent = message.title;
    this.about.textContent = `Masks by ${message.segmenter}. Every change is written to ${message.file}.`;
    for (const view of message.views) {
      const image = new MarkedImage(view, () => this.chosen, (name) => this.colour(name), (name) => this.changed(view.name, name));
      this.images.set(view.name, image);
      this.grid.append(image.element);
    }
    for (const [name, marked] of Object.entries(message.objects)) {
      this.objects.push(name);
      for (const [camera, marks] of Object.entries(marked)) this.images.get(camera)?.setMarks(name, marks);
    }
    if (!this.objects.length) this.objects.push("object");
    this.choose(this.objects.includes(this.chosen) ? this.chosen : this.objects[0]!);
    this.waiting = 0;
  }

  /** Ask for the masks of what was marked before. */
  private begin(): void {
    this.opened = true;
    for (const name of this.objects) {
      if (![...this.images.values()].some((image) => image.marksOf(name).clicks.length || image.marksOf(name).box)) continue;
      this.waiting++;
      this.say("Segmenting …", "info");
      this.send({ masks: name });
    }
  }

  private changed(camera: string, name: string): void {
    this.waiting++;
    const { clicks, others, box } = this.images.get(camera)!.marksOf(name);
    this.images.get(camera)!.setBusy(true);
    this.say("Segmenting …", "info");
    this.send({ marks: { object: name, camera, clicks, others, box } });
  }

  private answered(text: string, level: string): void {
    this.waiting = Math.max(0, this.waiting - 1);
    if (!this.waiting) for (const image of this.images.values()) image.setBusy(false);
    this.say(text, level);
  }

  private setMask(message: MaskMessage): void {
    this.images.get(message.camera)?.setMask(message.object, message.buffers["inside"] as Uint8Array, message.width, message.height);
  }

  private choose(name: string): void {
    this.chosen = name;
    const chips = this.objects.map((one) => {
      const chip = button(one, `mark ${one}`, () => this.choose(one));
      chip.setAttribute("role", "radio");
      chip.setAttribute("aria-checked", String(one === name));
      chip.style.setProperty("--swatch", this.colour(one));
      return chip;
    });
    const remove = button(`Remove ${name}`, `remove ${name} with its marks`, () => this.remove(name));
    this.list.replaceChildren(...chips, this.adding(), remove);
    for (const image of this.images.values()) image.draw();
  }

  /** The field for the name of another object. */
  private adding(): HTMLElement {
    const field = element("input", { placeholder: "another object", "aria-label": "name of another object", pattern: NAME.source });
    const form = element("form", {}, field, element("button", { type: "submit" }, "Add"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const name = field.value.trim();
      if (!NAME.test(name) || name === "world") return this.say("A name begins with a letter and has letters, digits, _ and -.", "bad");
      if (!this.objects.includes(name)) this.objects.push(name);
      this.choose(name);
    });
    return form;
  }

  private remove(name: string): void {
    this.objects.splice(this.objects.indexOf(name), 1);
    for (const image of this.images.values()) image.forget(name);
    this.waiting++;
    this.send({ remove: name });
    if (!this.objects.length) this.objects.push("object");
    this.choose(this.objects[0]!);
  }

  private colour(name: string): string {
    return COLOURS[Math.max(0, this.objects.indexOf(name)) % COLOURS.length]!;
  }

  private say(text: string, level: string): void {
    this.status.textContent = text;
    this.status.dataset["level"] = level;
  }
}
