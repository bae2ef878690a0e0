"""What is measured, one file per question."""
