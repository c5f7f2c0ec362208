"""The mechanism: verbs, locks, the walk over leaves and the door that values come in by."""
