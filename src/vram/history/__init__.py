"""What happened on the GPUs: who held what, from when to when, in one SQLite file of limited size."""
