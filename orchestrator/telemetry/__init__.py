"""What runs did, for programs that watch: traces, metrics, the log. All of it is made here, outside
of containers, of what the orchestrator saw; no container has a part in it.
"""
