"""What slurmd runs around jobs: free what an ended job left on its GPUs, and never touch another's."""
