"""Links near each other whose shapes overlap at rest do not collide."""

from __future__ import annotations

import mujoco

from instep import MujocoWorld, Scene
from instep.scene.model import overlapping_links

ARM = """<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 0.1" pos="0 0 -0.06"/>
    <body name="base">
      <geom type="box" size="0.05 0.05 0.05" mass="1"/>
      <body name="link" pos="0 0 0.06">
        <joint name="turn" axis="0 0 1"/>
        <geom type="box" size="0.04 0.04 0.04" mass="0.5"/>
        <body name="fallen" pos="0.2 0 0"><joint name="swing" axis="0 1 0"/>
          <geom type="sphere" size="0.03" mass="0.1"/></body>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="turn" joint="turn"/></actuator>
</mujoco>"""


def test_a_link_that_overlaps_its_fixed_base_is_not_braked_by_it(tmp_path):
    (tmp_path / "arm.xml").write_text(ARM)
    world = MujocoWorld(Scene.load(tmp_path / "arm.xml"))
    model = world.model
    assert model.nexclude == 1 and overlapping_links(model) == [("base", "link")]
    state = world.reset()
    assert world.contacts(state) == 0
    for _ in range(20):
        state = world.step(state, [0.1])
    plain = mujoco.MjModel.from_xml_string(ARM)
    braked = mujoco.MjData(plain)
    braked.ctrl[:] = 0.1
    mujoco.mj_step(plain, braked, nstep=20 * world.substeps)
    assert state.q[0] > 10 * abs(braked.qpos[0])


def test_a_lid_that_rests_on_its_box_still_collides_with_it(tmp_path):
    lid = ARM.replace('pos="0 0 0.06"', 'pos="0 0 0.0899"').replace('axis="0 0 1"/>', 'type="slide" axis="0 0 1"/>')
    (tmp_path / "lid.xml").write_text(lid)
    world = MujocoWorld(Scene.load(tmp_path / "lid.xml"))
    assert world.model.nexclude == 0
    assert world.contacts(world.reset()) > 0


def test_a_wrist_whose_links_overlap_two_joints_apart_moves_freely(tmp_path):
    wrist = ARM.replace('<geom type="sphere" size="0.03" mass="0.1"/></body>',
        '<geom type="sphere" size="0.03" mass="0.1"/><body name="hand" pos="-0.05 0 0">'
        '<joint name="roll" axis="1 0 0"/><geom type="sphere" size="0.12" mass="0.1"/></body></body>')  # fmt: skip
    (tmp_path / "arm.xml").write_text(wrist)
    scene = Scene.load(tmp_path / "arm.xml")
    # The hand also overlaps the base, three joints away, which a shape too large does not explain.
    assert overlapping_links(scene.model) == [("base", "link"), ("link", "hand")]
    assert MujocoWorld(scene).contacts(MujocoWorld(scene).reset()) > 0
