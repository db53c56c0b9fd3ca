"""A process that starts Ray's nodes, and ends them: one that has no threads of JAX, which Ray's forks could break.

Reads `add NAME {options}` and `kill NAME`, a line each; answers each with a line. Ends when there is no more to read.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Begin with the head, which runs nothing, and say its address."""
    from ray.cluster_utils import Cluster

    here = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20, "include_dashboard": False}
    here["include_log_monitor"] = False  # nobody reads what it follows
    cluster = Cluster(initialize_head=True, head_node_args={**here, "num_cpus": 0})
    nodes = {}
    say, sys.stdout = sys.stdout, sys.stderr  # Ray may print
    try:
        print(cluster.address, file=say, flush=True)
        for line in sys.stdin:
            what, name, *options = line.split(maxsplit=2)
            if what == "add":
                labels = {"symphony.machine": name}
                nodes[name] = cluster.add_node(**here, labels=labels, **json.loads(options[0]))
            else:  # without a word, as by a power cut
                cluster.remove_node(nodes.pop(name), allow_graceful=False)
            print("done", file=say, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
