"""What can be said of a run from its store alone: nothing here looks at a cluster, a clock or a live process.

Each report is a function from a RunStore to a frozen document with a published JSON schema. They therefore give the
same answer years after the hardware is gone, and to anyone who has a copy of the run's directory.
"""
