"""Give memory back with the least harm, and prove it by reading the device again."""
