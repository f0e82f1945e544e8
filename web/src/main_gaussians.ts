// Entry of the small bundle: everything but Gaussians.

import { open } from "./page";

open();
