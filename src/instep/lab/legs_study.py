"""The study of legs: two thought experiments with a robot that walks, closing its gap, and the page.

A controller walks a robot, and its actions are recorded. I: the same robot plays them again from the same start. II:
the robot plays actions that the controller took in a simulator. Beside both, the controller walks the robot once more
with its feedback on. To close the gap the robot is recorded, the parameters that matter are identified, and its gait
is trained over their posterior.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, Unsupported
from instep.core.rollout import Script, rollouts
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array, Observation, State, World, array_dataclass, options_dataclass
from instep.evaluate.perturbed_robot import hidden_settings
from instep.physics.mujoco_cameras import MujocoRenderer, playback, write_small_video
from instep.report.figures import bars_figure, lines_figure
from instep.report.page import Headline, HtmlReport, Number, ReportVideo, Section, Table, formatted
from instep.scene.address import DELAY, read
from instep.scene.folder import Scene, SceneSimulator
from instep.tune.posterior.beliefs import SampleBelief, estimates

from .gait import (
    GAIT_PARAMS,
    RAMP_S,
    Gait,
    GaitBody,
    GaitFile,
    GaitSearchOptions,
    base_motion,
    fallen,
    gait_costs,
    ranges_gait,
    search_gait,
)
from .leg_estimation import (
    FACTOR,
    SMOOTHED_ROWS,
    FactorWorld,
    LeggedEstimate,
    WalkNoise,
    estimated_motion,
    identify_walker,
    noisy_robot,
)

FEEDBACK, SAME, SIMULATED = "feedback on", "I: replayed on the same robot", "II: replayed from simulation"
"""The three conditions, by name."""
_OTHER_RUN = 1000
"""Added to a seed for the second run of the same robot."""


@options_dataclass
class LegOptions:
    """Number and length of walks."""

    trials: int = 8
    seconds: float = 20.0
    noise: WalkNoise = field(default_factory=WalkNoise)
    seed: int = 0


@array_dataclass
class Walks:
    """Walks under one condition, one entry per trial."""

    upright: Array
    """How long the robot stayed upright [s] [trials]."""
    distance: Array
    """How far it was from the recorded run when the first of both ended [m] [trials]."""
    episodes: Sequence[Episode]
    seconds: float
    """Length of a walk that does not end by a fall [s]."""

    def scores(self) -> dict[str, Estimate]:
        """Share that stayed upright, time to the fall, and distance from the recorded run."""
        up = self.upright >= self.seconds - 1e-9
        return {
            "upright to the end": wilson(int(up.sum()), len(up)),
            "time upright": bootstrap(self.upright, unit="s"),
            "distance from the recorded run": bootstrap(self.distance, unit="m"),
        }


@array_dataclass
class LegExperiment:
    """Walks under each condition, and what they cost."""

    walks: dict[str, Walks]
    speed: Estimate
    """Speed with feedback [m/s]."""
    velocity_error: Estimate
    """Root mean square error of the estimated velocity of the base [m/s]."""
    step_ms: float
    """Computing time of the controller per control period of one robot [ms]."""
    robot_minutes: float
    computer_minutes: float

    def sooner(self) -> Estimate:
        """How much sooner the robot falls with actions of a simulator than with its own, paired by trial [s]."""
        return bootstrap(self.walks[SAME].upright - self.walks[SIMULATED].upright, unit="s")


def leg_experiment(
    sim: SceneSimulator,
    robot: SceneSimulator,
    gait: Callable[[], Gait],
    options: LegOptions,
    *,
    watch: Callable[[str], None] | None = None,
) -> LegExperiment:
    """Walk a robot with a gait, replay its actions (I) and those of the simulator (II), and walk it once more."""
    if options.trials < 1 or not 0 < options.seconds <= 600:
        raise BadInput(f"Walks take at least 1 trial and up to 600 s, not {options.trials} and {options.seconds:g}.")
    began, note = time.perf_counter(), watch or _quiet
    body, steps = gait().body, round(options.seconds / sim.spec.dt)
    over = fallen(sim.scene, body)
    world, ideal = noisy_robot(robot, body, options.noise), noisy_robot(sim, body)
    first = [options.seed + i for i in range(options.trials)]
    again = [seed + _OTHER_RUN for seed in first]
    note("feedback on, recorded")
    errors = _VelocityErrors(LeggedEstimate(gait()), body)
    recorded = rollouts(world, errors.policy, seeds=first, steps=steps, until=over, watch=(errors,))
    note("feedback on, once more")
    timed = _Measured(LeggedEstimate(gait()))
    repeated = rollouts(world, timed, seeds=again, steps=steps, until=over)
    note("simulation")
    [simulated] = rollouts(ideal, LeggedEstimate(gait()), seeds=[0], steps=steps, until=over)
    note("I: the recorded actions on the same robot")
    longest = np.arange(max(len(e) for e in recorded))
    actions = [e.action[np.minimum(longest, len(e) - 1)] for e in recorded]  # the last of each is held
    same = rollouts(world, Script(np.stack(actions, axis=1)), seeds=again, steps=steps, until=over)
    note("II: the actions of the simulation on the robot")
    other = rollouts(world, Script(simulated.action), seeds=again, steps=steps, until=over)
    walks = {
        FEEDBACK: _walks(repeated, recorded, body, options.seconds),
        SAME: _walks(same, recorded, body, options.seconds),
        SIMULATED: _walks(other, [simulated] * options.trials, body, options.seconds),
    }
    ran = sum(len(e) for e in (*recorded, *repeated, *same, *other)) * sim.spec.dt
    speeds = [(e.q[-1, body.at_q] - e.q[0, body.at_q]) / max(len(e) * sim.spec.dt, 1e-9) for e in recorded]
    step_ms = 1e3 * timed.spent_s / max(len(timed.stances) * options.trials, 1)
    return LegExperiment(
        walks, bootstrap(speeds, unit="m/s"), bootstrap(errors.per_trial(recorded), unit="m/s"), step_ms, ran / 60,
        (time.perf_counter() - began) / 60,
    )  # fmt: skip


class _Measured:
    """A controller with its computing time, and the stance that it wants before each action."""

    def __init__(self, policy: LeggedEstimate | WeightShift):
        self._policy = policy
        self.stances = list[Array]()
        self.spent_s = 0.0

    def reset(self, seed: int = 0) -> None:
        self._policy.reset(seed)
        self.stances.clear()

    def act(self, observation: Observation) -> Array:
        began = time.perf_counter()
        self.stances.append(self._policy.stance())
        action = self._policy.act(observation)
        self.spent_s += time.perf_counter() - began
        return action


class _VelocityErrors:
    """A watcher that compares the estimated velocity of the base with the true one."""

    def __init__(self, policy: LeggedEstimate, body: GaitBody):
        self.policy, self._body = policy, body
        self._squares: list[Array] = []

    def __call__(self, state: State, observation: object, action: Array) -> None:
        true = base_motion(state.q, state.v, self._body.at_q, self._body.at_v)[..., 6:9]
        self._squares.append(((self.policy.estimate[..., 6:9] - true) ** 2).sum(axis=-1))

    def per_trial(self, episodes: Sequence[Episode]) -> list[float]:
        rows = np.array(self._squares)
        return [float(np.sqrt(rows[: len(e), i].mean())) for i, e in enumerate(episodes)]


def _walks(episodes: Sequence[Episode], recorded: Sequence[Episode], body: GaitBody, seconds: float) -> Walks:
    dt, place = episodes[0].spec.dt, slice(body.at_q, body.at_q + 2)
    up = [seconds if e.meta["ended"] == "steps" else (len(e) - 1) * dt for e in episodes]
    ends = [min(len(e), len(r)) - 1 for e, r in zip(episodes, recorded, strict=True)]
    far = [
        float(np.linalg.norm(e.q[end, place] - r.q[end, place]))
        for e, r, end in zip(episodes, recorded, ends, strict=True)
    ]
    return Walks(np.array(up), np.array(far), episodes, seconds)


PLAIN, RANGES, POSTERIOR = "given gait", "gait of ranges", "gait of the posterior"
"""The gaits among which the best is taken, by name."""


SHIFT_AXES = ((0.005, (0.55, 1.3)), (0.008, (0.45, 1.1)), (0.03, (0.7, 1.7)))
"""Amplitude along x, y and z as a share of the length of a leg, and its two frequencies [Hz]."""
MAX_DELAY_S = 0.02
"""Largest delay of commands of a hidden robot with legs [s]; `hidden_settings` has up to 60 ms, for arms at 60 Hz."""


def hidden_legs(scene: Scene, seed: int) -> dict[str, float]:
    """What is off in a simulated robot with legs; nothing where the seed is 0."""
    settings = hidden_settings(scene, seed)
    return {**settings, DELAY: min(settings[DELAY], MAX_DELAY_S)} if settings else {}


@options_dataclass
class LegBudget:
    """How much closing the gap may use, on the robot and in simulation."""

    shifts: int = 1
    """recordings in which the robot stands and shifts its weight."""
    walks: int = 2
    """recordings in which it walks."""
    seconds: float = 4.0
    """length of a recording; it ends where the robot falls [s]."""
    generations: int = 4
    """generations of the training over the posterior."""
    population: int = 10
    """candidates per generation."""
    samples: int = 3
    """samples of the posterior on which each candidate walks."""
    walk_s: float = 5.0
    """length of these walks [s]."""
    push: float = 0.2
    """change of velocity by the pushes of the training [m/s]."""
    judged: int = 8
    """samples on which the given gait, the gait of ranges and the trained one are compared."""


@array_dataclass
class ClosedLegs:
    """A gait for one robot, and what it cost."""

    gait: GaitFile
    chosen: str
    """Which of the compared gaits it is."""
    costs: dict[str, float]
    """Cost of each compared gait over samples of the posterior."""
    belief: SampleBelief
    falls: int
    """How often the robot fell while it was recorded."""
    robot_minutes: float
    computer_minutes: float

    def found(self) -> dict[str, Estimate]:
        """Median and 90 % interval of each identified parameter."""
        return estimates(self.belief, 0.9)


def close_on_legs(
    robot: World,
    sim: SceneSimulator,
    given: GaitFile,
    budget: LegBudget | None = None,
    *,
    seed: int = 0,
    watch: Callable[[str], None] | None = None,
) -> ClosedLegs:
    """Record a robot, identify it, train its gait over the posterior, and take the gait that costs least there."""
    budget, note = budget or LegBudget(), watch or _quiet
    if budget.shifts + budget.walks < 1 or budget.judged < 1:
        raise BadInput("Closing the gap takes at least one recording and one sample to judge by.")
    body, began = GaitBody.of(sim.scene), time.perf_counter()
    start = ranges_gait(body.legs)
    recorded = record_legs(robot, sim, given, budget, seed)
    used = sum(len(episode) for episode, _ in recorded) * sim.spec.dt
    falls = sum(episode.meta["ended"] != "steps" for episode, _ in recorded)
    note(f"{len(recorded)} recordings, {used:.0f} s, {falls} ended by a fall")
    whole = [(episode, stance) for episode, stance in recorded if len(episode) > SMOOTHED_ROWS]
    belief = identify_walker(sim, [estimated_motion(episode, body, stance) for episode, stance in whole], seed=seed)
    note("identified: " + "; ".join(f"{name} {value}" for name, value in estimates(belief, 0.9).items()))
    world = FactorWorld(sim)
    options = GaitSearchOptions(
        speed=given.speed, seconds=budget.walk_s, generations=budget.generations, population=budget.population,
        seeds=budget.samples, spread=0.06, push=budget.push, seed=seed,
    )  # fmt: skip
    trained = search_gait(
        world, options, start=start.params, randomized=belief.sample,
        watch=lambda g, cost, _: note(f"generation {g + 1} of {budget.generations}: cost {cost:.3f}"),
    )  # fmt: skip
    gaits = {PLAIN: given.params, RANGES: start.params, POSTERIOR: trained.params}
    # All over the same samples, pushes and noise, which no training met.
    fresh, rng = (
        replace(options, seeds=budget.judged, seconds=2 * options.seconds),
        np.random.default_rng((seed, 0xC057)),
    )
    found = gait_costs(world, body, np.array(list(gaits.values())), fresh, rng, belief.sample)[0]
    costs = dict(zip(gaits, map(float, found), strict=True))
    chosen = min(costs, key=lambda name: costs[name])
    spent = (time.perf_counter() - began) / 60
    about = (
        f"The {chosen} of {', '.join(gaits)}: {used:.0f} s on the robot, {trained.robot_seconds / 60:.0f} simulated "
        f"robot minutes, {spent:.1f} min computed."
    )
    return ClosedLegs(
        GaitFile(gaits[chosen], given.speed, about), chosen, costs, belief, falls, used / 60, spent
    )  # fmt: skip


def record_legs(
    robot: World, sim: SceneSimulator, gait: GaitFile, budget: LegBudget, seed: int
) -> list[tuple[Episode, Array]]:
    """Recordings of a robot that shifts its weight and walks, and which feet were to be on the ground in each row."""
    body, steps = GaitBody.of(sim.scene), max(SMOOTHED_ROWS + 1, round(budget.seconds / sim.spec.dt))
    over, out = fallen(sim.scene, body), list[tuple[Episode, Array]]()
    for number in range(budget.shifts + budget.walks):
        walker = LeggedEstimate(Gait(body, gait.params, gait.speed))
        policy = _Measured(WeightShift(body) if number < budget.shifts else walker)
        own = (seed + 1) * 7919 + number
        [episode] = rollouts(robot, policy, seeds=[own], steps=steps, until=over)
        out.append((episode, np.array(policy.stances)[: len(episode)]))
    return out


class WeightShift:
    """The base moves along x, y and z by two sines each, above feet that stay; as a policy, without feedback."""

    def __init__(self, body: GaitBody):
        self.body = body
        angles = body.legs.angles(body.rest)
        self._feet = body.legs.feet(angles)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Back to the first step; the seed sets the phases of the sines."""
        self._row = 0
        self._phases = np.random.default_rng((seed, 0x5417)).uniform(0, 2 * np.pi, (3, 2))

    def stance(self) -> Array:
        """Which feet are to be on the ground: all [legs]."""
        return np.ones(self.body.legs.count, bool)

    def act(self, observation: Observation) -> Array:
        """Positions of the servos, the same for every world of a batch."""
        time, legs = self._row * self.body.dt, self.body.legs
        moved = np.zeros(3)
        for axis, (amplitude, rates) in enumerate(SHIFT_AXES):
            waves = np.sin(2 * np.pi * np.array(rates) * time + self._phases[axis])
            moved[axis] = amplitude * legs.length * waves.mean()
        share = min(1.0, time / RAMP_S)
        targets = legs.joint_targets(legs.inverse(self._feet - share * moved), self.body.rest)
        self._row += 1
        servos = np.clip(targets[self.body.order], self.body.low, self.body.high)
        batch = np.shape(observation["observation.state"])[:-1]
        return np.broadcast_to(servos, (*batch, len(servos))).copy()


def _quiet(words: str) -> None:
    """Take a note of nothing."""


VIDEO = "video.mp4"
VIEW_FROM = 3.2
"""How far the camera of the film is away, in heights of the standing base."""
MIN_UPRIGHT_SHARE = 0.95
"""Share of walks with feedback that must not end by a fall."""


@array_dataclass
class LegRun:
    """What was walked, and what came out."""

    scene: Scene
    body: GaitBody
    gait: GaitFile
    result: LegExperiment
    robot: str
    """The robot in words: engine and hidden parameters."""
    simulated: bool = False
    """Whether the robot is its simulator, but for the noise."""
    closed: ClosedLegs | None = None
    """What closing the gap gave, where that was asked for."""
    truth: Mapping[str, float] = field(default_factory=dict[str, float])
    """The hidden parameters."""

    def notes(self) -> dict[str, Any]:
        """What result.json says beside the scores."""
        minutes = {"robot_minutes": self.result.robot_minutes, "computer_minutes": self.result.computer_minutes}
        minutes |= {"step_ms": self.result.step_ms}
        if self.closed is None:
            return minutes
        closing = {
            "chosen": self.closed.chosen, "costs": self.closed.costs, "falls": self.closed.falls,
            "robot_minutes": self.closed.robot_minutes, "computer_minutes": self.closed.computer_minutes,
            "identified": {name: e.as_dict() for name, e in self.closed.found().items()},
        }  # fmt: skip
        return {**minutes, "closing": closing}

    def remarks(self) -> list[str]:
        """Sentences below the table."""
        out = [f"Computing time of the controller: {self.result.step_ms:.3g} ms per control period of one robot."]
        if self.closed is not None:
            out.append(
                f"Closing the gap took {60 * self.closed.robot_minutes:.0f} s on the robot, with {self.closed.falls} "
                f"falls, and {self.closed.computer_minutes:.1f} min computed; it walks with the {self.closed.chosen}."
            )
        return out

    @property
    def caveat(self) -> str:
        """What a reader must know of I and II; empty where nothing."""
        if not self.simulated:
            return ""
        return (
            "The robot is its simulator with noise, so that II differs from I by nothing but the noise; "
            "--hidden SEED or --engine rapier makes it another robot."
        )

    @property
    def passed(self) -> bool:
        """Whether the robot stays upright with feedback."""
        walks = self.result.walks[FEEDBACK]
        return float((walks.upright >= walks.seconds - 1e-9).mean()) >= MIN_UPRIGHT_SHARE


def legs_page(run: LegRun, folder: Path) -> HtmlReport:
    """The page of the study; a video is written beside it."""
    result, walks = run.result, run.result.walks
    scores = {name: found.scores() for name, found in walks.items()}
    head = ("condition", "upright to the end", "time upright", "distance from the recorded run")
    rows = [(name, *(formatted(e) for e in found.values())) for name, found in scores.items()]
    late = {name: found["time upright"] for name, found in scores.items()}
    far = {name: found["distance from the recorded run"] for name, found in scores.items()}
    up, at = scores[FEEDBACK]["upright to the end"], run.body.at_q
    paths = {name: (w.episodes[0].q[:, at], w.episodes[0].q[:, at + 1]) for name, w in walks.items()}
    gait = [(p.name, f"{v:.4g}", p.unit) for p, v in zip(GAIT_PARAMS, run.gait.params, strict=True)]
    sections = [
        Section(
            "Three ways to choose actions",
            "Each walk begins in the same pose, on the same robot. Time upright and distance are means over "
            f"{up.n} walks of {walks[FEEDBACK].seconds:g} s. {run.caveat}".strip(),
            [Table(head, rows), bars_figure(late, title="Time upright", x="time"),
             bars_figure(far, title="Distance from the recorded run", x="distance")],
        ),
        Section(
            "Paths of the base",
            "The first walk of each condition, from above.",
            [lines_figure(paths, title="Path of the base", x="x [m]", y="y [m]")],
        ),
        *_closing_sections(run),
        Section("The gait", run.gait.about, [Table(("parameter", "value", "unit"), gait)], folded=True),
    ]  # fmt: skip
    return HtmlReport(
        title=f"Legs: {run.scene.name}",
        subtitle=f"{run.body.legs.count} legs, {run.robot}",
        verdict=_headline(run),
        numbers=[
            Number.of("speed with feedback", result.speed),
            Number.of("error of the estimated velocity", result.velocity_error, "IMU, joints and contacts"),
            Number.of("sooner down in II than in I", result.sooner(), "paired by walk"),
            Number("cost", f"{result.robot_minutes:.1f} robot minutes", f"{result.computer_minutes:.1f} min computed"),
        ],
        sections=sections,
        facts={"scene": str(run.scene.root), "robot": run.robot, "gait": run.gait.about},
        video=_video(run, folder),
    )


def _closing_sections(run: LegRun) -> list[Section]:
    """What was identified, and which gait was taken."""
    if run.closed is None:
        return []
    found = run.closed.found()
    rows = [(name.removeprefix(FACTOR), formatted(e), _true(run, name)) for name, e in found.items()]
    costs = [(name, f"{cost:.3f}") for name, cost in run.closed.costs.items()]
    return [
        Section(
            "Closing the gap",
            f"{run.remarks()[-1]} Parameters are factors on those of the scene, with 90 % intervals, identified from "
            "IMU and joints alone; the gait with the least cost over samples of their posterior is used.",
            [Table(("parameter", "identified", "true"), rows), Table(("gait", "cost over the posterior"), costs)],
        )
    ]


def _true(run: LegRun, name: str) -> str:
    """The true value of an identified parameter, where the robot is simulated with hidden parameters."""
    pattern = name.removeprefix(FACTOR)
    known = [one for one in run.truth if fnmatchcase(one, pattern)]
    if not known:
        return "" if not run.truth else "1"
    if pattern == name:
        return f"{run.truth[name]:.4g}"
    return f"{run.truth[known[0]] / read(run.scene.model, known[:1])[known[0]]:.3g}"


def leg_scores(run: LegRun) -> dict[str, Estimate]:
    """Scores for result.json, by condition."""
    result = run.result
    named = {f"{name}: {key}": e for name, found in result.walks.items() for key, e in found.scores().items()}
    return {**named, "speed": result.speed, "velocity error": result.velocity_error, "sooner in II": result.sooner()}


def _headline(run: LegRun) -> Headline:
    up = {name: float(found.upright.mean()) for name, found in run.result.walks.items()}
    text = (
        f"With feedback the robot is upright for {up[FEEDBACK]:.1f} of {run.result.walks[FEEDBACK].seconds:g} s, "
        f"replayed for {up[SAME]:.1f} s (I) and {up[SIMULATED]:.1f} s (II)."
    )
    return Headline("good" if run.passed else "bad", text, "" if run.passed else "It falls with its feedback on.")


def _video(run: LegRun, folder: Path) -> ReportVideo | str:
    """The first walk of each condition side by side, each seen by a camera that moves with its robot."""
    walks = list(run.result.walks.values())
    longest = max((w.episodes[0] for w in walks), key=len)
    shown = playback(longest.t)
    try:
        with closing(MujocoRenderer(run.scene)) as renderer:
            write_small_video(folder / VIDEO, _frames(renderer, run, walks, shown.rows))
    except Unsupported as error:
        return f"No video: {error}"
    caption = (
        f"From the left: {', '.join(run.result.walks)}; {shown.words}. The camera moves with each robot, and stays "
        "with one that has fallen."
    )
    return ReportVideo((folder / VIDEO).read_bytes(), caption)


def _frames(renderer: MujocoRenderer, run: LegRun, walks: Sequence[Walks], rows: Array) -> Iterator[Array]:
    at, stands = run.body.at_q, float(run.scene.start(0)[0][run.body.at_q + 2])
    for row in rows:
        images: list[Array] = []
        for found in walks:
            q = found.episodes[0].q[min(int(row), len(found.episodes[0]) - 1)]
            point = np.array([*q[at : at + 2], max(0.75 * stands, q[at + 2] - 0.25 * stands)])
            images.append(renderer.beside(q, point, VIEW_FROM * stands))
        yield np.concatenate(images, axis=1)
