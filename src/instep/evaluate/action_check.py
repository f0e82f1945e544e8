"""Actions of a policy on recorded observations, compared with the recorded actions.

This is the first check of a policy before anything moves: wrong units, an order of joints, a sign, a missing camera or
weights of another robot show here. It does not say how well a policy does its task: in closed loop it sees what its own
actions lead to. A number means something only beside what needs no policy: the mean of the recorded actions, and
repeating the last one. At one control period ahead the last action is nearly the next one, so that a good policy which
does not see it loses to it; repeating is judged only where chunks reach `JUDGED_AHEAD_S` ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.statistics import Estimate, log_jackknife, pooled
from instep.core.world import Array, Policy, Spec, array_dataclass, options_dataclass
from instep.policy.chunking import ChunkPolicy, as_chunk_policy
from instep.robot.driver import Recording

JUDGED_AHEAD_S = 0.5
"""Repeating the last action is a baseline from so far ahead on [s]."""
STILL = 1e-6
"""Actions whose standard deviation is below this do not move: they count in no score."""
ALIKE = 1e-3
"""Share of the variance of an action that is left over by one that follows it, whatever else is like it too."""
MEAN, REPEAT = "mean action", "repeated action"
"""The baselines: the mean action of the other episodes, and the last recorded action, held."""
Watch = Callable[[int], None]
"""Receives the number of observations that were answered since the last call."""


@options_dataclass
class CheckOptions:
    """How recorded observations are given to a policy."""

    every: int = 0
    """Rows from one inference of chunks to the next; 0 spreads about `most` inferences over all episodes. Policies
    that infer single actions get every row, since they may count them."""
    most: int = 2000
    """Inferences of chunks, about, where `every` is 0."""
    seed: int = 0
    """Seed that the policy is reset with."""


@array_dataclass
class PredictedActions:
    """What a policy answered to some observations of an episode."""

    rows: Array
    """Rows of the episode whose observations it saw [n]."""
    chunks: Array
    """The actions it answered with, the first for that row [n, horizon, nu]."""


@array_dataclass
class ActionCheck:
    """A policy's actions beside the recorded ones."""

    spec: Spec
    episodes: tuple[Episode, ...]
    predicted: tuple[PredictedActions, ...]
    scales: Array
    """Standard deviation of each recorded action [nu]; NaN where it does not move."""
    joints: Mapping[str, Estimate]
    """Root mean square error of each action over all steps of a chunk, in its unit."""
    steps: Mapping[str, tuple[Estimate, ...]]
    """Overall error by the step of a chunk, of the policy and of the baselines, in standard deviations of the actions.
    """
    overall: Estimate
    """The same over all steps."""
    ratios: Mapping[str, Estimate]
    """Baseline -> the policy's overall error as a multiple of the baseline's; below 1 the policy is better."""
    judged: tuple[str, ...]
    """The baselines that the verdict rests on."""
    mismatches: tuple[str, ...]
    """What looks wrong about single actions, in sentences: units, signs, order, offsets."""
    subject: str = "The policy"
    """What is compared, as the start of a sentence."""

    @property
    def scores(self) -> dict[str, Estimate]:
        """Every number by name."""
        last = len(self.steps["policy"]) - 1
        found = {"overall": self.overall, "overall@first step": self.steps["policy"][0]}
        found |= {"overall@last step": self.steps["policy"][last]} if last else {}
        return found | {f"of {name}": ratio for name, ratio in self.ratios.items()} | dict(self.joints)

    @property
    def worse_than(self) -> tuple[str, ...]:
        """The baselines that the policy is worse than, or cannot be compared with."""
        return tuple(name for name in self.judged if not self.ratios[name].value < 1)

    @property
    def passed(self) -> bool:
        """Whether the policy is better than every baseline that is judged."""
        return not self.worse_than

    @property
    def words(self) -> str:
        """The verdict in a sentence."""
        name = max(self.worse_than or self.judged, key=lambda one: self.ratios[one].value)
        ratio = self.ratios[name]
        known = ratio.has_interval and (ratio.low > 1 if self.worse_than else ratio.high < 1)
        sure = "" if known else ", though not significantly"
        if self.worse_than:
            return f"{self.subject} is worse than the {name}: its error is {ratio.value:.3g} times as large{sure}."
        return f"{self.subject} is better than the baselines: {ratio.value:.3g} times the error of the {name}{sure}."

    def row_errors(self, episode: int) -> tuple[Array, Array]:
        """Time [s] and overall error of the first step at each row that was asked about."""
        run, said = self.episodes[episode], self.predicted[episode]
        error = (said.chunks[:, 0] - np.asarray(run.action, float)[said.rows]) / self.scales
        t = np.asarray(run.t, float)
        return t[said.rows] - t[0], np.sqrt(np.nanmean(error**2, axis=1))

    @property
    def judged_ahead_s(self) -> float:
        """How far ahead repeating the last action is judged [s]."""
        return JUDGED_AHEAD_S


def check_policy(
    policy: Policy | ChunkPolicy,
    episodes: Sequence[Episode],
    *,
    options: CheckOptions | None = None,
    watch: Watch | None = None,
) -> ActionCheck:
    """Give the observations of recorded episodes to a policy, and compare its actions with the recorded ones."""
    options = options or CheckOptions()
    usable = [episode for episode in episodes if len(episode) > 1]
    if not usable:
        raise BadInput("A check needs at least one recorded episode of two rows.")
    every = options.every or max(1, sum(len(episode) for episode in usable) // options.most)
    predicted = [
        predict_actions(policy, e, every=every, seed=options.seed + i, watch=watch) for i, e in enumerate(usable)
    ]
    return compare_actions(usable, predicted)


def predict_actions(
    policy: Policy | ChunkPolicy, episode: Episode, *, every: int = 1, seed: int = 0, watch: Watch | None = None
) -> PredictedActions:
    """A policy's actions on the observations of an episode.

    A policy that infers chunks is asked at every so many rows; one that infers single actions at all of them.
    """
    world = Recording(episode)
    infers = hasattr(policy, "infer") or as_chunk_policy(policy) is getattr(policy, "policy", None)
    chunks_of = as_chunk_policy(policy)
    chunks_of.reset(seed)
    state = world.reset()
    rows: list[int] = []
    found: list[Array] = []
    still = np.zeros(world.spec.action.shape)
    for row in range(len(episode)):
        if not infers or row % every == 0:
            rows.append(row)
            found.append(_checked_chunk(chunks_of.infer(world.observe(state)), world.spec, row))
            if watch is not None:
                watch(every if infers else 1)
        state = world.step(state, still)
    horizon = min(len(chunk) for chunk in found)
    return PredictedActions(np.array(rows), np.stack([chunk[:horizon] for chunk in found]))


def compare_actions(
    episodes: Sequence[Episode], predicted: Sequence[PredictedActions], *, subject: str = "The policy"
) -> ActionCheck:
    """Compare predicted actions with those of the episodes, step by step of a chunk."""
    spec = episodes[0].spec
    actions = [np.asarray(episode.action, float) for episode in episodes]
    spread = np.concatenate(actions).std(axis=0)
    scales = np.where(spread > STILL, spread, np.nan)
    if not np.isfinite(scales).any():
        raise BadInput("The recorded actions never change, so nothing can be compared with them; give other episodes.")
    horizon = min(said.chunks.shape[1] for said in predicted)
    sums: dict[str, list[Array]] = {"policy": [], MEAN: [], REPEAT: []}
    counts: list[Array] = []
    for i, said in enumerate(predicted):
        squares, count = _squares(i, said, actions, horizon)
        counts.append(count)
        for name, one in squares.items():
            sums[name].append(one)
    taken = np.stack(counts)  # [episodes, horizon]
    squared = {name: np.stack(parts) for name, parts in sums.items()}  # [episodes, horizon, nu]
    scaled = {name: np.nanmean(parts / scales**2, axis=2) for name, parts in squared.items()}  # [episodes, horizon]
    if not taken.sum():
        raise BadInput("No recorded action lies after an observation that the policy answered; record longer episodes.")
    ahead = max(1, round(JUDGED_AHEAD_S / spec.dt))
    far = slice(ahead, None) if horizon > ahead else slice(0, None)
    ratios = {
        MEAN: _ratio(scaled["policy"], scaled[MEAN]),
        REPEAT: _ratio(scaled["policy"][:, far], scaled[REPEAT][:, far]),
    }
    errors = pooled(squared["policy"].sum(axis=1), taken.sum(axis=1))
    units = zip(spec.action.labels, spec.action.units, errors, strict=True)
    joints = {label: replace(error, unit=unit) for label, unit, error in units}
    steps = {
        name: tuple(pooled(parts[:, h : h + 1], taken[:, h], unit="1")[0] for h in range(horizon))
        for name, parts in scaled.items()
    }
    return ActionCheck(
        spec, tuple(episodes), tuple(predicted), scales, joints,
        steps,
        pooled(scaled["policy"].sum(axis=1)[:, None], taken.sum(axis=1), unit="1")[0],
        ratios, (MEAN, REPEAT) if horizon > ahead else (MEAN,),
        tuple(found_mismatches(spec, actions, predicted)), subject,
    )  # fmt: skip


def found_mismatches(spec: Spec, actions: Sequence[Array], predicted: Sequence[PredictedActions]) -> list[str]:
    """Sentences about actions whose first step differs from the recorded one as a mistake in a map would make it."""
    said = np.concatenate([one.chunks[:, 0] for one in predicted])
    done = np.concatenate([action[one.rows] for action, one in zip(actions, predicted, strict=True)])
    labels = spec.action.labels
    found: list[str] = []
    # Correlations of the columns of two tables [columns of a, columns of b]; 0 where one does not change.
    a, b = said - said.mean(axis=0), done - done.mean(axis=0)
    size = np.outer(np.sqrt((a**2).sum(axis=0)), np.sqrt((b**2).sum(axis=0)))
    like = np.divide(a.T @ b, size, out=np.zeros_like(size), where=size > 0)
    for i, label in enumerate(labels):
        moves, moved = float(said[:, i].std()), float(done[:, i].std())
        if moved <= STILL:
            continue
        if moves < 0.01 * moved:
            found.append(f"{label} hardly changes: it varies by {100 * moves / moved:.2g} % of the recorded action.")
            continue
        best = int(np.argmax(np.abs(like[i])))
        factor = moves / moved
        # Joints that move together are alike too: another one is named only where it leaves a quarter of the rest.
        own, other = 1 - like[i, i] ** 2, 1 - like[i, best] ** 2
        if best != i and abs(like[i, best]) > 0.9 and own > ALIKE and other < 0.25 * own:
            found.append(
                f"{label} follows the recorded {labels[best]} (correlation {like[i, best]:.2f}): a swapped order?"
            )
        elif like[i, i] < -0.8:
            found.append(f"{label} moves against the recorded action (correlation {like[i, i]:.2f}): a sign?")
        elif like[i, i] > 0.8 and (_near(factor, 180 / np.pi) or _near(factor, np.pi / 180)):
            found.append(f"{label} is {factor:.3g} times as large as the recorded action: degrees and radians?")
        elif like[i, i] > 0.9 and abs(float((said - done)[:, i].mean())) > moved:
            found.append(
                f"{label} is offset by {float((said - done)[:, i].mean()):.3g} {spec.action.units[i]}: another zero?"
            )
    return found


def _near(value: float, other: float) -> bool:
    """Whether two factors agree within 15 %, more than a trained policy errs by and less than units differ."""
    return abs(value / other - 1) < 0.15


def _checked_chunk(answer: Array, spec: Spec, row: int) -> Array:
    chunk = np.asarray(answer, float)
    expected = spec.action.shape[-1]
    if chunk.ndim != 2 or not len(chunk) or chunk.shape[1] != expected:
        raise BadInput(
            f"The policy answered row {row} with shape {list(chunk.shape)}; [horizon, {expected}] was expected for the "
            f"recorded actions {', '.join(spec.action.labels)}."
        )
    if not np.isfinite(chunk).all():
        raise BadInput(f"The policy answered row {row} with numbers that are not finite.")
    return chunk


def _squares(i: int, said: PredictedActions, actions: Sequence[Array], horizon: int) -> tuple[dict[str, Array], Array]:
    """Squared errors of the policy and the baselines summed over the rows of an episode [horizon, nu], and counts."""
    action = actions[i]
    others = [other for j, other in enumerate(actions) if j != i] or [action]
    mean = np.concatenate(others).mean(axis=0)
    asked = said.rows >= 1  # before the first row there is no action to repeat
    rows, chunks = said.rows[asked], said.chunks[asked, :horizon]
    ahead = rows[:, None] + np.arange(horizon)
    inside = ahead < len(action)
    target = action[np.minimum(ahead, len(action) - 1)]
    given = {"policy": chunks, MEAN: mean, REPEAT: action[rows - 1][:, None]}
    squares = {name: np.where(inside[..., None], (one - target) ** 2, 0.0).sum(axis=0) for name, one in given.items()}
    return squares, inside.sum(axis=0)


def _ratio(own: Array, other: Array) -> Estimate:
    """The ratio of two root mean squares [episodes, horizon] with its interval over episodes."""
    a, b = own.sum(axis=1), other.sum(axis=1)
    if not b.sum() > 0:
        return Estimate(nan, nan, nan, len(a), "1")
    value = float((a.sum() / b.sum()) ** 0.5)
    if len(a) < 2 or not ((b.sum() - b) > 0).all() or not isfinite(value):
        return Estimate(value, nan, nan, len(a), "1")
    return log_jackknife(np.array([value**2]), ((a.sum() - a) / (b.sum() - b))[:, None], unit="1")[0]
