"""Rasterisers of 3D Gaussians: reference, CPU and CUDA."""
