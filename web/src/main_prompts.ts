// Entry of the page on which objects are marked in images.

import { PromptPage } from "./prompts";

Object.assign(window, { instepViewers: [new PromptPage(document.querySelector<HTMLElement>("[data-instep-viewer]")!)] });
