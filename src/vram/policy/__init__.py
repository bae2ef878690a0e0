"""Policies: what ``vram serve`` does by itself, decided from readings alone. Nothing here acts."""
