// Renderer, light, ground and camera. A frame is rendered only when something changed.

import * as THREE from "three";
import { OrbitControls } from "three/examples/jsm/controls/OrbitControls.js";

export type Theme = "light" | "dark";

const LOOKS = {
  light: { top: 0xf7f8fa, low: 0xdde2e9, line: 0x6d7683, strength: 0.42, shadow: 0.2, sky: 0xffffff, earth: 0xb9bec8 },
  dark: { top: 0x14161a, low: 0x262b33, line: 0x93a0b3, strength: 0.34, shadow: 0.42, sky: 0xdfe8ff, earth: 0x3a3f49 },
} as const;

/** Where the camera is at first, from the centre. */
export const HOME: [number, number, number] = [1.25, -1.55, 0.85];

export class Stage {
  readonly renderer: THREE.WebGLRenderer;
  readonly scene = new THREE.Scene();
  readonly world = new THREE.Group();
  readonly camera = new THREE.PerspectiveCamera(40, 1, 0.01, 100);
  readonly controls: OrbitControls;
  theme: Theme = "light";
  /** Whether a processor renders in place of a graphics card. */
  readonly software: boolean;
  frames = 0;
  private readonly sky = new THREE.HemisphereLight(0xffffff, 0xb9bec8, 2.0);
  private readonly sun = new THREE.DirectionalLight(0xffffff, 1.7);
  private readonly fill = new THREE.DirectionalLight(0xffffff, 0.6);
  private readonly grid: THREE.Mesh<THREE.PlaneGeometry, THREE.ShaderMaterial>;
  private readonly shade: THREE.Mesh<THREE.PlaneGeometry, THREE.ShadowMaterial>;
  private readonly backdrop: THREE.Mesh<THREE.PlaneGeometry, THREE.ShaderMaterial>;
  private centre = new THREE.Vector3();
  private radius = 1;
  private ground = 0;
  private desk: { position: THREE.Vector3; quaternion: THREE.Quaternion } | null = null;
  private dirty = true;
  private inSight = true;
  private filled = false;
  private direction = HOME;
  /** Pixels at the bottom that controls cover: what is framed stays above them. */
  private covered = 0;
  private readonly beforeRender: ((now: number) => boolean)[] = [];

  constructor(readonly host: HTMLElement) {
    const software = softwareCanvas();
    this.software = software !== null;
    this.renderer = new THREE.WebGLRenderer(software ?? { antialias: true, preserveDrawingBuffer: true });
    this.renderer.setPixelRatio(software ? 1 : Math.min(window.devicePixelRatio, 2));
    this.renderer.shadowMap.enabled = true;
    this.renderer.shadowMap.type = software ? THREE.PCFShadowMap : THREE.PCFSoftShadowMap;
    const canvas = this.renderer.domElement;
    canvas.setAttribute("aria-label", "3D view; drag to orbit, right drag to pan, wheel to zoom");
    host.append(canvas);

    this.camera.up.set(0, 0, 1);
    this.controls = new OrbitControls(this.camera, canvas);
    this.controls.enableDamping = false;
    this.controls.zoomToCursor = true;
    this.controls.addEventListener("change", () => this.invalidate());

    this.sun.castShadow = true;
    this.sun.shadow.mapSize.setScalar(software ? 1024 : 2048);
    this.sun.shadow.bias = -0.0004;
    this.sun.shadow.normalBias = 0.01;
    this.sun.shadow.radius = 5;
    this.grid = gridMesh();
    this.shade = new THREE.Mesh(new THREE.PlaneGeometry(1, 1), new THREE.ShadowMaterial({ opacity: 0.2 }));
    this.shade.receiveShadow = true;
    this.backdrop = backdropMesh();
    this.scene.add(this.backdrop, this.sky, this.sun, this.sun.target, this.fill, this.grid, this.shade, this.world);
    this.setTheme("light");

    new ResizeObserver(() => this.resize()).observe(host);
    // Nothing is rendered while the view is scrolled away.
    new IntersectionObserver(([entry]) => (this.inSight = entry!.isIntersecting)).observe(host);
    this.resize();
    this.renderer.setAnimationLoop((now) => this.tick(now));
  }

  /** Call a function before each frame; it returns whether it changed anything. */
  onFrame(function_: (now: number) => boolean): void {
    this.beforeRender.push(function_);
  }

  invalidate(): void {
    this.dirty = true;
  }

  setTheme(theme: Theme): void {
    this.theme = theme;
    const look = LOOKS[theme];
    const shades = this.backdrop.material.uniforms as Record<"top" | "low", { value: THREE.Color }>;
    shades.top.value.setHex(look.top);
    shades.low.value.setHex(look.low);
    (this.grid.material.uniforms["line"] as { value: THREE.Color }).value.setHex(look.line);
    (this.grid.material.uniforms["strength"] as { value: number }).value = look.strength;
    this.shade.material.opacity = look.shadow;
    this.sky.color.setHex(look.sky);
    this.sky.groundColor.setHex(look.earth);
    this.invalidate();
  }

  /** Frame a sphere and scale grid, light and clipping to it. */
  fit(centre: THREE.Vector3, radius: number, ground: number): void {
    this.filled = true;
    this.centre.copy(centre);
    this.radius = radius;
    this.ground = ground;
    this.camera.near = radius / 200;
    this.camera.far = radius * 200;
    const reach = radius * 2.2;
    this.sun.position.copy(centre).add(new THREE.Vector3(0.55, -0.75, 1.5).multiplyScalar(radius * 3));
    this.sun.target.position.copy(centre);
    Object.assign(this.sun.shadow.camera, { left: -reach, right: reach, top: reach, bottom: -reach });
    Object.assign(this.sun.shadow.camera, { near: radius * 0.2, far: radius * 12 });
    this.sun.shadow.camera.updateProjectionMatrix();
    this.fill.position.copy(centre).add(new THREE.Vector3(-2, 1.5, 1).multiplyScalar(radius));
    for (const plane of [this.grid, this.shade]) plane.position.set(centre.x, centre.y, ground);
    this.grid.scale.setScalar(radius * 20); // as far as its lines reach
    this.shade.scale.setScalar(radius * 5); // as far as shadows do
    this.grid.position.z -= radius * 1e-3;
    this.shade.position.z -= radius * 0.5e-3;
    const cell = 10 ** Math.round(Math.log10(radius / 4));
    const uniforms = this.grid.material.uniforms as Record<string, { value: unknown }>;
    uniforms["cell"]!.value = cell;
    uniforms["reach"]!.value = radius * 9;
    uniforms["centre"]!.value = new THREE.Vector2(centre.x, centre.y);
    this.view(HOME);
  }

  /** The edge of a grid cell [m]. */
  get cell(): number {
    return (this.grid.material.uniforms["cell"] as { value: number }).value;
  }

  /** Look at the framed sphere from a direction. */
  view(direction: [number, number, number]): void {
    const half = Math.tan(THREE.MathUtils.degToRad(this.camera.fov / 2));
    const free = 1 - this.covered / Math.max(1, this.host.clientHeight);
    const angle = Math.atan(half * Math.min(free, this.camera.aspect));
    const away = new THREE.Vector3(...direction).normalize().multiplyScalar((this.radius / Math.sin(angle)) * 1.02);
    this.direction = direction;
    this.controls.target.copy(this.centre);
    this.camera.position.copy(this.centre).add(away);
    this.camera.updateProjectionMatrix();
    this.controls.update();
    this.invalidate();
  }

  /** Say how many pixels at the bottom are covered; what is framed moves up. */
  cover(pixels: number): void {
    if (pixels === this.covered) return;
    this.covered = pixels;
    this.resize();
    if (this.filled) this.view(this.direction);
  }

  /** What is framed. */
  get framed(): { centre: THREE.Vector3; radius: number; ground: number } {
    return { centre: this.centre, radius: this.radius, ground: this.ground };
  }

  /** Whether the view is controlled here, and not by a headset. */
  get controlled(): boolean {
    return this.desk === null;
  }

  /** The camera becomes that of a headset; where the room is seen through, nothing is behind the scene. */
  enterHeadset(through: boolean): void {
    this.desk = { position: this.camera.position.clone(), quaternion: this.camera.quaternion.clone() };
    this.controls.enabled = false;
    this.backdrop.visible = this.shade.visible = !through;
    if (through) this.grid.visible = false;
  }

  leaveHeadset(): void {
    if (!this.desk) return;
    this.camera.removeFromParent();
    this.camera.position.copy(this.desk.position);
    this.camera.quaternion.copy(this.desk.quaternion);
    this.desk = null;
    this.controls.enabled = true;
    this.backdrop.visible = this.shade.visible = this.grid.visible = true;
    this.resize();
    this.controls.update();
    this.invalidate();
  }

  showGround(shown: boolean): void {
    this.grid.visible = shown;
    this.invalidate();
  }

  get groundShown(): boolean {
    return this.grid.visible;
  }

  /** Render now, and return the image as a data URL. */
  screenshot(): string {
    this.render();
    return this.renderer.domElement.toDataURL("image/png");
  }

  private resize(): void {
    if (this.renderer.xr.isPresenting) return;
    const width = Math.max(1, this.host.clientWidth), height = Math.max(1, this.host.clientHeight);
    this.renderer.setSize(width, height);
    this.camera.aspect = width / height;
    this.camera.setViewOffset(width, height, 0, this.covered / 2, width, height);
    this.render();
  }

  private tick(now: number): void {
    if (!this.inSight && !this.renderer.xr.isPresenting) return;
    for (const function_ of this.beforeRender) if (function_(now)) this.dirty = true;
    if (this.dirty || this.renderer.xr.isPresenting) this.render();
  }

  private render(): void {
    this.dirty = false;
    if (!this.filled) return; // nothing to see yet
    this.frames++;
    this.renderer.render(this.scene, this.camera);
  }
}

/** A canvas where a processor renders in place of a graphics card: then quality gives way to speed.
 * Each context costs such a machine a tenth of a second, so the one that was asked is the one that renders. */
function softwareCanvas(): { canvas: HTMLCanvasElement; context: WebGL2RenderingContext } | null {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("webgl2", { antialias: false, preserveDrawingBuffer: true });
  const names = context?.getExtension("WEBGL_debug_renderer_info");
  const name = context && names ? String(context.getParameter(names.UNMASKED_RENDERER_WEBGL)) : "";
  if (context && /swiftshader|llvmpipe|software/i.test(name)) return { canvas, context };
  context?.getExtension("WEBGL_lose_context")?.loseContext();
  return null;
}

function gridMesh(): THREE.Mesh<THREE.PlaneGeometry, THREE.ShaderMaterial> {
  const material = new THREE.ShaderMaterial({
    transparent: true,
    depthWrite: false,
    uniforms: {
      line: { value: new THREE.Color() }, strength: { value: 0.4 }, cell: { value: 0.1 }, reach: { value: 5 },
      centre: { value: new THREE.Vector2() },
    },
    vertexShader: `
      varying vec2 place;
      void main() {
        vec4 world = modelMatrix * vec4(position, 1.0);
        place = world.xy;
        gl_Position = projectionMatrix * viewMatrix * world;
      }`,
    fragmentShader: `
      varying vec2 place;
      uniform vec3 line; uniform float strength, cell, reach; uniform vec2 centre;
      float lines(float size) {
        vec2 scaled = place / size;
        vec2 width = fwidth(scaled);
        vec2 near = abs(fract(scaled - 0.5) - 0.5) / max(width, 1e-6);
        float fine = 1.0 - smoothstep(0.2, 0.7, max(width.x, width.y));
        return (1.0 - min(min(near.x, near.y), 1.0)) * fine;
      }
      void main() {
        float fade = 1.0 - smoothstep(0.15, 1.0, length(place - centre) / reach);
        float seen = max(0.45 * lines(cell), lines(10.0 * cell));
        gl_FragColor = vec4(line, seen * strength * fade);
        if (gl_FragColor.a < 0.004) discard;
        #include <colorspace_fragment>
      }`,
  });
  const mesh = new THREE.Mesh(new THREE.PlaneGeometry(1, 1), material);
  mesh.renderOrder = -1;
  return mesh;
}

/** A vertical gradient behind everything. */
function backdropMesh(): THREE.Mesh<THREE.PlaneGeometry, THREE.ShaderMaterial> {
  const material = new THREE.ShaderMaterial({
    depthTest: false,
    depthWrite: false,
    uniforms: { top: { value: new THREE.Color() }, low: { value: new THREE.Color() } },
    vertexShader: `varying float up; void main() { up = position.y + 0.5; gl_Position = vec4(2.0 * position.xy, 1.0, 1.0); }`,
    fragmentShader: `
      varying float up; uniform vec3 top, low;
      void main() { gl_FragColor = vec4(mix(low, top, smoothstep(0.0, 1.0, up)), 1.0); 
        #include <colorspace_fragment>
      }`,
  });
  const mesh = new THREE.Mesh(new THREE.PlaneGeometry(1, 1), material);
  mesh.frustumCulled = false;
  mesh.renderOrder = -10;
  return mesh;
}
