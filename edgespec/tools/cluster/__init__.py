"""Many prompts on many machines: one engine on each node of a Ray cluster.

Ray finds the nodes, starts a process on each and tells when one has died; what is asked of whom,
and that every line is answered once, is decided here, in the process that asked.
"""

from edgespec.tools.cluster.cluster import cluster_answers

__all__ = ["cluster_answers"]
