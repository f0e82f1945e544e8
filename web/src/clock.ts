// The time that is shown: plays, scrubs, or follows what is live.

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];

export class Clock {
  t = 0;
  begin = 0;
  end = 0;
  playing = false;
  speed = 1;
  /** Whether rows still arrive; then `following` shows the newest. */
  live = false;
  following = false;
  private last = 0;
  private readonly listeners: (() => void)[] = [];

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Advance to a frame at `now` [ms]; whether the time changed. */
  tick(now: number): boolean {
    const passed = Math.min(0.1, Math.max(0, (now - this.last) / 1000));
    this.last = now;
    if (this.following) return this.set(this.end);
    if (!this.playing) return false;
    let t = this.t + this.speed * passed;
    if (t >= this.end) {
      if (this.live) this.following = true;
      t = this.live ? this.end : this.begin;
    }
    return this.set(t);
  }

  seek(t: number): void {
    this.following = false;
    this.set(Math.min(this.end, Math.max(this.begin, t)));
  }

  toggle(): void {
    if (this.live && this.following) this.following = false;
    else if (this.live && !this.playing) this.following = this.playing = true;
    else this.playing = !this.playing;
    if (this.live && !this.following) this.playing = false;
    this.tell();
  }

  follow(): void {
    this.following = this.playing = true;
    this.tell();
  }

  faster(steps: number): void {
    const at = SPEEDS.indexOf(this.speed);
    this.speed = SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, at + steps))]!;
    this.tell();
  }

  tell(): void {
    for (const listener of this.listeners) listener();
  }

  private set(t: number): boolean {
    const changed = t !== this.t;
    this.t = t;
    if (changed) this.tell();
    return changed;
  }
}
