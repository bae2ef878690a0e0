"""What the payload uses of JAX."""

from jax import profiler as profiler
from jax._src import xla_bridge as xla_bridge
