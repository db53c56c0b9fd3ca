"""The Ray engine: the devices of a Ray cluster, an actor for each slot of each. Only here is Ray imported.

machines (Ray's nodes as machines, and what is asked of them) ─► engine ─► actor (what runs in each process)
"""

from symphony.engines.ray.engine import RayEngine

__all__ = ["RayEngine"]
