"""A shadow on a table has the table's colour in less light, and an object has another colour."""

from __future__ import annotations

import numpy as np

from instep.reconstruct.masks.table_map import density_in_any_light

TABLE, RED = np.array([0.47, 0.53, 0.57]), np.array([0.6, 0.12, 0.1])
COLOURS = [(TABLE, np.linalg.inv(0.02**2 * np.eye(3)))]
SHADING = (0.45, 1.3)


def test_a_shadow_is_as_likely_for_the_table_as_the_table_in_light():
    image = np.array([[TABLE, 0.6 * TABLE, 1.2 * TABLE]])
    density = density_in_any_light(image, COLOURS, SHADING)
    assert np.allclose(density, density[0, 0])


def test_another_colour_or_a_darker_one_than_a_shadow_is_not_the_table():
    image = np.array([[TABLE, 0.6 * RED, RED, 0.3 * TABLE]])
    [table, *others] = density_in_any_light(image, COLOURS, SHADING)[0]
    assert max(others) < table - 8


def test_a_table_of_no_known_colour_is_not_likely_anywhere():
    assert (density_in_any_light(np.ones((2, 3, 3)), [], SHADING) == -np.inf).all()
