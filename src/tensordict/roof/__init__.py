"""What is built on the kinds: joining, collating, and the hooks into torch's own machinery."""
