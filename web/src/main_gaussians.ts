// Entry of the large bundle: everything, with Gaussians.

import { drawnGaussians, gaussianMesh } from "./gaussians";
import { open } from "./page";

open({ mesh: gaussianMesh, drawn: drawnGaussians });
