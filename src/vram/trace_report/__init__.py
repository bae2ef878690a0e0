"""A recorded trace for people and programs: views, JSON, and a page that works offline."""
