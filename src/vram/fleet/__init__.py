"""Many machines in one table: snapshots of all nodes, judged in one place; plans run by each node itself."""
