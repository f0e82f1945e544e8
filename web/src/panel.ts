// The panel beside the view: what is shown, tracks, the chosen body, parameters, images and channels.

import { digits, element } from "./elements";
import type { ChannelData, ChoiceMessage, ParamsMessage } from "./protocol";

export interface Toggle {
  key: string;
  label: string;
  shown: boolean;
  act: (shown: boolean) => void;
}

export class Panel {
  readonly root: HTMLElement;
  private readonly title = element("h1");
  private readonly subtitle = element("p", { class: "subtitle" });
  private readonly tracks = section("Tracks");
  private readonly choices = element("div", { class: "choices" });
  private readonly toggles = section("Show");
  private readonly selection = section("Selection");
  private readonly params = section("Parameters");
  private readonly images = section("Images");
  private readonly channels = section("Channels");
  private readonly boxes = new Map<string, HTMLInputElement>();
  private readonly switches = new Map<string, Toggle & { box: HTMLInputElement }>();

  constructor() {
    this.root = element(
      "aside", { class: "panel", "aria-label": "Controls" }, element("header", {}, this.title, this.subtitle),
      this.tracks.root, this.choices, this.toggles.root, this.selection.root, this.params.root, this.images.root,
      this.channels.root,
    );
    for (const part of [this.tracks, this.selection, this.params, this.images, this.channels]) part.root.hidden = true;
  }

  setTitle(title: string, subtitle: string): void {
    this.title.textContent = title;
    this.subtitle.textContent = subtitle;
  }

  /** A switch of what is shown; the same one again replaces it. */
  addToggle(toggle: Toggle): void {
    const [label, box] = checkbox(toggle.label, toggle.shown, (shown) => {
      toggle.shown = shown;
      toggle.act(shown);
    });
    if (toggle.key) label.title = `key ${toggle.key.toUpperCase()}`;
    const known = this.switches.get(toggle.label);
    if (known) known.box.closest("label")!.replaceWith(label);
    else this.toggles.body.append(label);
    this.switches.set(toggle.label, { ...toggle, box });
  }

  /** Flip the switch of a key; whether there is one. */
  press(key: string): boolean {
    const found = [...this.switches.values()].find((toggle) => toggle.key === key);
    found?.box.click();
    return found !== undefined;
  }

  addTrack(id: string, label: string, colour: string, act: (shown: boolean) => void): void {
    const [row] = checkbox(label, true, act);
    row.dataset["track"] = id;
    row.style.setProperty("--swatch", colour);
    row.classList.add("swatch");
    const known = this.tracks.body.querySelector(`[data-track="${CSS.escape(id)}"]`);
    if (known) known.replaceWith(row);
    else this.tracks.body.append(row);
    this.tracks.root.hidden = this.tracks.body.children.length < 2;
  }

  /** One of several options, such as the episode; where they are ordered, such as the horizon of a replay, a slider. */
  addChoice(message: ChoiceMessage, act: (value: number) => void): void {
    const control = message.ordered ? steps(message, act) : segments(message.label, message.options, message.value, act);
    const row = element("div", { class: "choice", "data-name": message.name }, element("h2", {}, message.label), control);
    const known = this.choices.querySelector(`[data-name="${CSS.escape(message.name)}"]`);
    if (known) known.replaceWith(row);
    else this.choices.append(row);
  }

  /** Which of several kinds of images is shown. */
  offerImageKinds(kinds: string[], act: (kind: string) => void): void {
    if (this.images.root.querySelector(".segments")) return;
    this.images.body.before(segments("Images", kinds, 0, (i) => act(kinds[i]!)));
    this.images.root.hidden = false;
  }

  setParams(message: ParamsMessage, act: (address: string, value: number) => void): void {
    this.params.root.hidden = !message.params.length;
    this.params.body.replaceChildren(
      ...message.params.map((param) => {
        const log = param.log && param.low > 0;
        const to = (value: number) => (log ? Math.log(value) : value), from = (x: number) => (log ? Math.exp(x) : x);
        const shown = element("output", {}, `${digits(param.value)} ${param.unit}`);
        const low = to(param.low), high = to(param.high);
        const slider = element("input", {
          type: "range", min: String(low), max: String(high), step: String((high - low) / 400),
          value: String(to(param.value)), "aria-label": param.address,
        });
        slider.addEventListener("input", () => {
          shown.textContent = `${digits(from(Number(slider.value)))} ${param.unit}`;
          act(param.address, from(Number(slider.value)));
        });
        return element("label", { class: "param" }, element("span", { title: param.address }, param.address), shown, slider);
      }),
    );
  }

  /** The channels by group, each with a box that plots it. */
  setChannels(channels: ChannelData[], shown: string[], act: (name: string, shown: boolean) => void): void {
    this.channels.root.hidden = !channels.length;
    this.boxes.clear();
    const filter = element("input", { type: "search", placeholder: "Filter", "aria-label": "Filter channels" });
    const groups = new Map<string, HTMLElement>();
    for (const channel of channels) {
      let group = groups.get(channel.group);
      if (!group) {
        group = element("details", {}, element("summary", {}, channel.group));
        if (!groups.size) group.setAttribute("open", "");
        groups.set(channel.group, group);
      }
      const short = channel.name.startsWith(`${channel.group}.`) ? channel.name.slice(channel.group.length + 1) : channel.name;
      const [row, box] = checkbox(short, shown.includes(channel.name), (on) => act(channel.name, on));
      row.dataset["name"] = channel.name.toLowerCase();
      this.boxes.set(channel.name, box);
      group.append(row);
    }
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase();
      for (const group of groups.values()) {
        for (const row of group.querySelectorAll("label")) row.hidden = !row.dataset["name"]!.includes(words);
        group.hidden = ![...group.querySelectorAll("label")].some((row) => !row.hidden);
        if (words) group.setAttribute("open", "");
      }
    });
    this.channels.body.replaceChildren(...(channels.length > 12 ? [filter] : []), ...groups.values());
  }

  /** Set the box of a channel as if it were clicked. */
  setPlotted(name: string, shown: boolean): void {
    const box = this.boxes.get(name);
    if (box && box.checked !== shown) box.click();
  }

  select(rows: [string, string][]): void {
    this.selection.root.hidden = !rows.length;
    const list = element("dl");
    for (const [name, value] of rows) list.append(element("dt", {}, name), element("dd", {}, value));
    this.selection.body.replaceChildren(list);
  }

  setImage(camera: string, label: string, source: string): void {
    this.images.root.hidden = false;
    let figure = this.images.body.querySelector<HTMLElement>(`[data-image="${CSS.escape(camera)}"]`);
    if (!figure) {
      figure = element("figure", { "data-image": camera }, element("img", { alt: camera }), element("figcaption"));
      this.images.body.append(figure);
    }
    figure.querySelector("img")!.src = source;
    figure.querySelector("figcaption")!.textContent = label;
  }
}

/** A row of buttons of which one is chosen. */
function segments(label: string, options: string[], chosen: number, act: (value: number) => void): HTMLElement {
  const group = element("div", { class: "segments", role: "radiogroup", "aria-label": label });
  options.forEach((option, i) => {
    const one = element("button", { type: "button", role: "radio", "aria-checked": String(i === chosen) }, option);
    one.addEventListener("click", () => {
      [...group.children].forEach((other, k) => other.setAttribute("aria-checked", String(k === i)));
      act(i);
    });
    group.append(one);
  });
  return group;
}

/** A slider over ordered options, which says the one it is at. */
function steps(message: ChoiceMessage, act: (value: number) => void): HTMLElement {
  const last = message.options.length - 1;
  const shown = element("output", {}, message.options[message.value]!);
  const slider = element("input", {
    type: "range", min: "0", max: String(last), step: "1", value: String(message.value), "aria-label": message.label,
  });
  const tell = () => {
    shown.textContent = message.options[Number(slider.value)]!;
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  slider.addEventListener("input", () => (tell(), act(Number(slider.value))));
  tell();
  return element("label", { class: "steps" }, slider, shown);
}

function section(title: string): { root: HTMLElement; body: HTMLElement } {
  const body = element("div", { class: "body" });
  return { root: element("section", { class: title.toLowerCase() }, element("h2", {}, title), body), body };
}

function checkbox(label: string, checked: boolean, act: (checked: boolean) => void): [HTMLLabelElement, HTMLInputElement] {
  const box = element("input", { type: "checkbox" });
  box.checked = checked;
  box.addEventListener("change", () => act(box.checked));
  return [element("label", { class: "check" }, box, element("span", {}, label)), box];
}
