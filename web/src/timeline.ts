// The bar below the view: play, speed, scrub, marks of events, and LIVE where rows still arrive.

import type { Clock } from "./clock";
import { SPEEDS } from "./clock";
import { ICONS, element, icon, iconButton } from "./elements";
import type { EventsMessage } from "./protocol";

export class Timeline {
  readonly root: HTMLElement;
  private readonly play: HTMLButtonElement;
  private readonly slider: HTMLInputElement;
  private readonly marks: HTMLElement;
  private readonly time: HTMLElement;
  private readonly speed: HTMLSelectElement;
  private readonly live: HTMLButtonElement;
  private events: EventsMessage["events"] = [];

  constructor(private readonly clock: Clock) {
    this.play = iconButton(ICONS.play, "Play or pause (Space)", () => clock.toggle());
    this.play.classList.add("play");
    this.slider = element("input", {
      type: "range", min: "0", max: "1", step: "any", value: "0", class: "scrub", "aria-label": "Time",
    });
    this.slider.addEventListener("input", () => clock.seek(Number(this.slider.value)));
    this.marks = element("div", { class: "marks" });
    this.time = element("output", { class: "time" });
    this.speed = element("select", { "aria-label": "Speed", title: "Speed ([ and ])" });
    for (const speed of SPEEDS) this.speed.append(element("option", { value: String(speed) }, `${speed}×`));
    this.speed.addEventListener("change", () => {
      clock.speed = Number(this.speed.value);
      clock.tell();
    });
    this.live = element("button", { type: "button", class: "live", title: "Follow what happens now (L)" }, "LIVE");
    this.live.addEventListener("click", () => clock.follow());
    const rail = element("div", { class: "rail" }, this.marks, this.slider);
    this.root = element("div", { class: "timeline", hidden: "" }, this.play, this.time, rail, this.speed, this.live);
    clock.onChange(() => this.show());
    this.show();
  }

  setEvents(events: EventsMessage["events"]): void {
    this.events = events;
    this.show();
    this.marks.replaceChildren(
      ...events.map((event) => {
        const mark = element("button", {
          type: "button", class: `mark ${event.level}`, title: `${event.label} (${event.t.toFixed(2)} s)`,
        });
        mark.addEventListener("click", () => this.clock.seek(event.t));
        return mark;
      }),
    );
    this.placeMarks();
  }

  show(): void {
    const { clock } = this;
    this.root.hidden = clock.end <= clock.begin && !clock.live;
    this.play.replaceChildren(icon(clock.playing ? ICONS.pause : ICONS.play));
    this.play.classList.toggle("filled", !clock.playing);
    this.slider.min = String(clock.begin);
    this.slider.max = String(clock.end);
    this.slider.value = String(clock.t);
    const share = clock.end > clock.begin ? (clock.t - clock.begin) / (clock.end - clock.begin) : 0;
    this.slider.style.setProperty("--share", `${100 * share}%`);
    this.time.textContent = `${(clock.t - clock.begin).toFixed(2)} / ${(clock.end - clock.begin).toFixed(2)} s`;
    this.speed.value = String(clock.speed);
    this.live.hidden = !clock.live;
    this.live.classList.toggle("on", clock.following);
    this.placeMarks();
  }

  private placeMarks(): void {
    const span = this.clock.end - this.clock.begin || 1;
    [...this.marks.children].forEach((mark, i) => {
      const event = this.events[i];
      if (event) (mark as HTMLElement).style.left = `${(100 * (event.t - this.clock.begin)) / span}%`;
    });
  }
}
