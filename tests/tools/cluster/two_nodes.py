"""Two nodes of a Ray cluster on this machine; prints the address, ends when its input does. A line
of input has the second node's raylet killed, as when a machine loses power.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

if __name__ == "__main__":
    answers = sys.stdout
    sys.stdout = sys.stderr
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    print(cluster.address, file=answers, flush=True)
    if sys.stdin.readline():
        cluster.remove_node(second, allow_graceful=False)
        print("lost", file=answers, flush=True)
        sys.stdin.read()
    cluster.shutdown()
