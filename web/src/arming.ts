// A button that arms a robot: it follows the simulated one while this page says so, several times a second.

import { button } from "./elements";

const TELL_MS = 150;

export class Arming {
  readonly root = button("ARM", "Let the robot follow the simulated one; it goes to its start first", () => (this.press ? this.letGo() : this.arm()));
  /** The number of the press by which the robot is armed; 0 where it is not. */
  private press = 0;
  private timer = 0;

  constructor(private readonly send: (request: object) => void) {
    this.root.className = "arm";
    this.root.hidden = true;
    // A page that nobody sees is not at hand to let go.
    document.addEventListener("visibilitychange", () => document.hidden && this.letGo());
  }

  /** Show the button where a robot may be armed; a page that was cut off in between is not armed any more. */
  offer(may: boolean): void {
    this.letGo();
    this.root.hidden = !may;
  }

  /** The robot no longer follows what was asked for by a press. */
  ended(press: number | undefined): void {
    if (this.press && press === this.press) this.letGo();
  }

  letGo(): void {
    if (!this.press) return;
    window.clearInterval(this.timer);
    this.press = 0;
    this.send({ arm: 0 });
    this.show();
  }

  private arm(): void {
    this.press = Date.now();
    const tell = () => this.send({ arm: this.press });
    tell();
    this.timer = window.setInterval(tell, TELL_MS);
    this.show();
  }

  private show(): void {
    this.root.textContent = this.press ? "ARMED" : "ARM";
    this.root.setAttribute("aria-pressed", String(this.press > 0));
  }
}
