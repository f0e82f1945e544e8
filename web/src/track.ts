// Poses and channels over time: recorded ones arrive whole, live ones row by row.

import type { ChannelData, LiveMessage, TrackMessage } from "./protocol";

const LIVE_ROWS = 3600;
const ROTATION_UNIT = 32767;

export class Track {
  readonly id: string;
  readonly label: string;
  readonly role: "main" | "ghost";
  readonly live: boolean;
  readonly bodies: number;
  readonly channels: ChannelData[];
  readonly errors: NonNullable<TrackMessage["errors"]>;
  readonly offset: [number, number, number];
  count: number;
  times: Float32Array;
  positions: Float32Array;
  rotations: Int16Array;
  values: Float32Array;
  /** Contacts: how many before each row, then x y z and force x y z of each. */
  readonly contactStarts: Uint32Array;
  readonly contacts: Float32Array;

  constructor(message: TrackMessage, bodies: number) {
    this.id = message.id;
    this.label = message.label;
    this.role = message.role;
    this.live = message.live ?? false;
    this.bodies = bodies;
    this.channels = message.channels;
    this.errors = message.errors ?? [];
    this.offset = message.offset ?? [0, 0, 0];
    const b = message.buffers;
    this.times = (b["times"] as Float32Array | undefined) ?? new Float32Array();
    this.count = this.times.length;
    this.positions = (b["positions"] as Float32Array | undefined) ?? new Float32Array();
    this.rotations = (b["rotations"] as Int16Array | undefined) ?? new Int16Array();
    this.values = (b["values"] as Float32Array | undefined) ?? new Float32Array();
    this.contactStarts = (b["contact_starts"] as Uint32Array | undefined) ?? new Uint32Array();
    this.contacts = (b["contacts"] as Float32Array | undefined) ?? new Float32Array();
    if (this.live) this.reserve();
  }

  get begin(): number {
    return this.count ? this.times[0]! : 0;
  }

  get end(): number {
    return this.count ? this.times[this.count - 1]! : 0;
  }

  /** The last row at or before a time. */
  row(t: number): number {
    let low = 0, high = this.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.times[middle]! <= t + 1e-6) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  value(row: number, channel: number): number {
    return this.values[row * this.channels.length + channel]!;
  }

  /** Pose of a body between two rows: positions are interpolated linearly, rotations too and then normalised. */
  pose(body: number, t: number, out: Float32Array): void {
    const i = this.row(t);
    const j = Math.min(i + 1, this.count - 1);
    const span = this.times[j]! - this.times[i]!;
    const s = span > 1e-9 ? Math.min(1, Math.max(0, (t - this.times[i]!) / span)) : 0;
    const p = 3 * (i * this.bodies + body), q = 3 * (j * this.bodies + body);
    for (let k = 0; k < 3; k++) out[k] = (1 - s) * this.positions[p + k]! + s * this.positions[q + k]!;
    const a = 4 * (i * this.bodies + body), b = 4 * (j * this.bodies + body);
    let dot = 0, norm = 0;
    for (let k = 0; k < 4; k++) dot += this.rotations[a + k]! * this.rotations[b + k]!;
    for (let k = 0; k < 4; k++) {
      const mixed = (1 - s) * this.rotations[a + k]! + (dot < 0 ? -s : s) * this.rotations[b + k]!;
      out[3 + k] = mixed;
      norm += mixed * mixed;
    }
    norm = Math.sqrt(norm) || 1;
    for (let k = 3; k < 7; k++) out[k] = out[k]! / norm;
  }

  /** Add a live row: bodies that are not in the message stay where they were. */
  append(message: LiveMessage): void {
    if (this.count && message.t <= this.end) this.count = 0; // a new episode began
    if (this.count === this.times.length) this.forgetHalf();
    const row = this.count, from = Math.max(0, row - 1);
    this.times[row] = message.t;
    const wide = 3 * this.bodies, high = 4 * this.bodies;
    this.positions.copyWithin(row * wide, from * wide, (from + 1) * wide);
    this.rotations.copyWithin(row * high, from * high, (from + 1) * high);
    const which = message.buffers["bodies"] as Uint16Array;
    const positions = message.buffers["positions"] as Float32Array;
    const rotations = message.buffers["rotations"] as Int16Array;
    for (let i = 0; i < which.length; i++) {
      this.positions.set(positions.subarray(3 * i, 3 * i + 3), row * wide + 3 * which[i]!);
      this.rotations.set(rotations.subarray(4 * i, 4 * i + 4), row * high + 4 * which[i]!);
    }
    const values = message.buffers["values"] as Float32Array | undefined;
    if (values) this.values.set(values, row * this.channels.length);
    this.count++;
  }

  private reserve(): void {
    const rows = LIVE_ROWS;
    const grown = <T extends Float32Array | Int16Array>(old: T, size: number, made: T): T => {
      made.set(old.subarray(0, size) as never);
      return made;
    };
    this.times = grown(this.times, rows, new Float32Array(rows));
    this.positions = grown(this.positions, 3 * this.bodies * rows, new Float32Array(3 * this.bodies * rows));
    this.rotations = grown(this.rotations, 4 * this.bodies * rows, new Int16Array(4 * this.bodies * rows));
    for (let i = 0; i < rows * this.bodies && !this.count; i++) this.rotations[4 * i] = ROTATION_UNIT;
    const wide = this.channels.length;
    this.values = grown(this.values, wide * rows, new Float32Array(wide * rows));
  }

  private forgetHalf(): void {
    const kept = this.count >> 1, gone = this.count - kept;
    this.times.copyWithin(0, gone, this.count);
    this.positions.copyWithin(0, 3 * this.bodies * gone, 3 * this.bodies * this.count);
    this.rotations.copyWithin(0, 4 * this.bodies * gone, 4 * this.bodies * this.count);
    this.values.copyWithin(0, this.channels.length * gone, this.channels.length * this.count);
    this.count = kept;
  }
}
