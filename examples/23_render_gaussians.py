"""Render a scene with 3D Gaussians, on the CPU, through a camera that frames it."""

import instep

scene = instep.load_scene("pusht")
rendering = instep.render(scene)
rendering.save("pusht.png")
