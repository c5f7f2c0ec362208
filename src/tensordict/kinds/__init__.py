"""The kinds of containers: each is a way of telling its children, and nothing else."""
