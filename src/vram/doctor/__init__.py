"""What this host can do for vram and what it cannot, and the sentence that changes it."""
