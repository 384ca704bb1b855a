"""Turns episodes of a pure environment into one stream of rows, with next-step autoreset.

    actor = begin(env, key)
    actor, row, ended = advance(env, actor, action)

The environment's `step` decides `terminated` and `truncated`; only the first sets `continues` to False.
Both are pure functions of one actor: `vmap` them over actors and runs, and `lax.scan` over time.
"""

import jax
import jax.numpy as jnp

from offtrace.environments.interface import Actor, Array, Ended, Environment, Row

__all__ = ["Actor", "Ended", "Row", "advance", "begin"]


def begin(env: Environment, key: Array) -> Actor:
    """Return an actor at the start of its first episode.

    >>> from offtrace.environments.grids import Catch
    >>> actor = begin(Catch(), jax.random.key(0))
    >>> bool(actor.first), bool(actor.over), int(actor.episode_length)
    (True, False, 0)
    """
    kept, used = jax.random.split(key)
    state, observation = env.reset(used)
    return Actor(
        state=state,
        observation=observation,
        first=jnp.bool_(True),
        over=jnp.bool_(False),
        episode_return=jnp.float32(0),
        episode_length=jnp.int32(0),
        key=kept,
    )


def advance(env: Environment, actor: Actor, action: Array) -> tuple[Actor, Row, Ended]:
    """Return the next row: a step with `action`, or the dummy row after an episode.

    The dummy row ignores the action. Its observation is the last one of the episode, the successor
    of the row before.

    >>> from offtrace.environments.grids import Catch
    >>> actor, kinds = begin(Catch(rows=3), jax.random.key(0)), []
    >>> for _ in range(4):  # two steps of a fall, the dummy row, the next episode
    ...     actor, row, ended = advance(Catch(rows=3), actor, jnp.int32(1))
    ...     kinds.append((bool(row.reset), bool(row.mask), bool(row.continues)))
    >>> kinds
    [(True, True, True), (False, True, False), (False, False, True), (True, True, True)]
    """
    # Under `vmap` both branches run and one is selected, so a single fresh key serves both.
    kept, used = jax.random.split(actor.key)

    def restart() -> tuple[Actor, Row, Ended]:
        fresh = begin(env, used)._replace(key=kept)
        return fresh, _row(actor, mask=False), Ended(jnp.bool_(False), jnp.float32(0), jnp.int32(0))

    def play() -> tuple[Actor, Row, Ended]:
        step = env.step(actor.state, action, used)
        reward = jnp.asarray(step.reward, jnp.float32)
        terminated = jnp.asarray(step.terminated, bool)
        over = terminated | jnp.asarray(step.truncated, bool)
        episode_return = actor.episode_return + reward
        episode_length = actor.episode_length + 1
        after = Actor(
            state=step.state,
            observation=step.observation,
            first=jnp.bool_(False),
            over=over,
            episode_return=episode_return,
            episode_length=episode_length,
            key=kept,
        )
        ended = Ended(over, jnp.where(over, episode_return, 0), jnp.where(over, episode_length, 0))
        return after, _row(actor, mask=True, reward=reward, continues=~terminated), ended

    return jax.lax.cond(actor.over, restart, play)


def _row(actor: Actor, *, mask: bool, reward: Array = 0, continues: Array = True) -> Row:
    return Row(
        observation=actor.observation,
        reset=actor.first,
        mask=jnp.bool_(mask),
        reward=jnp.float32(reward),
        continues=jnp.bool_(continues),
    )
