// Messages from the server or from the page itself: a JSON header with the layout of typed arrays behind it.
// The writer is src/instep/app/viewer/messages.py.

export type Numbers = Float32Array | Int16Array | Uint16Array | Uint32Array | Uint8Array;
export type Buffers = Record<string, Numbers>;
export type Pose = [number, number, number, number, number, number, number]; // x y z, then quaternion w x y z

export interface GeomData {
  body: number;
  name: string;
  type: "plane" | "sphere" | "capsule" | "ellipsoid" | "cylinder" | "box" | "mesh";
  size: [number, number, number];
  pose: Pose;
  rgba: [number, number, number, number];
  layer: "visual" | "collision" | "both";
  mesh?: number;
}
export interface CameraData {
  name: string;
  body: number;
  pose: Pose; // x right, y down, z forward
  width: number;
  height: number;
  focal: [number, number];
  centre: [number, number];
}
export interface SceneMessage {
  kind: "scene";
  name: string;
  about: string;
  bodies: { name: string; parent: number; joints: string[]; mass: number }[];
  geoms: GeomData[];
  meshes: { low: [number, number, number]; size: [number, number, number] }[];
  cameras: CameraData[];
  sites: { name: string; body: number; pose: Pose }[];
  ground: number | null;
  centre: [number, number, number];
  radius: number;
  buffers: Buffers; // poses [bodies, 7]; v0, f0, v1, f1 ... of meshes
}
export interface ChannelData {
  name: string;
  unit: string;
  group: string;
}
export interface TrackMessage {
  kind: "track";
  id: string;
  label: string;
  role: "main" | "ghost";
  channels: ChannelData[];
  offset?: [number, number, number];
  live?: boolean;
  errors?: { body: number; channel: number; scale: number }[]; // channels that colour bodies
  buffers: Buffers; // times, positions [frames, bodies, 3], rotations i16 [frames, bodies, 4], values, contacts
}
export interface LiveMessage {
  kind: "live";
  id: string;
  t: number;
  outcome?: "success" | "failure" | "absent"; // of the episode of a world in a grid
  buffers: Buffers; // bodies (which changed), positions, rotations, values
}
export interface EventsMessage {
  kind: "events";
  events: { t: number; label: string; level: "info" | "warn" | "bad" }[];
  buffers: Buffers;
}
export interface ImageMessage {
  kind: "image";
  camera: string;
  t: number;
  label: string;
  format: string;
  buffers: Buffers; // data
}
export interface GaussiansMessage {
  kind: "gaussians";
  body: number; // -1 for the world
  count: number;
  buffers: Buffers; // centres, scales, rotations (wxyz), colours (rgba)
}
export interface ParamsMessage {
  kind: "params";
  params: { address: string; low: number; high: number; log: boolean; value: number; unit: string }[];
  buffers: Buffers;
}
export interface ChoiceMessage {
  kind: "choice";
  name: string;
  label: string;
  options: string[];
  value: number;
  ordered?: boolean; // options from less to more: a slider
  buffers: Buffers;
}
export interface InfoMessage {
  kind: "info";
  title: string;
  subtitle: string;
  images: string[]; // cameras with recorded images
  compare?: boolean; // whether they can be rendered too
  grab?: boolean; // whether end effectors can be grabbed
  place?: Record<string, Pose>; // bodies that can be dragged, and where they are
  stop?: boolean; // whether this page may stop the robot
  arm?: boolean; // whether this page may let a robot follow
  buffers: Buffers;
}
/** Everything of the beginning has been sent. */
export interface OpenedMessage {
  kind: "opened";
  buffers: Buffers;
}
export interface StatusMessage {
  kind: "status";
  text: string;
  level: "info" | "warn" | "bad";
  ended?: number; // the press of the arm button that no longer counts
  buffers: Buffers;
}
/** The views of a capture, and what was marked in them by object and camera. */
export interface ViewsMessage {
  kind: "views";
  title: string;
  file: string;
  segmenter: string;
  views: { name: string; width: number; height: number }[];
  objects: Record<string, Record<string, Marks>>;
  buffers: Buffers;
}
/** What one view shows of one object. */
export interface MaskMessage {
  kind: "mask";
  object: string;
  camera: string;
  width: number;
  height: number;
  buffers: Buffers; // inside, a bit for each pixel; empty where there is no mask
}
export interface Marks {
  clicks: [number, number][];
  others: [number, number][];
  box: [number, number, number, number] | null;
}
export type Message =
  | SceneMessage | TrackMessage | LiveMessage | EventsMessage | ImageMessage | GaussiansMessage | ParamsMessage
  | ChoiceMessage | InfoMessage | StatusMessage | OpenedMessage | ViewsMessage | MaskMessage;

const TYPES = { f32: Float32Array, i16: Int16Array, u16: Uint16Array, u32: Uint32Array, u8: Uint8Array } as const;
interface Layout {
  type: keyof typeof TYPES;
  offset: number;
  length: number;
}

/** One message: the length of the header (u32), the header as JSON padded to four bytes, then its arrays. */
export function decode(bytes: Uint8Array): Message {
  // Typed arrays need aligned memory; a view into a larger buffer may not be.
  const data = bytes.byteOffset % 4 ? bytes.slice() : bytes;
  const length = new DataView(data.buffer, data.byteOffset, 4).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + length))) as Record<string, unknown>;
  const layouts = (header["buffers"] ?? {}) as Record<string, Layout>;
  const buffers: Buffers = {};
  const begin = data.byteOffset + 4 + length;
  for (const [name, layout] of Object.entries(layouts)) {
    buffers[name] = new TYPES[layout.type](data.buffer as ArrayBuffer, begin + layout.offset, layout.length);
  }
  return { ...header, buffers } as unknown as Message;
}

/** The messages of a container: each with its length (u32) before it. */
export function* unpack(container: Uint8Array): Generator<Message> {
  const view = new DataView(container.buffer, container.byteOffset, container.byteLength);
  for (let at = 0; at < container.byteLength; ) {
    const length = view.getUint32(at, true);
    yield decode(container.subarray(at + 4, at + 4 + length));
    at += 4 + length;
  }
}
