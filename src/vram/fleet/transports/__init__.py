"""Ways to the nodes of a fleet: recorded files, ssh, srun and Ray. None knows of the others."""
