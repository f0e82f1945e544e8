// Entry of the large bundle: everything, with Gaussians.

import { gaussianMesh } from "./gaussians";
import { open } from "./page";

open(gaussianMesh);
