"""Virtual ranks on a mesh, and sums whose bits do not depend on it."""
