"""The host agent: the one process that stays on a host, takes orders and starts a trainer for each attempt."""
