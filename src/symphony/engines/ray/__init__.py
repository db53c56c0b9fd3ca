"""The Ray engine: one actor for each slot of each device of a Ray cluster. Only this package imports Ray.

machines (Ray's nodes, and the resources requested from them) ─► engine ─► actor (runs in each worker process)
"""

from symphony.engines.ray.engine import RayEngine

__all__ = ["RayEngine"]
