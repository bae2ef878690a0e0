"""Programs that sleep until they are wanted: a process of each user's watches them, and wakes them."""
