// Small helpers to make HTML elements.

type Child = Node | string;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Record<string, string> = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function button(label: string, title: string, act: () => void): HTMLButtonElement {
  const made = element("button", { type: "button", title, "aria-label": title }, label);
  made.addEventListener("click", act);
  return made;
}

/** An icon of 16 x 16 as lines; `path` is the `d` of an SVG path. */
export function icon(path: string): SVGSVGElement {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

export function iconButton(path: string, title: string, act: () => void): HTMLButtonElement {
  const made = button("", title, act);
  made.classList.add("icon");
  made.append(icon(path));
  return made;
}

/** A number in as many digits as a reader needs. */
export function digits(value: number): string {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return "–";
  if (size === 0) return "0";
  if (size >= 1000 || size < 1e-3) return value.toExponential(1);
  return value.toPrecision(3);
}

export const ICONS = {
  play: "M4 2.5 L13 8 L4 13.5 Z",
  pause: "M5 3 V13 M11 3 V13",
  home: "M2 6 V2 H6 M10 2 H14 V6 M14 10 V14 H10 M6 14 H2 V10",
  theme: "M8 2 A6 6 0 1 0 8 14 A6 6 0 1 0 8 2 M8 2 V14 M8 5 L13 5 M8 8 H14 M8 11 H13",
  measure: "M2 11 L11 2 L14 5 L5 14 Z M5 8 L6.5 9.5 M8 5 L9.5 6.5",
  camera: "M2 5 H5 L6 3 H10 L11 5 H14 V13 H2 Z M8 6.5 A2.4 2.4 0 1 0 8 11.3 A2.4 2.4 0 1 0 8 6.5",
  help: "M6 6 A2 2 0 1 1 8 8 V9.5 M8 12 V12.4",
  panel: "M2 3 H14 V13 H2 Z M10 3 V13",
  headset: "M2 5 H14 V11 H10 L8 9 L6 11 H2 Z",
} as const;
