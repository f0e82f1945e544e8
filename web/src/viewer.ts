// The viewer: messages in, a view with its controls out. The same in a page of the server and inside a report.

import * as THREE from "three";
import { Arming } from "./arming";
import { CameraImages } from "./camera_images";
import { Clock } from "./clock";
import { ICONS, button, digits, element, iconButton } from "./elements";
import { Grabbing } from "./grab";
import { Headset, type HeadsetMode } from "./headset";
import { handleKey, helpBox } from "./keyboard";
import { COLOURS, Legend, MOST_LISTED } from "./legend";
import { Contacts, Trail, frameAxes } from "./marks";
import { Model, Shapes } from "./model";
import { Panel } from "./panel";
import { Picking, type Hit } from "./picking";
import { Placing } from "./placing";
import { Plots } from "./plots";
import type { GaussiansMessage, InfoMessage, LiveMessage, Message, SceneMessage, TrackMessage } from "./protocol";
import { Selection, type Posed } from "./selection";
import { HOME, Stage, type Theme } from "./stage";
import style from "./style.css";
import { Timeline } from "./timeline";
import { Track } from "./track";

/** Makes three.js objects of Gaussians; absent in the small bundle. */
export interface GaussianSource {
  mesh: (message: GaussiansMessage, stage: Stage) => THREE.Object3D;
  /** How many Gaussians are in the image. */
  drawn: () => number;
}

const ERROR_COLOUR = new THREE.Color(0xe03131);
const OUTCOME_COLOURS: Record<string, THREE.Color> = { success: new THREE.Color(0x2b9348), failure: ERROR_COLOUR };
const FIRST_PLOTS = 3;
const PARAMS_MS = 90;
const TIMELINE_PX = 58;

interface Shown {
  track: Track;
  model: Model;
  trails: Trail[];
  order: number;
  /** How the episode of a world in a grid ended. */
  outcome: string;
}

export interface ViewerOptions {
  theme?: Theme;
  /** Whether the panel is open at first. */
  panel?: boolean;
  send?: (request: object) => void;
  gaussians?: GaussianSource;
}

export class Viewer {
  readonly clock = new Clock();
  readonly stage: Stage;
  readonly shown = new Map<string, Shown>();
  private readonly shadow: ShadowRoot;
  private readonly frame = element("div", { class: "frame" });
  private readonly panel = new Panel();
  private readonly plots: Plots;
  private readonly timeline: Timeline;
  private readonly picking: Picking;
  private readonly status = element("div", { class: "status", role: "status" });
  private readonly legend = new Legend();
  private readonly selection = new Selection();
  private readonly help = helpBox();
  private readonly stopButton = button("STOP", "Stop the robot until it is reset", () => this.ask({ stop: true }));
  private readonly arming = new Arming((request) => this.ask(request));
  private readonly images: CameraImages;
  private readonly axes: THREE.LineSegments[] = [];
  private readonly pose = new Float32Array(7);
  readonly headset: Headset;
  grabbing: Grabbing | null = null;
  private placing: Placing | null = null;
  private contacts: Contacts | null = null;
  private scene: SceneMessage | null = null;
  private shapes: Shapes | null = null;
  private still: Model | null = null;
  private layers = { visual: true, collision: false, trails: true, contacts: true, errors: true };
  private pending: Record<string, number> = {};
  private gaussians = 0;
  /** Frames before everything of the beginning had arrived. */
  private opened = Infinity;

  constructor(readonly host: HTMLElement, private readonly options: ViewerOptions = {}) {
    this.shadow = host.attachShadow({ mode: "open" });
    const view = element("div", { class: "view", tabindex: "0" });
    this.shadow.append(element("style", {}, style), this.frame);
    this.plots = new Plots(this.clock, (name) => this.linesOf(name));
    this.plots.onRemove = (name) => this.panel.setPlotted(name, false);
    this.timeline = new Timeline(this.clock);
    this.frame.append(view, this.panel.root, this.plots.root, this.legend.root, this.toolbar(), this.timeline.root, this.status, this.help, this.stopButton, this.arming.root);
    this.stopButton.className = "stop";
    this.stopButton.hidden = true;
    this.stage = new Stage(view);
    this.frame.classList.toggle("plain", this.stage.software);
    this.images = new CameraImages(this.stage, this.clock, this.panel, (request) => this.ask(request));
    this.picking = new Picking(this.stage, () => this.targets(), (hit) => this.pick(hit));
    this.headset = new Headset(this.stage, () => this.grabbing);
    this.offerHeadset();
    this.stage.onFrame((now) => this.clock.tick(now));
    this.clock.onChange(() => this.update());
    this.frame.classList.toggle("closed", !(options.panel ?? true));
    this.setTheme(options.theme ?? preferred());
    this.toggles();
    this.listen();
    view.focus({ preventScroll: true });
  }

  receive(message: Message): void {
    switch (message.kind) {
      case "scene": return this.setScene(message);
      case "track": return this.setTrack(message);
      case "live": return this.addRow(message);
      case "events": return this.timeline.setEvents(message.events);
      case "image": return this.images.receive(message);
      case "gaussians": return this.addGaussians(message);
      case "params": return this.panel.setParams(message, (address, value) => this.setParam(address, value));
      case "choice": return this.panel.addChoice(message, (value) => this.ask({ choose: { [message.name]: value } }));
      case "info": return this.setInfo(message);
      case "status": return this.arming.ended(message.ended), this.say(message.text, message.level);
      case "opened": return this.setOpened();
    }
  }

  /** Enter a headset, from a click. */
  async enterHeadset(mode: HeadsetMode): Promise<void> {
    try {
      await this.headset.enter(mode, () => (this.arming.letGo(), this.say("Left the headset.")));
    } catch (error) {
      this.say(`The headset cannot be entered (${(error as Error).message}).`, "bad");
    }
  }

  setOpened(): void {
    this.opened = this.stage.frames;
    this.stage.invalidate();
  }

  say(text: string, level = "info"): void {
    this.status.textContent = text;
    this.status.className = `status ${level}`;
  }

  setTheme(theme: Theme): void {
    this.frame.dataset["theme"] = theme;
    this.stage.setTheme(theme);
    for (const one of this.shown.values()) this.addLegend(one);
    this.plots.draw();
  }

  /** What tests and scripts ask: how much is shown, and when. */
  state(): object {
    return {
      t: this.clock.t, begin: this.clock.begin, end: this.clock.end, playing: this.clock.playing, frames: this.stage.frames,
      tracks: [...this.shown.values()].map(({ track }) => ({ id: track.id, rows: track.count })),
      bodies: this.scene?.bodies.length ?? 0, plots: this.plots.shown, selected: this.selection.body,
      headset: this.headset.present, grabbed: this.grabbing?.holding ?? false,
      outcomes: [...this.shown.values()].map((one) => one.outcome),
      status: this.status.textContent, images: this.images.names,
      /** Whether all of the beginning is in the image. */
      ready: this.stage.frames > this.opened && (this.options.gaussians?.drawn() ?? 0) >= this.gaussians,
    };
  }

  screenshot(): string {
    return this.stage.screenshot();
  }

  private setInfo(message: InfoMessage): void {
    this.panel.setTitle(message.title, message.subtitle);
    this.images.setInfo(message);
    this.stopButton.hidden = !message.stop;
    this.arming.offer(message.arm ?? false);
    if (message.place && this.scene && this.still) {
      this.placing ??= new Placing(this.stage, (x, y) => this.picking.at(x, y), (request) => this.ask(request));
      this.placing.offer(this.scene, this.still, message.place);
    }
    if (!message.grab || !this.scene) return;
    this.grabbing ??= new Grabbing(this.stage, this.scene, (x, y) => this.picking.at(x, y), (request) => this.ask(request));
    const main = [...this.shown.values()].find(({ track }) => track.role === "main")?.model ?? this.still;
    if (main) this.grabbing.attach(main.bodies);
  }

  /** A button for VR or AR where this browser has it. */
  private offerHeadset(): void {
    void Headset.offered().then((mode) => {
      if (!mode) return;
      const words = mode === "immersive-ar" ? "Enter AR: the scene in your room, at its real size" : "Enter VR: walk around the scene at its real size";
      const enter = iconButton(ICONS.headset, words, () => (this.headset.present ? this.headset.leave() : void this.enterHeadset(mode)));
      enter.classList.add("headset");
      this.frame.querySelector(".toolbar")!.prepend(enter);
    });
  }

  private ask(request: object): void {
    this.options.send?.(request);
  }

  /** Send values of sliders, gathered over a moment: each makes the server simulate the run again. */
  private setParam(address: string, value: number): void {
    if (!Object.keys(this.pending).length) {
      window.setTimeout(() => {
        this.ask({ set: this.pending });
        this.pending = {};
      }, PARAMS_MS);
    }
    this.pending[address] = value;
  }

  private setScene(message: SceneMessage): void {
    this.scene = message;
    this.shapes = new Shapes(message);
    this.stage.world.clear();
    this.shown.clear();
    this.gaussians = 0;
    this.axes.length = 0;
    this.panel.setTitle(message.name, message.about);
    this.still = new Model(this.shapes);
    this.stage.world.add(this.still.root);
    this.contacts = new Contacts(message.radius);
    this.stage.world.add(this.contacts.root);
    this.images.setScene(message);
    this.attach(this.still);
    this.stage.fit(new THREE.Vector3(...message.centre), message.radius, message.ground ?? 0);
    this.say(`grid ${digits(this.stage.cell)} m`);
    this.stage.invalidate();
  }

  /** Hang frames of axes and cameras onto the bodies of a model. */
  private attach(model: Model): void {
    const shown = this.axes[0]?.visible ?? false;
    this.axes.length = 0;
    for (const body of model.bodies) {
      const axes = frameAxes(0.06 * this.scene!.radius);
      axes.visible = shown;
      body.add(axes);
      this.axes.push(axes);
    }
    this.images.attach(model);
  }

  private setTrack(message: TrackMessage): void {
    if (!this.shapes || !this.scene) return;
    const known = this.shown.get(message.id);
    const track = new Track(message, this.scene.bodies.length);
    const order = known?.order ?? this.shown.size;
    const ghost = message.role === "ghost";
    const model = known?.model ?? new Model(this.shapes, ghost ? { ghost: COLOURS.light[order % 8]! } : {});
    for (const trail of known?.trails ?? []) this.stage.world.remove(trail.line);
    const trails = this.scene.sites.map((site) => new Trail(track, site, COLOURS.light[order % 8]!));
    model.root.position.set(...track.offset);
    for (const trail of trails) {
      trail.line.position.set(...track.offset);
      trail.line.visible = this.layers.trails;
      this.stage.world.add(trail.line);
    }
    const one = { track, model, trails, order, outcome: known?.outcome ?? "" };
    const first = !this.shown.size;
    this.shown.set(message.id, one);
    if (!known) {
      this.stage.world.add(model.root);
      model.show("collision", this.layers.collision && !ghost);
      if (first && this.still) {
        this.stage.world.remove(this.still.root);
        this.attach(model);
      }
      this.addLegend(one);
      if (track.offset.some((n) => n !== 0)) this.frameAll();
      if (track.errors.length) this.errorToggle();
      this.setChannels(first);
    }
    this.setSpan();
    if (first) {
      this.clock.live = track.live;
      if (track.live) this.clock.follow();
      else this.clock.seek(this.clock.begin);
    }
    this.update();
    this.plots.draw();
  }

  /** Frame a grid of worlds. */
  private frameAll(): void {
    const box = new THREE.Box3();
    const { centre, radius, ground } = this.scene!;
    for (const { track } of this.shown.values()) {
      const middle = new THREE.Vector3(...centre).add(new THREE.Vector3(...track.offset));
      box.expandByPoint(middle.clone().addScalar(radius)).expandByPoint(middle.addScalar(-radius));
    }
    this.stage.fit(box.getCenter(new THREE.Vector3()), 0.8 * box.getSize(new THREE.Vector3()).length() / 2, ground ?? 0);
  }

  private addLegend({ track, model, trails, order }: Shown): void {
    if (order >= MOST_LISTED) return;
    this.legend.show([...this.shown.values()].map((one) => ({ track: one.track, colour: this.colour(one.order) })));
    this.panel.addTrack(track.id, track.label, this.colour(order), (shown) => {
      model.root.visible = shown;
      for (const trail of trails) trail.line.visible = shown && this.layers.trails;
      this.stage.invalidate();
    });
  }

  private addRow(message: LiveMessage): void {
    const one = this.shown.get(message.id);
    if (!one) return;
    if (message.outcome !== "absent") one.track.append(message);
    if (one.outcome !== (message.outcome ?? "")) this.setOutcome(one, message.outcome ?? "");
    this.setSpan();
    this.stage.invalidate();
  }

  /** Colour a world of a grid by how its episode ended. */
  private setOutcome(one: Shown, outcome: string): void {
    const present = outcome !== "absent";
    if (present !== (one.outcome !== "absent")) {
      one.model.root.visible = present;
      for (const trail of one.trails) trail.line.visible = present && this.layers.trails;
    }
    one.outcome = outcome;
    const colour = OUTCOME_COLOURS[outcome];
    one.model.bodies.forEach((_, body) => one.model.tint(body, colour ?? ERROR_COLOUR, colour ? 0.6 : 0));
    const ended = [...this.shown.values()].filter((other) => other.outcome === "success" || other.outcome === "failure");
    const won = ended.filter((other) => other.outcome === "success").length;
    if (ended.length) this.say(`${won} of ${ended.length} ended episodes succeeded`);
  }

  private setSpan(): void {
    const tracks = [...this.shown.values()].map(({ track }) => track).filter((track) => track.count);
    this.clock.begin = Math.min(...tracks.map((track) => track.begin));
    this.clock.end = Math.max(...tracks.map((track) => track.end));
    if (!tracks.length) this.clock.begin = this.clock.end = 0;
    if (!this.clock.following) this.timeline.show();
    this.stage.cover(this.timeline.root.hidden ? 0 : TIMELINE_PX);
  }

  /** Pose everything for the time of the clock. */
  private update(): void {
    const { t } = this.clock;
    for (const { track, model, trails } of this.shown.values()) {
      if (!track.count) continue;
      for (let body = 0; body < track.bodies; body++) {
        track.pose(body, t, this.pose);
        model.place(body, this.pose);
      }
      const row = track.row(t);
      for (const { body, channel, scale } of track.errors) {
        const share = this.layers.errors ? Math.min(1, Math.abs(track.value(row, channel)) / scale) : 0;
        model.tint(body, ERROR_COLOUR, 0.85 * share);
      }
      if (this.layers.trails) for (const trail of trails) trail.update(t);
      if (track.role === "main") this.contacts?.update(track, this.layers.contacts ? row : Infinity);
    }
    if (this.selection.body !== null) this.describe();
    this.images.request();
    this.stage.invalidate();
  }

  private setChannels(first: boolean): void {
    const known = new Map(
      [...this.shown.values()].flatMap(({ track }) => track.channels).map((channel) => [channel.name, channel] as const),
    );
    const shown = this.plots.shown;
    this.panel.setChannels([...known.values()], shown, (name, on) => {
      this.plots.toggle(name, on);
      this.frame.classList.toggle("plotted", this.plots.shown.length > 0);
    });
    if (!first || (this.options.panel ?? true) === false) return;
    for (const name of [...known.keys()].slice(0, FIRST_PLOTS)) this.panel.setPlotted(name, true);
  }

  private linesOf(name: string): { track: Track; channel: number; colour: string }[] {
    return [...this.shown.values()].flatMap(({ track, model, order }) => {
      const channel = track.channels.findIndex((one) => one.name === name);
      return channel < 0 || !model.root.visible ? [] : [{ track, channel, colour: this.colour(order) }];
    });
  }

  private colour(order: number): string {
    return COLOURS[this.stage.theme][order % 8]!;
  }

  private addGaussians(message: GaussiansMessage): void {
    if (!this.options.gaussians) {
      this.say("This page has no Gaussians in it.", "warn");
      return;
    }
    this.gaussians += message.count;
    const made = this.options.gaussians.mesh(message, this.stage);
    const main = [...this.shown.values()].find(({ track }) => track.role === "main")?.model ?? this.still;
    (message.body >= 0 && main ? main.bodies[message.body]! : this.stage.world).add(made);
    this.panel.addToggle({
      key: "n", label: "Gaussians", shown: true, act: (shown) => ((made.visible = shown), this.stage.invalidate()),
    });
    this.stage.invalidate();
  }

  private toggles(): void {
    const layer = (name: "visual" | "collision") => (shown: boolean) => {
      this.layers[name] = shown;
      for (const model of [this.still, ...[...this.shown.values()].map((one) => one.model)]) model?.show(name, shown);
      this.stage.invalidate();
    };
    const mark = (name: "trails" | "contacts") => (shown: boolean) => {
      this.layers[name] = shown;
      for (const { trails } of this.shown.values()) for (const trail of trails) trail.line.visible = this.layers.trails;
      this.update();
    };
    const axes = (shown: boolean) => {
      for (const one of this.axes) one.visible = shown;
      this.stage.invalidate();
    };
    this.panel.addToggle({ key: "b", label: "Bodies", shown: true, act: layer("visual") });
    this.panel.addToggle({ key: "c", label: "Collision", shown: false, act: layer("collision") });
    this.panel.addToggle({ key: "a", label: "Frames", shown: false, act: axes });
    this.panel.addToggle({ key: "t", label: "Trails", shown: true, act: mark("trails") });
    this.panel.addToggle({ key: "k", label: "Contacts", shown: true, act: mark("contacts") });
    this.panel.addToggle({ key: "g", label: "Grid", shown: true, act: (shown) => this.stage.showGround(shown) });
  }

  private errorToggle(): void {
    const act = (shown: boolean) => ((this.layers.errors = shown), this.update());
    this.panel.addToggle({ key: "e", label: "Errors", shown: true, act });
  }

  private targets(): THREE.Object3D[] {
    const models = [...this.shown.values()].filter(({ model }) => model.root.visible).map((one) => one.model);
    return (models.length ? models : this.still ? [this.still] : []).flatMap((model) => model.pickable);
  }

  private get posed(): Posed[] {
    return this.shown.size ? [...this.shown.values()] : this.still ? [{ model: this.still, track: null }] : [];
  }

  private pick(hit: Hit | null): void {
    this.selection.choose(hit && hit.body > 0 ? hit.body : null, this.posed, new THREE.Color(this.colour(0)));
    this.describe();
    this.stage.invalidate();
  }

  private describe(): void {
    this.panel.select(this.scene ? this.selection.rows(this.scene, this.posed, this.clock) : []);
  }

  private toolbar(): HTMLElement {
    return element(
      "div", { class: "toolbar" },
      iconButton(ICONS.panel, "Controls (P)", () => this.frame.classList.toggle("closed")),
      iconButton(ICONS.home, "Frame everything (F)", () => this.stage.view(HOME)),
      iconButton(ICONS.measure, "Measure (M)", () => this.measure()),
      iconButton(ICONS.camera, "Save an image (S)", () => this.save()),
      iconButton(ICONS.theme, "Light or dark (D)", () => this.toggleTheme()),
      iconButton(ICONS.help, "Keys (?)", () => (this.help.hidden = !this.help.hidden)),
    );
  }

  private toggleTheme(): void {
    this.setTheme(this.stage.theme === "light" ? "dark" : "light");
  }

  private measure(): void {
    this.picking.setMeasuring(!this.picking.measuring);
    this.say(this.picking.measuring ? "Click two points to measure." : `grid ${digits(this.stage.cell)} m`);
  }

  private save(): void {
    const link = element("a", { href: this.screenshot(), download: `${this.scene?.name ?? "view"}.png` });
    link.click();
  }

  private listen(): void {
    const on = {
      clock: this.clock, stage: this.stage, rowLength: () => this.rowLength(), measure: () => this.measure(), save: () => this.save(),
      toggleTheme: () => this.toggleTheme(),
      toggleControls: () => void this.frame.classList.toggle("closed"),
      toggleHelp: () => void (this.help.hidden = !this.help.hidden),
      clear: () => {
        this.pick(null);
        this.help.hidden = true;
        if (this.picking.measuring) this.measure();
      },
      press: (key: string) => this.panel.press(key),
    };
    this.frame.addEventListener("keydown", (event) => handleKey(event, on));
  }

  private rowLength(): number {
    const track = [...this.shown.values()][0]?.track;
    return track && track.count > 1 ? (track.end - track.begin) / (track.count - 1) : 0.02;
  }
}

function preferred(): Theme {
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
