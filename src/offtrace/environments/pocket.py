"""Gymnasium's classic control tasks in pure JAX: CartPole-v1, MountainCar-v0 and Acrobot-v1.

Physics, ends and time limits are the same; the tests compare them with Gymnasium step by step. The
state keeps its dtype: float32 here, float64 in that comparison. Observations are float32. The grids
of this suite are in `grids`.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.environments.interface import Array, Space, Step


class Motion(NamedTuple):
    """The state of a task."""

    x: Array
    """Positions and velocities, in the order of Gymnasium's `env.unwrapped.state`."""
    time: Array
    """int32: steps since the reset."""


@dataclass(frozen=True)
class CartPole:
    """CartPole-v1: keep a pole upright on a cart. +1 per step, including the last one.

    >>> _, x = CartPole().reset(jax.random.key(0))
    >>> x.shape, bool((abs(x) <= 0.05).all())
    ((4,), True)
    """

    time_limit: int = 500

    name: ClassVar[str] = "pocket/cartpole"
    num_actions: ClassVar[int] = 2
    observation: ClassVar[Space] = Space((4,), np.dtype(np.float32))

    @property
    def max_return(self) -> float:
        return float(self.time_limit)

    def reset(self, key: Array) -> tuple[Motion, Array]:
        x = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return Motion(x, jnp.int32(0)), x

    def step(self, state: Motion, action: Array, key: Array) -> Step:
        x = cart_pole(state.x, action)
        terminated = (jnp.abs(x[0]) > 2.4) | (jnp.abs(x[2]) > 12 * 2 * np.pi / 360)
        time = state.time + 1
        return Step(
            Motion(x, time),
            x.astype(jnp.float32),
            jnp.float32(1),
            terminated=terminated,
            truncated=jnp.bool_(time >= self.time_limit),
        )


@dataclass(frozen=True)
class MountainCar:
    """MountainCar-v0: drive a weak car out of a valley. −1 per step until the flag, 200 steps at most."""

    time_limit: int = 200

    name: ClassVar[str] = "pocket/mountain_car"
    num_actions: ClassVar[int] = 3
    observation: ClassVar[Space] = Space((2,), np.dtype(np.float32))
    max_return: ClassVar[float] = -1.0

    def reset(self, key: Array) -> tuple[Motion, Array]:
        x = jnp.stack([jax.random.uniform(key, (), jnp.float32, -0.6, -0.4), jnp.float32(0)])
        return Motion(x, jnp.int32(0)), x

    def step(self, state: Motion, action: Array, key: Array) -> Step:
        x = mountain_car(state.x, action)
        terminated = (x[0] >= 0.5) & (x[1] >= 0)
        time = state.time + 1
        return Step(
            Motion(x, time),
            x.astype(jnp.float32),
            jnp.float32(-1),
            terminated=terminated,
            truncated=jnp.bool_(time >= self.time_limit),
        )


@dataclass(frozen=True)
class Acrobot:
    """Acrobot-v1: swing the tip of two links above a line. −1 per step, 0 for the last."""

    time_limit: int = 500

    name: ClassVar[str] = "pocket/acrobot"
    num_actions: ClassVar[int] = 3
    observation: ClassVar[Space] = Space((6,), np.dtype(np.float32))
    max_return: ClassVar[float] = 0.0

    def reset(self, key: Array) -> tuple[Motion, Array]:
        x = jax.random.uniform(key, (4,), jnp.float32, -0.1, 0.1)
        return Motion(x, jnp.int32(0)), _links(x)

    def step(self, state: Motion, action: Array, key: Array) -> Step:
        x = acrobot(state.x, action)
        terminated = -jnp.cos(x[0]) - jnp.cos(x[1] + x[0]) > 1
        reward = jnp.where(terminated, jnp.float32(0), jnp.float32(-1))
        time = state.time + 1
        truncated = jnp.bool_(time >= self.time_limit)
        return Step(Motion(x, time), _links(x), reward, terminated=terminated, truncated=truncated)


# -- the physics: state and action in, state out ---------------------------------------------------


def cart_pole(x: Array, action: Array) -> Array:
    """Take one Euler step of 0.02 s: (position, speed, angle, angular speed)."""
    gravity = 9.8
    pole_mass = 0.1
    total_mass = 1.1
    half_length = 0.5
    seconds = 0.02
    position, speed, angle, angular_speed = x
    force = jnp.where(action == 1, 10.0, -10.0).astype(x.dtype)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = (force + pole_mass * half_length * angular_speed**2 * sin) / total_mass
    turn = (gravity * sin - cos * push) / (half_length * (4.0 / 3.0 - pole_mass * cos**2 / total_mass))
    acceleration = push - pole_mass * half_length * turn * cos / total_mass
    return jnp.stack(
        [
            position + seconds * speed,
            speed + seconds * acceleration,
            angle + seconds * angular_speed,
            angular_speed + seconds * turn,
        ]
    )


def mountain_car(x: Array, action: Array) -> Array:
    """Take one step of Moore's mountain car: (position, velocity). The left wall stops it."""
    position, velocity = x
    velocity = velocity + ((action - 1) * 0.001 - jnp.cos(3 * position) * 0.0025).astype(x.dtype)
    velocity = jnp.clip(velocity, -0.07, 0.07)
    position = jnp.clip(position + velocity, -1.2, 0.6)
    velocity = jnp.where((position == jnp.asarray(-1.2, x.dtype)) & (velocity < 0), 0, velocity)
    return jnp.stack([position, velocity])


def acrobot(x: Array, action: Array) -> Array:
    """Take a fourth-order Runge-Kutta step of 0.2 s: (θ_1, θ_2, θ_1', θ_2'), angles in [−π, π], speeds clipped."""
    torque = (action - 1).astype(x.dtype)
    seconds = 0.2
    k1 = _swing(x, torque)
    k2 = _swing(x + seconds / 2 * k1, torque)
    k3 = _swing(x + seconds / 2 * k2, torque)
    k4 = _swing(x + seconds * k3, torque)
    x = x + seconds / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    most = np.array([4 * np.pi, 9 * np.pi]).astype(x.dtype)
    return jnp.concatenate([_wrapped(x[:2]), jnp.clip(x[2:], -most, most)])


def _swing(x: Array, torque: Array) -> Array:
    """Return the time derivative, by Sutton and Barto's equations for unit masses and lengths."""
    gravity = 9.8
    theta_1, theta_2, speed_1, speed_2 = x
    sin_2, cos_2 = jnp.sin(theta_2), jnp.cos(theta_2)
    d_1 = 0.25 + (1.25 + cos_2) + 2
    d_2 = 0.25 + 0.5 * cos_2 + 1
    phi_2 = 0.5 * gravity * jnp.cos(theta_1 + theta_2 - np.pi / 2)
    phi_1 = (
        -0.5 * speed_2**2 * sin_2 - speed_2 * speed_1 * sin_2 + 1.5 * gravity * jnp.cos(theta_1 - np.pi / 2) + phi_2
    )
    turn_2 = (torque + d_2 / d_1 * phi_1 - 0.5 * speed_1**2 * sin_2 - phi_2) / (1.25 - d_2**2 / d_1)
    turn_1 = -(d_2 * turn_2 + phi_1) / d_1
    return jnp.stack([speed_1, speed_2, turn_1, turn_2])


def _wrapped(angle: Array) -> Array:
    """Return the same angle in [−π, π]."""
    turns = jnp.where(angle > 0, jnp.ceil((angle - np.pi) / (2 * np.pi)), jnp.floor((angle + np.pi) / (2 * np.pi)))
    return angle - 2 * np.pi * jnp.where(jnp.abs(angle) > np.pi, turns, 0)


def _links(x: Array) -> Array:
    return jnp.stack([jnp.cos(x[0]), jnp.sin(x[0]), jnp.cos(x[1]), jnp.sin(x[1]), x[2], x[3]]).astype(jnp.float32)
